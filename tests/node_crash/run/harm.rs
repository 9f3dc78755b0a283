//! Injects the faults of a run.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use testbed::{
    apiserver::faults::{Action, Fault as Trouble},
    stage::Stage,
};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        checks::SLACK,
        fault::{Fault, Strike},
        gate::Arrival,
    },
    Run,
};

/// How long the runtime and the API server stay down.
const RUNTIME_DOWN: Duration = Duration::from_millis(300);
const SERVER_DOWN: Duration = Duration::from_secs(3);
/// Limit for a terminated agent to exit: its timeout, a second for the map and one for events, three for the Lease, and
/// load.
const STOPPED_WITHIN: Duration = Duration::from_secs(2 + 1 + 1 + 3 + 33);
/// When an agent is killed late in a stop. A restarted grace period ends later than the first one and [`SLACK`].
const LATE: Duration = Duration::from_secs(18);
/// Grace period of such a stop.
pub(super) const LATE_GRACE: Duration = Duration::from_secs(20);
const _: () = assert!(SLACK.as_secs() < LATE.as_secs() && LATE.as_secs() < LATE_GRACE.as_secs());

/// What is still to be done to the environment.
pub(super) enum Pending {
    Nothing,
    Kill(Instant),
    RuntimeComesBack(Instant),
    ServerComesBack(Instant),
    HasStopped { by: Instant },
}

/// Whether the agent lives for seconds during a stop.
pub(super) fn dies_late(strike: &Strike) -> bool {
    strike.fault == Fault::KilledDuring && strike.step.is("StopContainer", "stubborn")
}

impl Run {
    pub(super) async fn strike(&mut self, strike: &Strike, arrival: Arrival) -> Result<()> {
        let now = Instant::now();
        match strike.fault {
            Fault::KilledBefore | Fault::KilledAfter => self.crash_and_restart().await?,
            Fault::KilledDuring if dies_late(strike) => {
                arrival.resume().await;
                self.later = Pending::Kill(self.start + LATE);
            }
            Fault::KilledDuring => {
                arrival.resume().await;
                sleep(strike.moment).await;
                self.crash_and_restart().await?;
            }
            Fault::RuntimeRestarts => {
                self.stage()?.containerd.kill();
                arrival.resume().await;
                self.later = Pending::RuntimeComesBack(now + RUNTIME_DOWN);
            }
            Fault::ServerDown => {
                let faults = self.api.faults();
                faults.inject(Trouble::new(Action::CutWatch).user(&self.user));
                faults.inject(Trouble::new(Action::Refuse).user(&self.user));
                arrival.resume().await;
                self.later = Pending::ServerComesBack(now + SERVER_DOWN);
            }
            Fault::Terminated => {
                self.agent.as_ref().context("no agent runs")?.send_sigterm()?;
                arrival.resume().await;
                self.later = Pending::HasStopped {
                    by: now + STOPPED_WITHIN,
                };
            }
            Fault::Replaced => {
                self.delete_object().await?;
                self.successor = Some(self.succeed().await?);
                arrival.resume().await;
            }
            Fault::Orphaned => {
                self.crash().await?;
                self.delete_object().await?;
                self.start_agent()?;
            }
        }
        Ok(())
    }

    pub(super) async fn do_pending(&mut self) -> Result<()> {
        let now = Instant::now();
        match self.later {
            Pending::Kill(at) if now >= at => self.crash_and_restart().await?,
            Pending::RuntimeComesBack(at) if now >= at => self.restart_runtime().await?,
            Pending::ServerComesBack(at) if now >= at => {
                self.api.faults().clear();
                self.note("--- the API server is back");
            }
            Pending::HasStopped { by } => match self.has_ended()? {
                Some(0) => {
                    self.note("--- it has stopped");
                    self.start_agent()?;
                }
                Some(code) => bail!("after SIGTERM the agent exited with {code}"),
                None => {
                    ensure!(now < by, "after SIGTERM the agent keeps running");
                    return Ok(());
                }
            },
            _ => {
                if let Some(code) = self.has_ended()? {
                    bail!("the agent ended by itself, with {code}");
                }
                return Ok(());
            }
        }
        self.later = Pending::Nothing;
        Ok(())
    }

    /// The exit code; 255 for a signal.
    fn has_ended(&mut self) -> Result<Option<i32>> {
        let ended = self.agent.as_mut().context("no agent runs")?.has_ended()?;
        Ok(ended.map(|status| status.code().unwrap_or(255)))
    }

    async fn crash_and_restart(&mut self) -> Result<()> {
        self.crash().await?;
        self.start_agent()
    }

    async fn crash(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.crash().await?;
        self.note("--- it is dead");
        Ok(())
    }

    pub(super) async fn restart_runtime(&mut self) -> Result<()> {
        self.stage()?.containerd.restart().await?;
        self.later = Pending::Nothing;
        self.note("--- the runtime is back");
        Ok(())
    }

    fn stage(&mut self) -> Result<&mut Stage> {
        Arc::get_mut(&mut self.scene.stage).context("the stage is in use")
    }
}
