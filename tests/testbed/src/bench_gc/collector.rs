//! Collectors as processes, measured from outside.

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

/// Each status request is a process on the measured processors.
const ASK: Duration = Duration::from_millis(50);
/// Allows for a million objects on a busy machine.
const SYNC: Duration = Duration::from_secs(600);
/// A process is idle if it uses less than this part of a processor for so long.
const QUIET: f64 = 0.05;
const QUIET_FOR: u32 = 4;
const LOOK: Duration = Duration::from_millis(250);
const CALM_DOWN: Duration = Duration::from_secs(300);

/// A collector that is synced.
pub enum Collector {
    /// kube-controller-manager with its garbage collector only.
    Manager(ControllerManager),
    /// The agent with its collector only.
    Agent(Agent),
}

/// The agent and its directory.
pub struct Agent {
    // Dropped in this order: the process, then its directory.
    process: AgentProcess,
    _directory: TempDir,
}

// === impl Collector ===

impl Collector {
    /// Starts kube-controller-manager without client limits.
    pub async fn manager(plane: &ControlPlane, workers: u16) -> Result<Self> {
        let settings = Settings::only_the_collector()
            .without_limits()
            .with_collecting_workers(workers);
        Ok(Self::Manager(plane.start_controllers(&settings).await?))
    }

    /// Starts the agent.
    pub async fn agent(binary: &Path, access: &Access) -> Result<Self> {
        Ok(Self::Agent(Agent::start(binary, access).await?))
    }

    /// Its resource usage.
    pub fn usage(&self) -> Result<Usage> {
        Ok(Usage::of(match self {
            Self::Manager(manager) => manager.pid(),
            Self::Agent(agent) => agent.process.pid().context("the agent has ended")?,
        }))
    }

    /// Runs `work`. If it fails, the error has the end of the collector's log.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self {
            Self::Manager(manager) => manager.during(work).await,
            Self::Agent(agent) => agent.process.during(work).await,
        }
    }

    /// Stops it; the agent must exit with 0.
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
    /// Starts it and waits until all kinds are synced.
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
            // Before it listens, the answer is an error.
            let answer = self.process.ask(&["gc", "status", "-ojson"]).await;
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

/// Waits until a process is idle, so that its usage is stable.
pub async fn wait_until_idle(usage: Usage) -> Result<()> {
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

/// A collector to start.
#[derive(Debug, Clone)]
pub enum Contender {
    /// kube-controller-manager with this many workers.
    Manager(u16),
    /// The agent's binary, with this ServiceAccount's access.
    Agent(PathBuf, Access),
}

impl Contender {
    /// Starts it and waits until it is synced.
    pub async fn start(&self, plane: &ControlPlane) -> Result<Collector> {
        match self {
            Self::Manager(workers) => Collector::manager(plane, *workers).await,
            Self::Agent(binary, access) => Collector::agent(binary, access).await,
        }
    }
}
