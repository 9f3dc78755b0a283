//! Starts pods as a kubelet would.
//!
//! `identity → cgroup → volumes → sandbox → containers → status`, with the names, labels and layout of the kubelet, so
//! that teardown finds the same as in a cluster.

pub mod configs;
pub mod dirs;
mod find;
pub mod identity;
pub mod qos;
mod start;
mod status;
pub mod volumes;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use indexmap::IndexMap;
use jiff::Timestamp;
use k8s_cri::v1::{ExecSyncRequest, RemovePodSandboxRequest, StopPodSandboxRequest};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

pub use dirs::NodeDirs;
pub use identity::Identity;

use crate::containerd::{Containerd, Cri};
use crate::mounts;
use volumes::VolumeDirs;

/// Pods started or removed in parallel: more would only wait for each other in the runtime.
const PARALLEL: usize = 8;

/// Starts pods on one containerd, below one set of directories.
#[derive(Debug, Clone)]
pub struct PodStarter {
    cri: Cri,
    dirs: NodeDirs,
    host_ip: String,
}

#[derive(Debug, Clone)]
pub struct StartedPod {
    pub pod: Pod,
    /// Its UID, namespace and name.
    pub identity: Identity,
    pub sandbox_id: String,
    /// IDs of its containers by name, in the order of the spec, init containers first.
    pub containers: IndexMap<String, String>,
    /// First IP; `None` in the host network.
    pub ip: Option<String>,
    /// Path of its cgroup within each hierarchy.
    pub cgroup: String,
    /// Its directory below the kubelet's root.
    pub dir: PathBuf,
    /// Its log directory.
    pub logs: PathBuf,
    /// Path of each volume's content, by the volume's name.
    pub volumes: VolumeDirs,
    /// When the start began.
    pub started_at: Timestamp,
}

/// Result of a command in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    pub exit_code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl PodStarter {
    /// A starter with a connection of its own, which belongs to the calling async runtime.
    pub fn new(containerd: &Containerd, dirs: NodeDirs) -> Self {
        Self {
            cri: containerd.cri(),
            dirs,
            host_ip: containerd.host_ip(),
        }
    }

    /// Directories of its pods.
    pub fn dirs(&self) -> &NodeDirs {
        &self.dirs
    }

    /// Starts a pod from its object, which must have a UID.
    pub async fn start(&self, pod: &Value) -> Result<StartedPod> {
        self.start_with(pod, VolumeDirs::default()).await
    }

    /// As [`Self::start`], for a pod with volumes that a driver has published already.
    pub async fn start_with(&self, pod: &Value, published: VolumeDirs) -> Result<StartedPod> {
        let pod: Pod = serde_json::from_value(pod.clone()).context("read a pod object")?;
        let identity = Identity::of(&pod)?;
        let what = format!("start pod {}/{}", identity.namespace, identity.name);
        start::start(self.cri.clone(), &self.dirs, pod, identity, published)
            .await
            .context(what)
    }

    /// Starts several in parallel; the results are in their order.
    pub async fn start_all(&self, pods: &[Value]) -> Result<Vec<StartedPod>> {
        stream::iter(pods)
            .map(|pod| self.start(pod))
            .buffered(PARALLEL)
            .try_collect()
            .await
    }

    /// Pods that a kubelet has started below the same directories, without paths of volumes; each needs a running container.
    pub async fn find(&self, pods: Vec<Value>) -> Result<Vec<StartedPod>> {
        find::find(self.cri.clone(), &self.dirs, pods).await
    }

    /// The status that a kubelet would have written, as a patch of the object.
    pub async fn status_of(&self, pod: &StartedPod) -> Result<Value> {
        let what = || {
            format!(
                "read the status of pod {}/{}",
                pod.identity.namespace, pod.identity.name
            )
        };
        status::of(self.cri.clone(), pod, &self.host_ip)
            .await
            .with_context(what)
    }

    /// Runs a command in a container, without a time limit.
    pub async fn exec(&self, pod: &StartedPod, container: &str, command: &[&str]) -> Result<Executed> {
        let Some(id) = pod.containers.get(container) else {
            bail!(
                "run {command:?}: pod {} has no container {container}",
                pod.identity.name
            );
        };
        let request = ExecSyncRequest {
            container_id: id.clone(),
            cmd: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout: 0,
        };
        let answer = self.cri.clone().exec_sync(request).await;
        let answer = answer
            .with_context(|| format!("run {command:?} in {container}"))?
            .into_inner();
        Ok(Executed {
            exit_code: answer.exit_code,
            stdout: String::from_utf8_lossy(&answer.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&answer.stderr).into_owned(),
        })
    }

    /// Removes everything that is left of a pod, after a benchmark round or a test.
    pub async fn clear_away(&self, pod: &StartedPod) -> Result<()> {
        let mut cri = self.cri.clone();
        let pod_sandbox_id = pod.sandbox_id.clone();
        // Both succeed on a missing sandbox.
        let stopped = cri
            .stop_pod_sandbox(StopPodSandboxRequest {
                pod_sandbox_id: pod_sandbox_id.clone(),
            })
            .await;
        stopped.with_context(|| format!("stop sandbox {pod_sandbox_id}"))?;
        let removed = cri
            .remove_pod_sandbox(RemovePodSandboxRequest {
                pod_sandbox_id: pod_sandbox_id.clone(),
            })
            .await;
        removed.with_context(|| format!("remove sandbox {pod_sandbox_id}"))?;
        mounts::remove_dir(&pod.dir)?;
        mounts::remove_dir(&pod.logs)?;
        self.dirs.cgroup_driver.remove(&pod.cgroup).await
    }

    /// As [`Self::clear_away`] for many, several at a time.
    pub async fn clear_all_away(&self, pods: &[StartedPod]) -> Result<()> {
        stream::iter(pods)
            .map(|pod| self.clear_away(pod))
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await
    }
}

impl StartedPod {
    /// What identifies it.
    pub fn uid(&self) -> &str {
        &self.identity.uid
    }
}
