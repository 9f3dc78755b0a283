//! A pod that is a driver ends after those who need it, but not for ever after.

use std::time::Duration;

use tokio::time::sleep;

use super::{super::grace, Worker};
use crate::{
    events::Reason,
    node::cri::types::RuntimePod,
    pod::PodView,
    teardown::{Failure, drivers},
    words::some_of,
};

/// How often it is asked who still needs it.
const LOOK: Duration = Duration::from_secs(2);

impl Worker {
    /// Waits as long as other pods that end need this one as their driver, at most for `--driver-hold`. Its grace period has
    /// not begun by then. Without a failure where the wait is cut short: none is to be told.
    pub(super) async fn wait_for_those_who_need_it(
        &self,
        view: &PodView,
        observed: &RuntimePod,
    ) -> Result<(), Vec<Failure>> {
        // One of which nothing runs helps nobody, and one that has begun to end goes on.
        if !observed.lives() || self.period.has_begun() || self.context.effects.dry_run() {
            return Ok(());
        }
        let mut told = String::new();
        loop {
            let words = match drivers::those_who_need(&self.context, view).await {
                Ok(waiting) if waiting.is_empty() => break,
                Ok(waiting) => format!("{} that end need this pod as a driver", some_of(waiting.into_iter())),
                Err(failures) => {
                    let why = super::first(&failures);
                    format!("whether pods that end need this pod as a driver cannot be told: {why}")
                }
            };
            let now = self.context.clock.now();
            let since = self.context.journal.waits(&view.pod.uid, now.clone());
            if grace::used(&since, &now) >= self.context.driver_hold {
                let message = format!("--driver-hold is over; the pod ends although {words}");
                tracing::warn!(message);
                self.context.events.pod(view, Reason::DriverHoldExceeded, &message);
                break;
            }
            if words != told {
                tracing::info!(why = words, "The pod's end waits");
            }
            self.record.set_failures(vec![format!("held: {words}")]);
            told = words;
            if self.context.guard.why_nothing_begins().is_some() {
                return Err(Vec::new());
            }
            tokio::select! {
                biased;
                () = self.context.stopping.cancelled() => return Err(Vec::new()),
                () = sleep(LOOK) => {}
            }
        }
        self.record.set_failures(Vec::new());
        // It has waited, by what is on the disk, and does so no more when it is told to stop.
        if self.context.journal.pod(&view.pod.uid).is_some_and(|entry| entry.waits) {
            let now = self.context.clock.now();
            self.context.journal.counts_from(&view.pod.uid, now);
            self.remembered().await;
        }
        Ok(())
    }
}
