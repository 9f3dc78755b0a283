//! One round: the same pods are started and torn down, by direct calls or by the agent.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::figures::Figures;
use super::size::Size;
use super::usage::Usage;
use crate::containerd::Cri;
use crate::direct_calls;
use crate::pods::StartedPod;
use crate::rest::{EventType, Watch};
use crate::stage::{AgentProcess, NODE, PODS, Stage};

/// The runtime is still busy just after a start.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// Limit of a round.
pub(super) const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(5);
/// The API's default; pods here need almost none of it.
const GRACE: Duration = Duration::from_secs(30);

/// Results of the agent.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Agent {
    /// Seconds from the first DELETE sent until the DELETED event of each pod.
    pub pods: Figures,
    /// Seconds from the last of them until the last pod's directory was removed, which the agent does last.
    pub clean_up: f64,
    /// CPU milliseconds per pod until the last DELETED event.
    pub cpu_deleted: f64,
    /// CPU milliseconds per pod until all was cleaned up.
    pub cpu_cleaned: f64,
    /// Resident MiB while the pods ran.
    pub resident_idle: f64,
    /// Anonymous ones of these.
    pub anonymous_idle: f64,
    /// The most resident MiB from the first DELETE until all was cleaned up.
    pub resident_peak: f64,
    /// These without the pages of files that were resident at the end: such pages hardly ever leave.
    pub anonymous_peak: f64,
    /// Durable writes of the journal for all pods together.
    pub commits: f64,
    /// Microseconds for one of them.
    pub commit_us: f64,
}

/// One round: direct calls and the agent, the other one first each time.
pub(super) async fn both<S, A>(
    round: usize,
    direct: impl Future<Output = Result<S>>,
    agent: impl Future<Output = Result<A>>,
) -> Result<(S, A)> {
    if round.is_multiple_of(2) {
        let direct = direct.await?;
        Ok((direct, agent.await?))
    } else {
        let agent = agent.await?;
        Ok((direct.await?, agent))
    }
}

/// Tears pods down without the agent, and removes them; returns the seconds until the sandbox of each was stopped.
pub async fn direct(stage: &Stage, cri: &Cri, size: Size) -> Result<Figures> {
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
    direct_calls(stage, cri, &started).await
}

/// As [`direct`], for pods that run.
pub(super) async fn direct_calls(stage: &Stage, cri: &Cri, pods: &[StartedPod]) -> Result<Figures> {
    sleep(SETTLE).await;
    let times = direct_calls::teardown(cri.clone(), pods, GRACE).await?;
    stage.starter.clear_all_away(pods).await?;
    Ok(Figures::of_seconds(&times.pods))
}

/// Starts pods, deletes them in the API, and waits for the agent.
pub async fn agent(stage: &Stage, agent: &AgentProcess, size: Size) -> Result<Agent> {
    let started = stage.run_pods(&size.manifests()).await.context("start the pods")?;
    agent_deletes(stage, agent, &started).await
}

/// As [`agent`], for pods that run.
pub(super) async fn agent_deletes(stage: &Stage, agent: &AgentProcess, pods: &[StartedPod]) -> Result<Agent> {
    sleep(SETTLE).await;
    let usage = Usage::of(agent.pid().context("the agent has ended")?);
    let journal = Journal::of(agent).await?;
    let (resident_idle, anonymous_idle) = (usage.resident()?, usage.anonymous()?);
    usage.forget_peak()?;

    let before = usage.cpu()?;
    let times = agent.during(delete(stage, pods)).await?;
    let last = Instant::now();
    let deleted_cpu = usage.cpu()?;
    agent.during(wait_until_clean(stage, pods)).await?;
    let clean_up = last.elapsed();
    let cleaned_cpu = usage.cpu()?;
    let resident_peak = usage.peak()?;
    let anonymous_peak = resident_peak - usage.of_files()?;

    // The status shows the counters with a delay.
    sleep(SETTLE).await;
    let (commits, commit_us) = journal.since(agent).await?;
    let left = stage.leftovers(pods).await?;
    ensure!(left.is_empty(), "the agent has left something behind:\n{left}");
    Ok(Agent {
        pods: Figures::of_seconds(&times),
        clean_up: clean_up.as_secs_f64(),
        cpu_deleted: ms_per_pod(deleted_cpu - before, pods),
        cpu_cleaned: ms_per_pod(cleaned_cpu - before, pods),
        resident_idle,
        anonymous_idle,
        resident_peak,
        anonymous_peak,
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

/// A watch of all pods from now on.
pub(super) async fn watch(stage: &Stage) -> Result<Watch> {
    let list = stage.admin.list(PODS, &[]).await?.ok()?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    Ok(stage.admin.watch(PODS, &[("resourceVersion", version)]).await?)
}

/// Deletes pods in the API, with this grace period or their own.
pub(super) async fn request_deletion(stage: &Stage, pods: &[StartedPod], grace: Option<i64>) -> Result<()> {
    let names = pods.iter().map(|pod| &pod.identity.name);
    let deletes = names.map(|name| stage.admin.delete_pod("default", name, grace));
    try_join_all(deletes).await.map(drop).context("delete the pods")
}

/// Deletes pods in the API; returns when each pod's DELETED event came.
pub(super) async fn delete(stage: &Stage, pods: &[StartedPod]) -> Result<Vec<Duration>> {
    let watch = watch(stage).await?;
    let begin = Instant::now();
    let both = async { tokio::try_join!(request_deletion(stage, pods, None), deletions(watch, pods, begin)) };
    let deleted = timeout(LIMIT, both).await.with_context(|| late("deleted"))?;
    deleted.map(|((), times)| times)
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
pub(super) async fn wait_until_clean(stage: &Stage, pods: &[StartedPod]) -> Result<()> {
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
        ensure!(begin.elapsed() <= LIMIT, late("cleaned up"));
        sleep(POLL).await;
    }
}

pub(super) fn late(what: &str) -> String {
    format!("not all pods are {what} after {LIMIT:?}")
}

/// Milliseconds per pod.
#[allow(clippy::cast_precision_loss, reason = "pods on one node are few")]
pub(super) fn ms_per_pod(time: Duration, pods: &[StartedPod]) -> f64 {
    time.as_secs_f64() * 1000.0 / pods.len() as f64
}
