//! The standby benchmark: an idle agent beside a kubelet that runs a node full of pods.
//!
//! `plan → control plane, containerd, kubelet → pods → agent → samples → table`. Everything is real, and the agent gets
//! no requests while it is measured.

#![allow(clippy::print_stdout, reason = "this is the bench's output")]

pub mod memory;
pub mod pods;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use tokio::{
    net::UnixDatagram,
    time::{Instant, sleep_until},
};

use self::memory::Memory;
use crate::{
    bench::{
        figures::Figures,
        line::{self, Line},
        load, machine,
        usage::Usage,
    },
    control_plane::ControlPlane,
    kubelet::Kubelet,
    stage::{AgentProcess, NODE, Stage},
};

/// Limit of resident memory, in MiB.
const RESIDENT: f64 = 10.0;
/// Limit of CPU usage, in percent of one processor.
const CPU: f64 = 0.02;
/// Pause after the pods have started, and again after the agent has.
const SETTLE: Duration = Duration::from_secs(30);
/// Number of intervals between samples.
const INTERVALS: u32 = 10;

/// What is measured, and with what.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Duration of the measurement.
    pub time: Duration,
    /// How many pods the kubelet runs.
    pub pods: usize,
    /// The agent's program.
    pub agent: PathBuf,
    /// File for the figures as JSON.
    pub json: Option<PathBuf>,
}

/// Values at one moment.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    /// Seconds since the first sample.
    at: f64,
    /// Of the processor so far, in seconds.
    cpu: f64,
    memory: Memory,
    /// The most resident memory since the agent was started, in MiB.
    peak: f64,
    threads: usize,
}

// === impl Plan ===

impl Plan {
    /// Measures, and prints what was measured.
    pub async fn run(&self) -> Result<()> {
        let program = self.agent.display();
        ensure!(self.agent.is_file(), "there is no {program}: build it first");
        ensure!(!self.time.is_zero(), "no time: there is nothing to measure");
        let plane = ControlPlane::start().await?;
        let stage = Stage::set_for_a_kubelet(Box::new(plane), NODE).await?;
        let machine = machine(&stage)?;
        println!("{machine}\n{}", programs(&self.agent));
        let measured = self.measure(&stage).await;
        let put_away = stage.containerd.stop().await.context("put the node away");
        let (samples, restarts) = measured?;
        put_away?;
        let (pods, time) = (self.pods, humantime::format_duration(self.time));
        let title = format!("{pods} pods beside a kubelet, {time}; {restarts} restarts of containers meanwhile");
        println!("\n{METHOD}\n\n{}", line::table(&title, &lines(&samples)).trim_end());
        println!("\nLoad {} at the end.", load()?);
        match &self.json {
            None => Ok(()),
            Some(file) => {
                let figures = json!({ "machine": machine, "pods": pods, "restarts": restarts, "samples": samples });
                fs::write(file, format!("{figures:#}\n")).with_context(|| format!("write {}", file.display()))
            }
        }
    }

    async fn measure(&self, stage: &Stage) -> Result<(Vec<Sample>, i64)> {
        let kubelet = Kubelet::start(stage).await?;
        println!("The kubelet is ready; it starts {} pods", self.pods);
        pods::run(stage, &kubelet, self.pods).await?;
        println!("All pods run");
        sleep_until(Instant::now() + SETTLE).await;
        // Replaces the service manager's notify socket.
        let manager = stage.containerd.workspace().dir().join("notify.sock");
        let notified = UnixDatagram::bind(&manager).with_context(|| format!("listen at {}", manager.display()))?;
        let agent = AgentProcess::start_service(stage, &self.agent, &manager).await?;
        let sampling = async {
            sleep_until(Instant::now() + SETTLE).await;
            let restarted = pods::restarts(stage).await?;
            let samples = self.measure_all(&agent).await?;
            let is_standby = agent.status().await?["role"]["reason"] == "kubelet-alive";
            ensure!(
                is_standby,
                "the agent does not stand by for the kubelet:\n{}",
                agent.log_tail()
            );
            Ok((samples, pods::restarts(stage).await? - restarted))
        };
        let sampled = tokio::select! {
            sampled = sampling => sampled?,
            never = receive_notifications(&notified) => never?,
        };
        let code = agent.stop().await?;
        ensure!(code == Some(0), "the agent ended with exit code {code:?}");
        kubelet.stop().await?;
        Ok(sampled)
    }

