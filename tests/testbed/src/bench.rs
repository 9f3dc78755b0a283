//! The benchmark: direct CRI calls and the agent tear down the same pods, in turn, on the same containerd.
//!
//! `plan → round (direct ⇄ agent) → figures → table`, and the same for pods that wait for a takeover. The API server is a
//! separate process. One agent process runs through all rounds of a size, so that its memory shows leaks.

#![allow(clippy::print_stdout, reason = "this is the bench's output")]

pub mod figures;
pub mod line;
pub mod round;
pub mod table;
pub mod takeover;
pub mod usage;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use self::round::{Kind, Size};
use self::table::Measured;
use self::takeover::Takeover;
use crate::apiserver::process::ApiServerProcess;
use crate::stage::Stage;

/// From this many pods on it is a full node: each has an emptyDir in memory, then a hook and a sidecar, then
/// four seconds until its exit.
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
        for program in [&self.agent, &self.apiserver] {
            ensure!(program.is_file(), "there is no {}: build it first", program.display());
        }
        ensure!(
            self.rounds > 0 && self.waiting > 0 && !self.pods.contains(&0),
            "no rounds or no pods: there is nothing to measure"
        );
        let begin = Instant::now();
        let api = ApiServerProcess::start(&self.apiserver).await?;
        let stage = Stage::set(Box::new(api)).await.context("set the stage")?;
        let machine = format!(
            "containerd {}, {} processors, load {} at the start",
            stage.containerd.version(),
            std::thread::available_parallelism().map_or(0, usize::from),
            load()?,
        );
        println!("{machine}");
        let measured = async {
            let sizes = self.all(&stage).await?;
            let taken_over = Takeover::measure(&stage, &self.agent, self.waiting, self.rounds).await?;
            Ok::<_, anyhow::Error>((sizes, taken_over))
        };
        let measured = measured.await;
        let put_away = stage.containerd.stop().await.context("put the node away");
        let (measured, taken_over) = measured?;
        put_away?;
        println!("\n{machine}\n{METHOD}");
        for measured in &measured {
            println!("\n{}", measured.table().trim_end());
        }
        println!("\n{}", taken_over.table().trim_end());
        let minutes = begin.elapsed().as_secs_f64() / 60.0;
        println!("\nLoad {} at the end, after {minutes:.1} minutes.", load()?);
        match &self.json {
            Some(file) => write(file, &machine, &measured, &taken_over),
            None => Ok(()),
        }
    }

    async fn all(&self, stage: &Stage) -> Result<Vec<Measured>> {
        let mut all = Vec::new();
        for &pods in &self.pods {
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
        let mut measured = Measured {
            size,
            straight: Vec::new(),
            agent: Vec::new(),
        };
        for round in 0..self.rounds {
            let (straight, by_agent) = if round % 2 == 0 {
                let straight = round::straight(stage, &cri, size).await?;
                (straight, round::agent(stage, &agent, size).await?)
            } else {
                let by_agent = round::agent(stage, &agent, size).await?;
                (round::straight(stage, &cri, size).await?, by_agent)
            };
            println!(
                "{:3} pods, round {} of {}: straight calls {:.3} s, agent {:.3} s, {:.2} ms CPU per pod",
                size.pods,
                round + 1,
                self.rounds,
                straight.last,
                by_agent.last,
                by_agent.cpu_cleaned
            );
            measured.straight.push(straight);
            measured.agent.push(by_agent);
        }
        let code = agent.stop().await?;
        ensure!(code == Some(0), "the agent ended with exit code {code:?}");
        Ok(measured)
    }
}

const METHOD: &str = "\
Straight calls: ExecSync for hooks, StopContainer and StopPodSandbox, all pods in parallel, from the first call to the last answer.
Agent: from the first DELETE sent to the last DELETED event of a watch; API server in memory, a process of its own.
Both in every round, the other one first each time. CPU: user and system time of the agent's process. Resident: VmRSS
with the pods running and at the peak of a round; one agent process per size, through all rounds. Take-over: from the end
of --take-over-after to the last DELETED event, of pods that were deleted before.";

/// Load average of the last minute.
pub fn load() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

fn write(file: &Path, machine: &str, measured: &[Measured], taken_over: &Takeover) -> Result<()> {
    let sizes: Vec<_> = measured
        .iter()
        .map(|measured| json!({ "summary": measured.lines(), "rounds": measured }))
        .collect();
    let taken_over = json!({ "summary": taken_over.lines(), "rounds": taken_over });
    let text = serde_json::to_string_pretty(&json!({ "machine": machine, "sizes": sizes, "takenOver": taken_over }))?;
    fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
}
