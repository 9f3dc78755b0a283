//! A pod that other pods need for their termination, such as a CSI driver or the network plugin, terminates after them, at most
//! `--driver-hold` later.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Worker, YieldReason};
use crate::{
    model::{
        event::Reason,
        failure::first_message,
        pod::PodView,
        trace::{Blocked, BlockedReason},
    },
    node::cri::types::RuntimePod,
    teardown::{
        dependents::{Dependents, dependents},
        grace,
        journal::PodJournalExt as _,
    },
    words::some_of,
};

/// How often is checked whether other pods still need it.
const INTERVAL: Duration = Duration::from_secs(2);
/// All pods of a node may be deleted one after another, this one first. So it waits at least this long.
const SETTLING_TIME: Duration = INTERVAL.saturating_mul(2);

impl Worker {
    /// Waits while other pods that are terminating need this one, at most for `--driver-hold`. The grace period of this pod
    /// begins only after that.
    ///
    /// # Errors
    /// If the agent stops, or nothing may begin.
    pub(super) async fn wait_for_dependents(
        &self,
        view: &PodView,
        runtime_pod: &RuntimePod,
    ) -> Result<(), YieldReason> {
        // Without a running container it serves no other pod. A termination that has begun is not interrupted.
        if !runtime_pod.may_run() || self.period.has_begun() {
            return Ok(());
        }
        let began = Instant::now();
        let mut reported = String::new();
        loop {
            let is_settled = began.elapsed() >= SETTLING_TIME;
            let (words, may_be_none) = match dependents(&self.context, view, is_settled).await {
                Ok(None) => break,
                Ok(Some(Dependents { pods, .. })) if pods.is_empty() && is_settled => break,
                Ok(Some(Dependents { pods, role })) if pods.is_empty() => {
                    let words = format!("pods that were deleted just now may need this pod as {role}");
                    (words, true)
                }
                Ok(Some(Dependents { pods, role })) => {
                    let words = format!(
                        "terminating pods need this pod as {role}: {}",
                        some_of(pods.into_iter())
                    );
                    (words, false)
                }
                Err(failures) => {
                    let why = first_message(&failures);
                    let words = format!("cannot find the terminating pods that need this pod: {why}");
                    (words, false)
                }
            };
            let now = self.context.node.clock.now();
            let since = self.context.journal.record_wait(&view.pod.uid, now.clone());
            if grace::used(&since, &now) >= self.context.driver_hold {
                if !may_be_none {
                    let message = format!("--driver-hold has expired, and the pod terminates; {words}");
                    tracing::warn!(message);
                    self.context
                        .events
                        .event(view, None, Reason::DriverHoldExceeded, &message);
                }
                break;
            }
            if words != reported {
                tracing::info!(why = words, "Termination waits for other pods");
            }
            self.recorder
                .set_blocked(vec![Blocked::pod(BlockedReason::Dependents, words.as_str())]);
            reported = words;
            if self.context.gate.why_no_new_work().is_some() {
                return Err(YieldReason::NoNewWork);
            }
            tokio::select! {
                biased;
                () = self.context.stopping.cancelled() => return Err(YieldReason::Stopping),
                () = sleep(INTERVAL) => {}
            }
        }
        self.recorder.set_blocked(Vec::new());
        // The disk must not show that it waits when it is stopped.
        if self
            .context
            .journal
            .pod(&view.pod.uid)
            .is_some_and(|entry| entry.waits_for_dependents)
        {
            let now = self.context.node.clock.now();
            self.context.journal.record_grace_from(&view.pod.uid, now);
            self.sync_beginning().await;
        }
        Ok(())
    }
}
