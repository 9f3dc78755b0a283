//! One round: pods are started and torn down, by direct calls or by the agent.

use std::{collections::BTreeMap, fmt, fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Figures, Table,
    usage::{ANONYMOUS, OF_FILES, PEAK, RESIDENT, Usage},
};
use crate::{
    containerd::{POLITE, TOOL_IMAGE},
    direct_calls,
    pods::StartedPod,
    rest::{EventType, Watch},
    stage::{AgentProcess, NODE, PODS, Stage},
};

/// The runtime is still busy just after a start.
pub const SETTLE: Duration = Duration::from_secs(1);
pub const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(5);
/// The API's default; pods here need almost none of it.
const GRACE: Duration = Duration::from_secs(30);
/// As [`POLITE`], but needs four seconds to exit.
const SLOW: &str = "trap 'sleep 4; exit 0' TERM INT; while :; do read -r _ <>/wait; done";

/// Properties of the pods, besides their one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// An emptyDir in memory.
    Memory,
    /// A preStop hook and a sidecar.
    Hooked,
    Slow,
    /// As [`Self::Memory`], made by a real kubelet.
    OfKubelet,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "pods",
            Self::Memory => "pods, each with an emptyDir in memory",
            Self::Hooked => "pods, each with a preStop hook and a sidecar",
            Self::Slow => "pods, each exits four seconds after its stop signal",
            Self::OfKubelet => "pods that a kubelet has made, each with an emptyDir in memory",
        })
    }
}

impl Kind {
    pub fn manifests(self, count: usize) -> Vec<Value> {
        (0..count).map(|index| self.manifest(index)).collect()
    }

    /// As an API server would have stored them.
    pub fn unstored(self, count: usize) -> Vec<Value> {
        let mut pods = self.manifests(count);
        for pod in &mut pods {
            pod["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
            pod["spec"]["nodeName"] = NODE.into();
        }
        pods
    }

    fn manifest(self, index: usize) -> Value {
        let container = |name: &str, script: &str| json!({ "name": name, "image": TOOL_IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script] });
        let script = if self == Self::Slow { SLOW } else { POLITE };
        let mut spec = json!({ "containers": [container("main", script)] });
        match self {
            Self::Plain | Self::Slow => {}
            Self::Memory | Self::OfKubelet => {
                spec["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory" } }]);
                spec["containers"][0]["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
            }
            Self::Hooked => {
                spec["initContainers"] = json!([container("sidecar", POLITE)]);
                spec["initContainers"][0]["restartPolicy"] = "Always".into();
                spec["containers"][0]["lifecycle"] = json!({ "preStop": { "exec": { "command": ["true"] } } });
            }
        }
        let metadata = json!({ "name": format!("pod-{index}"), "namespace": "default" });
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
    }
}

/// Tears running pods down without the agent, and removes them. Times until each pod's sandbox is stopped.
pub async fn direct_calls(stage: &Stage, pods: &[StartedPod]) -> Result<Figures> {
    let times = direct_calls::teardown(stage.containerd.cri(), pods, GRACE).await?;
    stage.starter.clear_all_away(pods).await?;
    Ok(Figures::of(times.iter().map(Duration::as_secs_f64)))
}

