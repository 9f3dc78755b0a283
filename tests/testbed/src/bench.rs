//! The benchmark: direct CRI calls and the agent tear down the same pods, in turn, on the same containerd.
//!
//! `plan → round (direct ⇄ agent) → figures → table`, and the same for pods that wait for a takeover. The API server is a
//! separate process. One agent process runs through all rounds of a size, so that its memory shows leaks. Pods of a real
//! kubelet are measured alone, because they need a real control plane.

#![allow(clippy::print_stdout, reason = "this is the bench's output")]

pub mod figures;
pub mod line;
pub mod of_kubelet;
pub mod round;
pub mod size;
pub mod table;
pub mod takeover;
pub mod usage;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use self::size::{Kind, Size};
use self::table::Measured;
use self::takeover::Takeover;
use crate::apiserver::process::ApiServerProcess;
use crate::control_plane::ControlPlane;
use crate::stage::{NODE, Stage};

/// From this many pods on, three kinds of pods are measured: with an emptyDir in memory, with a hook and a sidecar, and with four
/// seconds until exit.
const FULL_NODE: usize = 100;

/// What is measured, and with what.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many pods at a time, one size after the other.
    pub pods: Vec<usize>,
    /// Number of pods that wait for a takeover.
    pub waiting: usize,
    /// Rounds per contender.
    pub rounds: usize,
    /// Whether a real kubelet makes the pods; then none wait for a takeover.
    pub of_kubelet: bool,
    /// Whether that kubelet has a turn, too.
    pub against_kubelet: bool,
    /// The agent's program.
    pub agent: PathBuf,
    /// The API server's program.
    pub apiserver: PathBuf,
    /// File for the figures as JSON.
    pub json: Option<PathBuf>,
}

// === impl Plan ===

impl Plan {
    /// Measures, and prints what was measured.
    pub async fn run(&self) -> Result<()> {
        let apiserver = (!self.of_kubelet).then_some(&self.apiserver);
        for program in [Some(&self.agent), apiserver].into_iter().flatten() {
            ensure!(program.is_file(), "there is no {}: build it first", program.display());
        }
        ensure!(
            self.rounds > 0 && self.waiting > 0 && !self.pods.contains(&0),
            "no rounds or no pods: there is nothing to measure"
        );
        let begin = Instant::now();
        let stage = self.stage().await.context("set the stage")?;
        let machine = machine(&stage)?;
        println!("{machine}");
        let measured = async {
            let sizes = self.all(&stage).await?;
            if self.of_kubelet {
                return Ok((sizes, None));
            }
            let taken_over = Takeover::measure(&stage, &self.agent, self.waiting, self.rounds).await?;
            Ok::<_, anyhow::Error>((sizes, Some(taken_over)))
        };
        let measured = measured.await;
        let put_away = stage.containerd.stop().await.context("put the node away");
        let (measured, taken_over) = measured?;
        put_away?;
        let of_these = if self.of_kubelet { OF_KUBELET } else { IN_MEMORY };
        println!("\n{machine}\n{METHOD}\n{of_these}");
        for measured in &measured {
            println!("\n{}", measured.table().trim_end());
        }
        if let Some(taken_over) = &taken_over {
            println!("\n{}", taken_over.table().trim_end());
        }
        let minutes = begin.elapsed().as_secs_f64() / 60.0;
        println!("\nLoad {} at the end, after {minutes:.1} minutes.", load()?);
        match &self.json {
            Some(file) => write(file, &machine, &measured, taken_over.as_ref()),
            None => Ok(()),
        }
    }

    async fn stage(&self) -> Result<Stage> {
        if self.of_kubelet {
            return Stage::set_for_a_kubelet(Box::new(ControlPlane::start().await?), NODE).await;
        }
        Stage::set(Box::new(ApiServerProcess::start(&self.apiserver).await?)).await
    }

    async fn all(&self, stage: &Stage) -> Result<Vec<Measured>> {
        let mut all = Vec::new();
        for &pods in &self.pods {
            if self.of_kubelet {
                all.push(of_kubelet::measure(stage, &self.agent, pods, self.rounds, self.against_kubelet).await?);
                continue;
            }
            let full = pods >= FULL_NODE;
            let kind = if full { Kind::Memory } else { Kind::Plain };
            all.push(self.size(stage, Size { pods, kind }).await?);
            if full {
                for kind in [Kind::Hooked, Kind::Slow] {
                    all.push(self.size(stage, Size { pods, kind }).await?);
                }
            }
        }
        Ok(all)
    }

    async fn size(&self, stage: &Stage, size: Size) -> Result<Measured> {
        let agent = stage.start_agent(&self.agent, &[]).await?;
        let cri = stage.containerd.cri();
        let mut measured = Measured::of(size);
        for round in 0..self.rounds {
            let direct = round::direct(stage, &cri, size);
            let (direct, by_agent) = round::both(round, direct, round::agent(stage, &agent, size)).await?;
            println!("{}", measured.add(direct, by_agent));
        }
        let code = agent.stop().await?;
        ensure!(code == Some(0), "the agent ended with exit code {code:?}");
        Ok(measured)
    }
}

const METHOD: &str = "\
Direct calls: ExecSync for hooks, StopContainer and StopPodSandbox, all pods in parallel, from the first call to the last answer.
Agent: from the first DELETE sent to the last DELETED event of a watch.
Both in every round, the other one first each time. CPU: user and system time of the agent's process. Resident: VmRSS
with the pods running and at the peak of a round; one agent process per size, through all rounds. Anonymous: without the pages
of the program and its libraries, which the kernel can drop.";
const IN_MEMORY: &str = "\
The API server is in memory, a process of its own. Takeover: from the end of --take-over-after to the last DELETED event, of
pods that were deleted before.";
const OF_KUBELET: &str = "\
API server, etcd and kubelet are real. The kubelet makes the pods, and is killed before direct calls or the agent tear them
down. Kubelet: the same deletion, by a kubelet that is not killed.";

/// What is measured on: runtime, processors and load.
pub fn machine(stage: &Stage) -> Result<String> {
    Ok(format!(
        "containerd {}, {}",
        stage.containerd.version(),
        processors_and_load()?
    ))
}

/// Number of processors, and load.
pub fn processors_and_load() -> Result<String> {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    Ok(format!("{processors} processors, load {} at the start", load()?))
}

/// Load average of the last minute.
pub fn load() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

fn write(file: &Path, machine: &str, measured: &[Measured], taken_over: Option<&Takeover>) -> Result<()> {
    let sizes: Vec<_> = measured
        .iter()
        .map(|measured| json!({ "summary": measured.lines(), "rounds": measured }))
        .collect();
    let taken_over = taken_over.map(|it| json!({ "summary": it.lines(), "rounds": it }));
    let text = serde_json::to_string_pretty(&json!({ "machine": machine, "sizes": sizes, "takenOver": taken_over }))?;
    fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
}
