//! Waits for the next attempt.

use std::{future::pending, time::Duration};

use futures::future::OptionFuture;
use tokio::time::{Instant, sleep};

use super::WakeReason;
use crate::{
    model::failure::Failure,
    teardown::{
        attempt::{PodUpdate, Worker},
        period::wait_for_deadline,
        work::WorkInProgress,
    },
};

impl Worker {
    /// Waits after an attempt with these failures until the next one makes sense, at most for `pause`. `in_progress` is given if the
    /// pod is not at a safe point.
    pub(super) async fn wait_for_retry(
        &mut self,
        update: &PodUpdate,
        failures: &[Failure],
        in_progress: Option<&WorkInProgress>,
        pause: Duration,
    ) -> WakeReason {
        let mut deadline = self.period.subscribe();
        let over = wait_for_deadline(deadline.clone());
        let waits = *deadline.borrow() > Instant::now() && failures.iter().any(Failure::is_stop_failure);
        let (effects, stopping) = (self.context.node.effects.clone(), self.context.stopping.clone());
        let requested = OptionFuture::from(in_progress.map(|attempt| attempt.wait_for_retry_request()));
        tokio::select! {
            biased;
            () = stopping.cancelled() => WakeReason::Stopping,
            () = self.wait_for_important_change(update) => WakeReason::Changed,
            // A user who shortens the grace period does not want to wait.
            Ok(()) = deadline.changed() => WakeReason::Changed,
            // After the grace period, sidecars no longer wait for main containers.
            () = over, if waits => WakeReason::RetryDue,
            Some(()) = requested => WakeReason::Changed,
            // A kubelet starts, and must not wait for this pod. The interrupted attempt is due as soon as the gate opens, without a pause.
            _ = effects.wait_until_blocked() => WakeReason::RetryDue,
            () = sleep(pause) => WakeReason::RetryDue,
        }
    }

    /// Returns when the pod has changed so that an attempt is due at once, such as by its deletion. Most updates only show what this
    /// worker has written.
    async fn wait_for_important_change(&mut self, update: &PodUpdate) {
        let is_important = |newer: &PodUpdate| {
            newer.view.object.is_absent() != update.view.object.is_absent()
                || newer.view.deletion != update.view.deletion
                || newer.eviction != update.eviction
                || newer.approvals != update.approvals
        };
        if self.updates.wait_for(is_important).await.is_err() {
            pending::<()>().await;
        }
    }
}
