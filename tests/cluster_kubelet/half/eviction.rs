//! Evictions by the node, with a kubelet or the agent.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use testbed::{cgroups, mounts, pods::Identity, stage::AgentProcess, wait::eventually};
use tokio::time::sleep;

use super::{END_LIMIT, Half, STABLE, has_ended};
use crate::scenario::{Eviction, Scenario};

/// Bytes of a file that exceeds a volume's limit.
const EXCESS: usize = 4 << 20;

/// Side that terminates a half's pods.
pub enum Power<'a> {
    Kubelet,
    Agent(&'a AgentProcess),
}

impl Half<'_> {
    /// Returns when the pod is terminal and its node has finished with it.
    pub(super) async fn evict(&self, scenario: &Scenario, eviction: &Eviction, power: &Power<'_>) -> Result<()> {
        let pod = self.pod(scenario).await?;
        let identity = self.identity(&pod)?;
        let dirs = self.stage.starter.dirs();
        let volumes = dirs.pod(&identity.uid).join("volumes/kubernetes.io~empty-dir");
        let volume = volumes.join(eviction.volume);
        match power {
            Power::Kubelet => {
                let file = volume.join("much");
                fs::write(&file, vec![b'x'; EXCESS]).with_context(|| format!("write {}", file.display()))?;
            }
            Power::Agent(agent) => {
                let pod = format!("{}/{}", identity.namespace, identity.name);
                let why = ["--failed", "--reason", "Evicted", "--message", eviction.message];
                agent
                    .ask(&[["stop", &pod].as_slice(), &why, &["--grace-period", "1s"]].concat())
                    .await?;
            }
        }
        // The kubelet's order; after an unchanged last status it does not sync the pod any more.
        let cgroup = format!("pod{}", identity.uid);
        let over = async || {
            let over = has_ended(&self.pod(scenario).await?)
                && !volume.exists()
                && cgroups::find(|found| found == cgroup.as_str())?.is_empty();
            Ok(over.then_some(()))
        };
        eventually(END_LIMIT, "its end", over).await?;
        sleep(STABLE).await;
        Ok(())
    }

    /// Prevents a kubelet from removing the containers and logs of pods. It removes dead containers of terminating pods at
    /// its next relist, one each second. If that is before it has read their exit or logs, these are lost, so that its results
    /// would be random.
    ///
    /// It removes the log first and then the container. A log that is a mount point cannot be removed.
    ///
    /// Returns these logs.
    pub(super) fn prevent_removal(&self, pods: &BTreeMap<String, Value>) -> Result<Vec<PathBuf>> {
        let mut kept = Vec::new();
        for pod in pods.values() {
            let logs = self.stage.starter.dirs().logs(&self.identity(pod)?);
            let Ok(containers) = fs::read_dir(&logs) else { continue };
            for container in containers {
                for log in fs::read_dir(container?.path())? {
                    let log = log?.path();
                    mounts::bind(&log, &log)?;
                    kept.push(log);
                }
            }
        }
        Ok(kept)
    }

    fn identity(&self, pod: &Value) -> Result<Identity> {
        let of = |field: &str| pod["metadata"][field].as_str().map(str::to_owned);
        Ok(Identity {
            uid: of("uid").context("a pod without UID")?,
            namespace: self.namespace.to_owned(),
            name: of("name").context("a pod without a name")?,
        })
    }
}
