//! Collectors as processes that are measured from outside.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::api::Access;
use crate::bench::usage::Usage;
use crate::control_plane::{ControlPlane, ControllerManager, Settings};
use crate::stage::AgentProcess;

/// Each question is a process of its own, on the processors that are measured.
const ASK: Duration = Duration::from_millis(50);
/// With a million objects on a busy machine.
const SYNC: Duration = Duration::from_secs(600);
/// Less than this part of one processor, for so long, is quiet.
const QUIET: f64 = 0.05;
const QUIET_FOR: u32 = 4;
const LOOK: Duration = Duration::from_millis(250);
const CALM_DOWN: Duration = Duration::from_secs(300);

/// A collector that has seen everything.
pub enum Collector {
    /// kube-controller-manager with nothing but its collector.
    Manager(ControllerManager),
    /// The agent with nothing but its collector.
    Agent(Agent),
}

/// The agent, and where it keeps its things.
pub struct Agent {
    // First the process, then the directory under it.
    process: AgentProcess,
    _directory: TempDir,
}

// === impl Collector ===

impl Collector {
    /// kube-controller-manager without client limits.
    pub async fn manager(plane: &ControlPlane, workers: u16) -> Result<Self> {
        let settings = Settings::only_the_collector()
            .without_limits()
            .with_collecting_workers(workers);
        Ok(Self::Manager(plane.start_controllers(&settings).await?))
    }

    /// The agent.
    pub async fn agent(binary: &Path, access: &Access) -> Result<Self> {
        Ok(Self::Agent(Agent::start(binary, access).await?))
    }

    /// What it uses.
    pub fn usage(&self) -> Result<Usage> {
        Ok(Usage::of(match self {
            Self::Manager(manager) => manager.pid(),
            Self::Agent(agent) => agent.process.pid().context("the agent has ended")?,
        }))
    }

    /// What is done while it works; if it fails, the end of its log is told with it.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self {
            Self::Manager(manager) => manager.during(work).await,
            Self::Agent(agent) => agent.process.during(work).await,
        }
    }

    /// Ends it; the agent has to end well.
    pub async fn stop(self) -> Result<()> {
        match self {
            Self::Manager(manager) => drop(manager),
            Self::Agent(agent) => {
                let code = agent.process.stop().await?;
                ensure!(code == Some(0), "the agent ended with exit code {code:?}");
            }
        }
        Ok(())
    }
}

// === impl Agent ===

impl Agent {
    /// Starts it and waits until it has seen everything.
    async fn start(binary: &Path, access: &Access) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory for the agent")?;
        let mut agent = Self {
            process: AgentProcess::spawn_collector(binary, directory.path(), access, "always")?,
            _directory: directory,
        };
        agent.until_synced().await?;
        Ok(agent)
    }

    async fn until_synced(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            // Before it listens, and while it still reads, the answer is an error or a no.
            let answer = self.process.ask(&["gc", "status", "--json"]).await;
            let status = answer.and_then(|text| Ok(serde_json::from_str::<Value>(&text)?));
            if status.is_ok_and(|status| status["synced"] == true) {
                return Ok(());
            }
            let ended = self.process.has_ended()?;
            if ended.is_some() || begin.elapsed() > SYNC {
                bail!(
                    "the agent has not synced after {:?}, exit code {ended:?}; its log ends with:\n{}",
                    begin.elapsed(),
                    self.process.log_tail()
                );
            }
            sleep(ASK).await;
        }
    }
}

/// Waits until a process has nothing to do, so that what it uses has settled.
pub async fn until_quiet(usage: Usage) -> Result<()> {
    let begin = Instant::now();
    let mut quiet = 0;
    let mut last = (Instant::now(), usage.cpu()?);
    while quiet < QUIET_FOR {
        ensure!(begin.elapsed() < CALM_DOWN, "not quiet after {CALM_DOWN:?}");
        sleep(LOOK).await;
        let now = (Instant::now(), usage.cpu()?);
        let busy = (now.1 - last.1).as_secs_f64() / (now.0 - last.0).as_secs_f64();
        quiet = if busy < QUIET { quiet + 1 } else { 0 };
        last = now;
    }
    Ok(())
}

/// Who collects.
#[derive(Debug, Clone)]
pub enum Contender {
    /// kube-controller-manager with so many workers.
    Manager(u16),
    /// The agent's program, under this account.
    Agent(PathBuf, Access),
}

impl Contender {
    /// Starts it and waits until it has seen everything.
    pub async fn start(&self, plane: &ControlPlane) -> Result<Collector> {
        match self {
            Self::Manager(workers) => Collector::manager(plane, *workers).await,
            Self::Agent(binary, access) => Collector::agent(binary, access).await,
        }
    }
}
