//! Waits for the next attempt.

use std::{future::pending, time::Duration};

use futures::future::OptionFuture;
use tokio::time::{Instant, sleep};

use super::{PodMounts, PodUpdate, WakeReason, Worker};
use crate::{
    model::{failure::Failure, trace::Step},
    node::holders::wait_for_any_exit,
    teardown::{boundary::Attempt, stop::passed},
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
        let over = passed(deadline.clone());
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
        let unmounted = OptionFuture::from(mounts.as_mut().map(PodMounts::change));
        let (effects, stopping) = (self.context.effects.clone(), self.context.stopping.clone());
        let requested = OptionFuture::from(in_progress.map(|attempt| attempt.retry_requested()));
        tokio::select! {
            biased;
            () = stopping.cancelled() => WakeReason::Stopping,
            () = self.important_news(update) => WakeReason::PodChanged,
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

    /// Returns when news of the pod justifies an attempt at once, such as its deletion. Most news only shows what this worker has
    /// written.
    async fn important_news(&mut self, update: &PodUpdate) {
        let news = |newer: &PodUpdate| {
            newer.removed != update.removed
                || newer.view.deletion != update.view.deletion
                || newer.imposed != update.imposed
                || newer.approvals != update.approvals
        };
        if self.updates.wait_for(news).await.is_err() {
            pending::<()>().await;
        }
    }
}
