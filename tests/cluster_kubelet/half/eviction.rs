//! How a node ends a pod by itself, whoever looks after the node.

use std::{fs, io::ErrorKind};

use anyhow::{Context, Result};
use serde_json::Value;
use testbed::{cgroups, pods::Identity, stage::AgentProcess, wait::eventually};
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
        let keep = || match power {
            Power::Kubelet => self.keep_containers(&pod),
            Power::Agent(_) => Ok(()),
        };
        keep()?;
        match power {
            Power::Kubelet => {
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
            keep()?;
            let over = has_ended(&self.pod(scenario).await?)
                && !volume.exists()
                && cgroups::find(|found| found == cgroup.as_str())?.is_empty();
            Ok(over.then_some(()))
        };
        eventually(END_LIMIT, "its end", over).await?;
        sleep(STABLE).await;
        Ok(())
    }

    /// A kubelet cannot remove a pod's containers after this. Those of a pod that it evicts or that is deleted it removes as
    /// soon as one of its looks, one each second, finds them dead; where that is before it has read how they ended, or their
    /// logs, it does not know any more. So some of its pods would end as unknown, or without words, and others not.
    ///
    /// What looks like an older log of a container must go before the container; a directory with something in it does not.
    /// Once a minute a kubelet removes all logs of evicted pods, wherefore this is done again and again.
    pub(super) fn keep_containers(&self, pod: &Value) -> Result<()> {
        let logs = self.stage.starter.dirs().logs(&self.identity(pod)?);
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            let name = container["name"].as_str().context("a container without a name")?;
            let dir = logs.join(name).join("0.log.kept/full");
            match fs::create_dir_all(&dir) {
                // The kubelet removes what is above it just now.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                created => created.with_context(|| format!("create {}", dir.display()))?,
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
