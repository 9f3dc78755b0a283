//! Waits for the next attempt.

use std::{future::pending, time::Duration};

use futures::future::OptionFuture;
use tokio::time::{Instant, sleep};

use super::{PodMounts, PodUpdate, WakeReason, Worker};
use crate::{
    model::{failure::Failure, trace::Step},
    node::holders::wait_for_any_exit,
    teardown::{boundary::Attempt, stop::wait_for_deadline},
};

impl Worker {
    /// Waits after an attempt with these failures until the next one makes sense, at most for `pause`. `in_progress` is given if the
    /// pod is not at a safe point.
    pub(super) async fn wait_for_retry(
        &mut self,
        update: &PodUpdate,
        failures: &[Failure],
        mounts: &mut Option<PodMounts>,
        in_progress: Option<&dyn Attempt>,
        pause: Duration,
    ) -> WakeReason {
        let mut deadline = self.period.subscribe();
        let over = wait_for_deadline(deadline.clone());
        let waits = *deadline.borrow() > Instant::now() && failures.iter().any(Failure::is_stop_failure);
        let is_mounted = failures.iter().any(|failure| failure.step == Step::Volumes);
        // An unmount during the attempt counts, too.
        let of_pod = mounts
            .take()
            .or_else(|| PodMounts::for_pod(&self.context, &update.view));
        *mounts = of_pod.filter(|_| is_mounted);
        let holder_pids: Vec<_> = failures
            .iter()
            .flat_map(|failure| &failure.holder_pids)
            .copied()
            .collect();
        let unmounted = OptionFuture::from(mounts.as_mut().map(PodMounts::wait_for_change));
        let (effects, stopping) = (self.context.node.effects.clone(), self.context.stopping.clone());
        let requested = OptionFuture::from(in_progress.map(|attempt| attempt.wait_for_retry_request()));
        tokio::select! {
            biased;
            () = stopping.cancelled() => WakeReason::Stopping,
            () = self.wait_for_important_change(update) => WakeReason::PodChanged,
            // A user who shortens the grace period does not want to wait.
            Ok(()) = deadline.changed() => WakeReason::PodChanged,
            // After the grace period, sidecars no longer wait for main containers.
            () = over, if waits => WakeReason::RetryDue,
            Some(()) = requested => WakeReason::PodChanged,
            // A kubelet comes, and must not wait for this pod.
            Err(_) = effects.run_until_blocked(pending::<()>()), if in_progress.is_some() => WakeReason::RetryDue,
            Some(()) = unmounted => WakeReason::RetryDue,
            () = wait_for_any_exit(&holder_pids) => WakeReason::RetryDue,
            () = sleep(pause) => WakeReason::RetryDue,
        }
    }

    /// Returns when the pod has changed so that an attempt is due at once, such as by its deletion. Most updates only show what this
    /// worker has written.
    async fn wait_for_important_change(&mut self, update: &PodUpdate) {
        let is_important = |newer: &PodUpdate| {
            newer.removed != update.removed
                || newer.view.deletion != update.view.deletion
                || newer.eviction != update.eviction
                || newer.approvals != update.approvals
        };
        if self.updates.wait_for(is_important).await.is_err() {
            pending::<()>().await;
        }
    }
}
