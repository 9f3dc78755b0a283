//! The harm that is done to a run.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use testbed::{
    apiserver::faults::{Action, Fault as Trouble},
    stage::Stage,
};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        fault::{Fault, Strike},
        gate::Arrival,
    },
    Run,
};

/// How long the runtime and the API server stay away.
const RUNTIME_AWAY: Duration = Duration::from_millis(300);
const SERVER_AWAY: Duration = Duration::from_secs(3);
/// Until an agent that was told to stop has ended: its timeout, a second for the map and one for events,
/// three for the Lease, and the load.
const STOPPED_WITHIN: Duration = Duration::from_secs(2 + 1 + 1 + 3 + 4);
/// Where the agent dies late in a stop, so that a grace period that begins anew is seen.
const LATE: Duration = Duration::from_secs(6);

/// What is still to be done to the world.
pub(super) enum Later {
    Nothing,
    Kill(Instant),
    RuntimeComesBack(Instant),
    ServerComesBack(Instant),
    HasStopped { by: Instant },
}

/// Whether the agent lives on for seconds in the middle of a stop.
pub(super) fn dies_late(strike: &Strike) -> bool {
    strike.fault == Fault::KilledDuring && strike.step.is("StopContainer", "stubborn")
}

// === impl Run ===

impl Run {
    pub(super) async fn strike(&mut self, strike: &Strike, arrival: Arrival) -> Result<()> {
        let now = Instant::now();
        match strike.fault {
            Fault::KilledBefore | Fault::KilledAfter => self.crash_and_restart().await?,
            Fault::KilledDuring if dies_late(strike) => {
                arrival.go_on().await;
                self.later = Later::Kill(self.start + LATE);
            }
            Fault::KilledDuring => {
                arrival.go_on().await;
                sleep(strike.moment).await;
                self.crash_and_restart().await?;
            }
            Fault::RuntimeRestarts => {
                self.stage()?.containerd.kill();
                arrival.go_on().await;
                self.later = Later::RuntimeComesBack(now + RUNTIME_AWAY);
            }
            Fault::ServerAway => {
                let faults = self.api.faults();
                faults.inject(Trouble::new(Action::CutWatch).user(&self.user));
                faults.inject(Trouble::new(Action::Refuse).user(&self.user));
                arrival.go_on().await;
                self.later = Later::ServerComesBack(now + SERVER_AWAY);
            }
            Fault::Terminated => {
                self.agent.as_ref().context("no agent runs")?.tell_to_stop()?;
                arrival.go_on().await;
                self.later = Later::HasStopped {
                    by: now + STOPPED_WITHIN,
                };
            }
            Fault::Replaced => {
                self.take_object().await?;
                self.successor = Some(self.succeed().await?);
                arrival.go_on().await;
            }
            Fault::Orphaned => {
                self.crash().await?;
                self.take_object().await?;
                self.start_agent()?;
            }
        }
        Ok(())
    }

    pub(super) async fn do_later(&mut self) -> Result<()> {
        let now = Instant::now();
        match self.later {
            Later::Kill(at) if now >= at => self.crash_and_restart().await?,
            Later::RuntimeComesBack(at) if now >= at => self.bring_runtime_back().await?,
            Later::ServerComesBack(at) if now >= at => {
                self.api.faults().clear();
                self.note("--- the API server is back");
            }
            Later::HasStopped { by } => match self.has_ended()? {
                Some(0) => {
                    self.note("--- it has stopped");
                    self.start_agent()?;
                }
                Some(code) => bail!("told to stop, the agent ended with {code}"),
                None => {
                    ensure!(now < by, "told to stop, the agent goes on");
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
        self.later = Later::Nothing;
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

    pub(super) async fn bring_runtime_back(&mut self) -> Result<()> {
        self.stage()?.containerd.restart().await?;
        self.later = Later::Nothing;
        self.note("--- the runtime is back");
        Ok(())
    }

    fn stage(&mut self) -> Result<&mut Stage> {
        Arc::get_mut(&mut self.scene.stage).context("somebody else has the stage")
    }
}