    async fn measure_all(&self, agent: &AgentProcess) -> Result<Vec<Sample>> {
        let pid = agent.pid().context("the agent has ended")?;
        println!("The agent is standby; its pid is {pid}");
        let begin = Instant::now();
        let mut samples: Vec<Sample> = Vec::new();
        for turn in 0..=INTERVALS {
            sleep_until(begin + self.time / INTERVALS * turn).await;
            let sample = Sample::at(pid, begin)?;
            println!("{sample}");
            samples.push(sample);
        }
        Ok(samples)
    }
}

const METHOD: &str = "\
Control plane, containerd and kubelet are real, and the agent has the node's credentials, its defaults, and a service manager
that it notifies. Resident memory as the kernel counts it for the process, in ten samples and one at the begin; CPU: user
and system time of all its threads, of one processor. No other client queries the agent.";

/// Receives the agent's notifications without end.
async fn receive_notifications<T>(notified: &UnixDatagram) -> Result<T> {
    let mut buffer = [0; 4096];
    loop {
        notified.recv(&mut buffer).await.context("listen to the agent")?;
    }
}

/// Version and build of the agent.
fn programs(agent: &PathBuf) -> String {
    let size = fs::metadata(agent).map_or(0, |found| found.len());
    let version = Command::new(agent).arg("--version").output();
    let version = version.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
    format!("{}, {size} bytes", version.unwrap_or_default())
}

fn lines(samples: &[Sample]) -> Vec<Line> {
    let line = Line::at_most;
    let memory = |of: fn(&Memory) -> f64| Figures::of(samples.iter().map(|sample| of(&sample.memory)));
    let share = |(before, after): (&Sample, &Sample)| 100.0 * (after.cpu - before.cpu) / (after.at - before.at);
    let whole = samples.first().zip(samples.last()).map(share);
    let parts = samples.iter().zip(samples.iter().skip(1)).map(share);
    vec![
        line("resident", "MiB", memory(|it| it.resident), Some(RESIDENT)),
        line("  of it pages of files", "MiB", memory(|it| it.of_files()), None),
        line("  of it anonymous", "MiB", memory(|it| it.anonymous), None),
        line(
            "resident, shared pages in part",
            "MiB",
            memory(|it| it.proportional),
            None,
        ),
        line(
            "resident, peak since the start",
            "MiB",
            Figures::of(samples.last().map(|sample| sample.peak)),
            None,
        ),
        line("CPU, of one processor", "%", Figures::of(whole), Some(CPU)),
        line("CPU, each tenth of the time", "%", Figures::of(parts), None),
    ]
}

// === impl Sample ===

impl Sample {
    fn at(pid: u32, begin: Instant) -> Result<Self> {
        let usage = Usage::of(pid);
        let tasks = format!("/proc/{pid}/task");
        Ok(Self {
            at: begin.elapsed().as_secs_f64(),
            cpu: usage.cpu()?.as_secs_f64(),
            memory: Memory::of(pid)?,
            peak: usage.peak()?,
            threads: fs::read_dir(&tasks).with_context(|| format!("read {tasks}"))?.count(),
        })
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            at,
            cpu,
            memory,
            peak,
            threads,
        } = self;
        let (resident, anonymous) = (memory.resident, memory.anonymous);
        write!(
            f,
            "{at:5.0} s: {resident:.2} MiB resident, {anonymous:.2} of it anonymous, {peak:.2} at the peak; {threads} threads; \
             {cpu:.3} s of CPU so far"
        )
    }
}
