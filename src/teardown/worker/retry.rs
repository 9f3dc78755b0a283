//! Waits for the next attempt.

use std::{future::pending, sync::Arc, time::Duration};

use futures::future::OptionFuture;
use tokio::time::{Instant, sleep};

use super::{PodUpdate, WakeReason, Worker};
use crate::{
    model::{
        failure::Failure,
        waits_for::{self, WaitsFor},
    },
    node::changes::ChangeWatch,
    teardown::{boundary::Attempt, stop::wait_for_deadline},
};

impl Worker {
    /// A watch of this node, for all attempts.
    pub(super) fn watch_node(&self) -> ChangeWatch {
        let node = &self.context.node;
        let mounts = Arc::clone(&node.storage.all_mounts);
        ChangeWatch::new(mounts, node.storage.proc.clone(), node.reads.clone())
    }

    /// Waits after an attempt with these failures until the next one makes sense, at most for `pause`. `in_progress` is given if the
    /// pod is not at a safe point.
    pub(super) async fn wait_for_retry(
        &mut self,
        update: &PodUpdate,
        failures: &[Failure],
        changes: &mut ChangeWatch,
        in_progress: Option<&dyn Attempt>,
        pause: Duration,
    ) -> WakeReason {
        let mut deadline = self.period.subscribe();
        let over = wait_for_deadline(deadline.clone());
        let waits = *deadline.borrow() > Instant::now() && failures.iter().any(Failure::is_stop_failure);
        let waits_for = all(failures.iter().flat_map(|failure| failure.waits_for.iter().cloned()));
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
            () = changes.wait_for_change(&waits_for) => WakeReason::Changed,
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

fn all(waits_for: impl IntoIterator<Item = WaitsFor>) -> Vec<WaitsFor> {
    let mut all = Vec::new();
    waits_for::add(&mut all, waits_for);
    all
}
