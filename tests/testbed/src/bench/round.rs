//! One round: the same pods are started and torn down, by direct calls or by the agent.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::figures::{first_seconds, median_seconds};
use super::usage::Usage;
use crate::containerd::{Cri, POLITE, TOOL_IMAGE};
use crate::pods::StartedPod;
use crate::rest::{EventType, Watch};
use crate::stage::{AgentProcess, NODE, Stage};
use crate::straight;

/// The runtime is still busy just after a start.
const SETTLE: Duration = Duration::from_secs(1);
/// Limit of a round.
pub(super) const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(5);
/// The API's default; pods here need almost none of it.
const GRACE: Duration = Duration::from_secs(30);
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";

/// As [`POLITE`], but needs four seconds to exit.
const SLOW: &str = "trap 'sleep 4; exit 0' TERM INT; while :; do read -r _ <>/wait; done";

/// How many pods, and of what kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Size {
    /// How many.
    pub pods: usize,
    /// Each like this.
    pub kind: Kind,
}

/// Properties of the pods, besides their one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing more.
    Plain,
    /// An emptyDir in memory.
    Memory,
    /// A preStop hook and a sidecar.
    Hooked,
    /// Four seconds from the stop signal to the exit.
    Slow,
}

/// Results of direct calls, in seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Straight {
    /// Until the last sandbox was stopped.
    pub last: f64,
    /// The median pod.
    pub median_pod: f64,
    /// The first pod.
    pub first_pod: f64,
}

/// Results of the agent.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Agent {
    /// Seconds from the first DELETE sent until the last DELETED event.
    pub last: f64,
    /// The same for the median pod.
    pub median_pod: f64,
    /// The same for the first pod.
    pub first_pod: f64,
    /// Seconds from then until the last pod's directory was removed, which the agent does last.
    pub clean_up: f64,
    /// CPU milliseconds per pod until the last DELETED event.
    pub cpu_deleted: f64,
    /// CPU milliseconds per pod until all was cleaned up.
    pub cpu_cleaned: f64,
    /// Resident MiB while the pods ran.
    pub resident_idle: f64,
    /// The most resident MiB from the first DELETE until all was cleaned up.
    pub resident_peak: f64,
    /// Durable writes of the journal for all pods together.
    pub commits: f64,
    /// Microseconds for one of them.
    pub commit_us: f64,
}

