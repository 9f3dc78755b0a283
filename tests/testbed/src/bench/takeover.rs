//! Pods that were deleted while neither kubelet nor agent ran: direct calls tear them down, or an agent that takes over.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::{
    figures::Figures,
    line::{self, Line},
    round::{self, LIMIT},
    size::{Kind, Size},
};
use crate::stage::{AgentProcess, Stage};

/// As a multiple of the direct calls.
const RATIO: f64 = 1.15;
/// Threshold without a kubelet in seconds, which is not measured.
pub(super) const AFTER: u32 = 2;

/// All rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Takeover {
    /// How many pods waited.
    pub pods: usize,
    /// Direct calls, round by round.
    pub direct: Vec<Figures>,
    /// The agent in the same rounds: seconds from the end of the threshold until the last DELETED event.
    pub agent: Vec<f64>,
}

// === impl Takeover ===

impl Takeover {
    /// Measures it, with a new agent in each round.
    pub async fn measure(stage: &Stage, program: &Path, pods: usize, rounds: usize) -> Result<Self> {
        let (size, cri) = (
            Size {
                pods,
                kind: Kind::Plain,
            },
            stage.containerd.cri(),
        );
        let mut taken_over = Self {
            pods,
            direct: Vec::new(),
            agent: Vec::new(),
        };
        for round in 0..rounds {
            let direct = round::direct(stage, &cri, size);
            let (direct, agent) = round::both(round, direct, by_agent(stage, program, size)).await?;
            println!(
                "{pods:3} waiting pods, round {} of {rounds}: direct calls {:.3} s, agent {agent:.3} s",
                round + 1,
                direct.max,
            );
            taken_over.direct.push(direct);
            taken_over.agent.push(agent);
        }
        Ok(taken_over)
    }

    /// The table's lines.
    pub fn lines(&self) -> Vec<Line> {
        let line = Line::at_most;
        let direct = || self.direct.iter().map(|it| it.max);
        let pairs = direct().zip(&self.agent).map(|(direct, agent)| agent / direct);
        vec![
            line("direct calls: last pod", "s", Figures::of(direct()), None),
            line("agent: last pod", "s", Figures::of(self.agent.iter().copied()), None),
            line("agent / direct calls", "", Figures::of(pairs), Some(RATIO)),
        ]
    }

    /// The lines for people.
    pub fn table(&self) -> String {
        let title = format!(
            "{} pods that waited for a takeover; {} rounds",
            self.pods,
            self.agent.len()
        );
        line::table(&title, &self.lines())
    }
}

async fn by_agent(stage: &Stage, program: &Path, size: Size) -> Result<f64> {
    let pods = stage.run_pods(&size.manifests()).await.context("start the pods")?;
    round::request_deletion(stage, &pods, None).await?;
    let watch = round::watch(stage).await?;

    let (wall, begin) = (Timestamp::now(), Instant::now());
    let endpoint = stage.containerd.endpoint();
    let after = format!("{AFTER}s");
    let agent = AgentProcess::start_beside(stage, program, &endpoint, &["--take-over-after", &after]).await?;
    let gone = agent.during(async {
        let gone = timeout(LIMIT, round::deletions(watch, &pods, begin)).await;
        let gone = gone.with_context(|| round::late("deleted"))??;
        round::wait_until_clean(stage, &pods).await?;
        Ok(gone)
    });
    let gone = gone.await?;
    let role = agent.status().await?["role"].take();
    if role["role"] != "active" {
        bail!("the agent has not taken over: {role}");
    }
    // The threshold expires when each probe has been down for this long.
    let probes = role["probes"].as_array().context("probes of a kubelet")?;
    let mut silent = Timestamp::MIN;
    for sign in probes {
        let since: Timestamp = sign["since"].as_str().context("since when")?.parse()?;
        silent = silent.max(since);
    }
    let over = silent + SignedDuration::from_secs(AFTER.into());
    let active_since: Timestamp = role["since"].as_str().context("since when")?.parse()?;
    ensure!(
        active_since + SignedDuration::from_millis(50) >= over,
        "a probe has changed after the takeover, so the end of its threshold is unknown: {role}"
    );
    let over = over.duration_since(wall);
    let left = stage.leftovers(&pods).await?;
    ensure!(left.is_empty(), "the agent has left something behind:\n{left}");
    let code = agent.stop().await?;
    ensure!(code == Some(0), "the agent ended with exit code {code:?}");
    let last = gone.into_iter().max().unwrap_or_default();
    Ok(last.as_secs_f64() - over.as_secs_f64())
}