/// Deletes running pods in the API, and waits for the agent. Times until each pod's DELETED event.
pub async fn agent_deletes(
    stage: &Stage,
    agent: &AgentProcess,
    pods: &[StartedPod],
    table: &mut Table,
) -> Result<Figures> {
    let usage = Usage(agent.pid().context("the agent has ended")?);
    let commits_before = commits(agent).await?;
    table.add("agent: resident, pods running", "MiB", [usage.mib(RESIDENT)?]);
    table.add("agent: anonymous, pods running", "MiB", [usage.mib(ANONYMOUS)?]);
    usage.reset_peak()?;

    let before = usage.cpu()?;
    let times = agent.during(delete(stage, pods)).await?;
    let last = Instant::now();
    let cpu = ms_per_pod(usage.cpu()? - before, pods);
    table.add_with_goal("agent: CPU per pod until deleted", "ms", Some(2.0), [cpu]);
    agent.during(wait_until_clean(stage, pods)).await?;
    table.add(
        "agent: clean-up after the last pod",
        "s",
        [last.elapsed().as_secs_f64()],
    );
    table.add(
        "agent: CPU per pod until clean",
        "ms",
        [ms_per_pod(usage.cpu()? - before, pods)],
    );
    let peak = usage.mib(PEAK)?;
    table.add_with_goal("agent: resident, peak", "MiB", Some(16.0), [peak]);
    table.add_with_goal(
        "agent: anonymous, peak",
        "MiB",
        Some(6.0),
        [peak - usage.mib(OF_FILES)?],
    );

    // The status shows the counters with a delay.
    sleep(SETTLE).await;
    let [number, us] = commits(agent).await?;
    let number = number - commits_before[0];
    table.add("agent: durable writes, all pods", "no.", [number]);
    table.add(
        "agent: one durable write",
        "µs",
        [(us - commits_before[1]) / number.max(1.0)],
    );
    let left = stage.leftovers(pods).await?;
    ensure!(left.is_empty(), "the agent has left something behind:\n{left}");
    Ok(times)
}

/// Number of durable writes so far, and their microseconds.
async fn commits(agent: &AgentProcess) -> Result<[f64; 2]> {
    let counters = agent.status().await?["counters"].take();
    Ok(["journalCommits", "journalCommitsUs"].map(|name| counters[name].as_f64().unwrap_or(f64::NAN)))
}

/// A watch of all pods from now on.
pub async fn watch(stage: &Stage) -> Result<Watch> {
    let list = stage.admin.list(PODS, &[]).await?.ok()?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    Ok(stage.admin.watch(PODS, &[("resourceVersion", version)]).await?)
}

/// Deletes pods in the API, with this grace period or their own.
pub async fn request_deletion(stage: &Stage, pods: &[StartedPod], grace: Option<i64>) -> Result<()> {
    let names = pods.iter().map(|pod| &pod.identity.name);
    let deletes = names.map(|name| stage.admin.delete_pod("default", name, grace));
    try_join_all(deletes).await.map(drop).context("delete the pods")
}

/// Deletes pods in the API; times until each pod's DELETED event.
pub async fn delete(stage: &Stage, pods: &[StartedPod]) -> Result<Figures> {
    let watch = watch(stage).await?;
    let begin = Instant::now();
    let both = async { tokio::try_join!(request_deletion(stage, pods, None), deletions(watch, pods, begin)) };
    let deleted = timeout(LIMIT, both).await.context("not all pods are deleted in time")?;
    deleted.map(|((), times)| times)
}

/// When each pod's DELETED event came.
pub async fn deletions(mut watch: Watch, pods: &[StartedPod], begin: Instant) -> Result<Figures> {
    let mut times: BTreeMap<&str, Option<Duration>> = pods.iter().map(|pod| (pod.uid(), None)).collect();
    while times.values().any(Option::is_none) {
        let Some(event) = watch.next().await? else {
            bail!("the API server has ended the watch")
        };
        let uid = event.object["metadata"]["uid"].as_str().unwrap_or_default();
        if let (EventType::Deleted, Some(time)) = (event.kind, times.get_mut(uid)) {
            time.get_or_insert(begin.elapsed());
        }
    }
    Ok(Figures::of(times.values().flatten().map(Duration::as_secs_f64)))
}

/// Checks only the directories: a request to the agent would cost measured time.
pub async fn wait_until_clean(stage: &Stage, pods: &[StartedPod]) -> Result<()> {
    let begin = Instant::now();
    let dirs = stage.starter.dirs();
    while pods.iter().any(|pod| fs::exists(dirs.pod(pod.uid())).unwrap_or(true)) {
        ensure!(begin.elapsed() <= LIMIT, "not all pods are cleaned up after {LIMIT:?}");
        sleep(POLL).await;
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "pods on one node are few")]
pub fn ms_per_pod(time: Duration, pods: &[StartedPod]) -> f64 {
    time.as_secs_f64() * 1000.0 / pods.len() as f64
}