/// Tears pods down without the agent, and removes them.
pub async fn straight(stage: &Stage, cri: &Cri, size: Size) -> Result<Straight> {
    let pods: Vec<_> = size
        .manifests()
        .into_iter()
        .map(|mut pod| {
            pod["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
            pod["spec"]["nodeName"] = NODE.into();
            pod
        })
        .collect();
    // The agent does not know these: they are not in the API.
    let started = stage.starter.start_all(&pods).await.context("start the pods")?;
    sleep(SETTLE).await;
    let times = straight::teardown(cri.clone(), &started, GRACE).await?;
    stage.starter.clear_all_away(&started).await?;
    Ok(Straight {
        last: times.total.as_secs_f64(),
        median_pod: median_seconds(&times.pods),
        first_pod: first_seconds(&times.pods),
    })
}

/// Deletes pods in the API, and waits for the agent.
pub async fn agent(stage: &Stage, agent: &AgentProcess, size: Size) -> Result<Agent> {
    let started = stage.run_pods(&size.manifests()).await.context("start the pods")?;
    sleep(SETTLE).await;
    let usage = Usage::of(agent.pid().context("the agent has ended")?);
    let journal = Journal::of(agent).await?;
    let resident_idle = usage.resident()?;
    usage.forget_peak()?;
    let list = stage.admin.list(PODS, &[]).await?.ok()?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let watch = stage.admin.watch(PODS, &[("resourceVersion", version)]).await?;

    let before = usage.cpu()?;
    let begin = Instant::now();
    let deletes = try_join_all(
        started
            .iter()
            .map(|pod| stage.admin.delete_pod("default", &pod.identity.name, None)),
    );
    let limited = timeout(LIMIT, async {
        tokio::try_join!(async { Ok(deletes.await?) }, deletions(watch, &started, begin))
    });
    let (_, times) = limited.await.map_err(|_| late("deleted", agent))??;
    let last = begin.elapsed();
    let deleted_cpu = usage.cpu()?;
    wait_until_clean(stage, &started, agent).await?;
    let clean_up = begin.elapsed() - last;
    let cleaned_cpu = usage.cpu()?;
    let resident_peak = usage.peak()?;

    // Said soon, not at once.
    sleep(SETTLE).await;
    let (commits, commit_us) = journal.since(agent).await?;
    let left = stage.leftovers(&started).await?;
    ensure!(left.is_empty(), "the agent has left something behind:\n{left}");
    let per_pod = |until: Duration| (until - before).as_secs_f64() * 1000.0 / cast(started.len());
    Ok(Agent {
        last: last.as_secs_f64(),
        median_pod: median_seconds(&times),
        first_pod: first_seconds(&times),
        clean_up: clean_up.as_secs_f64(),
        cpu_deleted: per_pod(deleted_cpu),
        cpu_cleaned: per_pod(cleaned_cpu),
        resident_idle,
        resident_peak,
        commits,
        commit_us,
    })
}

/// What durable writes have cost the agent so far.
struct Journal {
    commits: f64,
    us: f64,
}

impl Journal {
    async fn of(agent: &AgentProcess) -> Result<Self> {
        let counters = agent.status().await?["counters"].take();
        let count = |name: &str| {
            counters[name]
                .as_f64()
                .with_context(|| format!("the status has no {name}"))
        };
        Ok(Self {
            commits: count("journalCommits")?,
            us: count("journalCommitsUs")?,
        })
    }

    /// How many were made since then, and how long one took.
    async fn since(&self, agent: &AgentProcess) -> Result<(f64, f64)> {
        let now = Self::of(agent).await?;
        let commits = now.commits - self.commits;
        Ok((commits, (now.us - self.us) / commits.max(1.0)))
    }
}

/// When each pod's DELETED event came.
pub(super) async fn deletions(mut watch: Watch, pods: &[StartedPod], begin: Instant) -> Result<Vec<Duration>> {
    let mut times: BTreeMap<&str, Option<Duration>> = pods.iter().map(|pod| (pod.uid(), None)).collect();
    let mut missing = times.len();
    while missing > 0 {
        let Some(event) = watch.next().await? else {
            bail!("the API server has ended the watch")
        };
        let uid = event.object["metadata"]["uid"].as_str().unwrap_or_default();
        if let (EventType::Deleted, Some(time @ None)) = (event.kind, times.get_mut(uid)) {
            *time = Some(begin.elapsed());
            missing -= 1;
        }
    }
    Ok(times.into_values().flatten().collect())
}

/// Checks only the directories: a request to the agent would cost measured time.
pub(super) async fn wait_until_clean(stage: &Stage, pods: &[StartedPod], agent: &AgentProcess) -> Result<()> {
    let parent = stage.starter.dirs().pods();
    let begin = Instant::now();
    loop {
        let names: Vec<_> = fs::read_dir(&parent)
            .with_context(|| format!("read {}", parent.display()))?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        if !names.iter().any(|name| pods.iter().any(|pod| name == pod.uid())) {
            return Ok(());
        }
        if begin.elapsed() > LIMIT {
            return Err(late("cleaned up", agent));
        }
        sleep(POLL).await;
    }
}

pub(super) fn late(what: &str, agent: &AgentProcess) -> anyhow::Error {
    anyhow::anyhow!(
        "not all pods are {what} after {LIMIT:?}; the agent's log ends:\n{}",
        agent.log_tail()
    )
}

#[allow(clippy::cast_precision_loss, reason = "pods on one node are few")]
fn cast(count: usize) -> f64 {
    count as f64
}

// === impl Size ===

impl Size {
    pub(super) fn manifests(self) -> Vec<Value> {
        (0..self.pods).map(|index| self.manifest(index)).collect()
    }

    fn manifest(self, index: usize) -> Value {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": format!("pod-{index}"), "namespace": "default" },
            "spec": {
                "containers": [{ "name": "main", "image": TOOL_IMAGE, "command": ["sh", "-c", POLITE] }],
            },
        });
        match self.kind {
            Kind::Plain => {}
            Kind::Slow => pod["spec"]["containers"][0]["command"][2] = SLOW.into(),
            Kind::Memory => {
                pod["spec"]["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory" } }]);
                pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
            }
            Kind::Hooked => {
                let sidecar = json!({
                    "name": "sidecar", "image": TOOL_IMAGE, "command": ["sh", "-c", POLITE], "restartPolicy": "Always",
                });
                pod["spec"]["initContainers"] = json!([sidecar]);
                pod["spec"]["containers"][0]["lifecycle"] = json!({ "preStop": { "exec": { "command": ["true"] } } });
            }
        }
        pod
    }
}
