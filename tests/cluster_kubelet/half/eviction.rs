//! How a node ends a pod by itself, whoever looks after the node.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;
use testbed::{cgroups, mounts, pods::Identity, stage::AgentProcess, wait::eventually};
use tokio::time::sleep;

use super::{END_LIMIT, Half, STABLE, has_ended};
use crate::scenario::{Eviction, Scenario};

/// Of the file by which a volume outgrows its limit.
const TOO_MUCH: usize = 4 << 20;

/// Who brings a half's pods to their ends.
pub enum Power<'a> {
    Kubelet,
    Agent(&'a AgentProcess),
}

// === impl Half ===

impl Half<'_> {
    /// Returns when the pod is over and its node looks at it no more.
    pub(super) async fn evict(&self, scenario: &Scenario, eviction: &Eviction, power: &Power<'_>) -> Result<()> {
        let pod = self.pod(scenario).await?;
        let identity = self.identity(&pod)?;
        let dirs = self.stage.starter.dirs();
        let volumes = dirs.pod(&identity.uid).join("volumes/kubernetes.io~empty-dir");
        let volume = volumes.join(eviction.volume);
        match power {
            Power::Kubelet => {
                self.keep_containers(&pod)?;
                let file = volume.join("much");
                fs::write(&file, vec![b'x'; TOO_MUCH]).with_context(|| format!("write {}", file.display()))?;
            }
            Power::Agent(agent) => {
                let pod = format!("{}/{}", identity.namespace, identity.name);
                let why = ["--reason", "Evicted", "--message", eviction.message];
                agent
                    .ask(&[["evict", &pod].as_slice(), &why, &["--grace", "1s"]].concat())
                    .await?;
            }
        }
        // That is the order in which a kubelet goes on; it looks at the pod no more after a last status without news.
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

    /// A kubelet cannot remove a pod's containers and their logs after this. Those of a pod that it evicts or that is deleted
    /// it removes as soon as one of its looks, one each second, finds them dead; where that is before it has read how they
    /// ended, or before it has read their logs for the last time, it does not know any more. So some of its pods would end as
    /// unknown, or without words, and others not.
    ///
    /// It removes the log first, and the container only once that is gone. A file that something is mounted on stays.
    pub(super) fn keep_containers(&self, pod: &Value) -> Result<()> {
        let logs = self.stage.starter.dirs().logs(&self.identity(pod)?);
        let mounted = mounts::below(&logs)?;
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            let name = container["name"].as_str().context("a container without a name")?;
            let log = logs.join(name).join("0.log");
            // A container that was never made has none.
            if log.exists() && !mounted.contains(&log) {
                mounts::bind(&log, &log)?;
            }
        }
        Ok(())
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
