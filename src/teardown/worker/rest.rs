//! Between two attempts: what the next one waits for.

use std::{future::pending, time::Duration};

use futures::future::OptionFuture;
use tokio::time::{Instant, sleep};

use super::{PodMounts, PodUpdate, Worker};
use crate::{
    model::{failure::Failure, trace::Step},
    node::holders::wait_for_any_exit,
    teardown::{boundary::Attempt, stop::passed},
};

/// Why a worker rests no more.
pub(super) enum Wakes {
    /// The agent ends.
    Stopping,
    /// Something has changed: the pauses between attempts begin anew.
    News,
    /// It has waited long enough, or for what has come.
    ForMore,
}

impl Worker {
    /// Rests after an attempt that has failed so, for as long as nothing happens that is worth another one. What is `kept` is in
    /// the middle of a pod.
    pub(super) async fn rest(
        &mut self,
        update: &PodUpdate,
        failures: &[Failure],
        mounts: &mut Option<PodMounts>,
        kept: Option<&dyn Attempt>,
        pause: Duration,
    ) -> Wakes {
        let mut deadline = self.period.subscribe();
        let over = passed(deadline.clone());
        let waits = *deadline.borrow() > Instant::now() && failures.iter().any(Failure::is_stop_failure);
        let is_mounted = failures.iter().any(|failure| failure.step == Step::Volumes);
        // What was unmounted during the attempt is a reason for another one, too.
        let of_pod = mounts.take().or_else(|| PodMounts::of(&self.context, &update.view));
        *mounts = of_pod.filter(|_| is_mounted);
        let held_by: Vec<_> = failures.iter().flat_map(|failure| &failure.held_by).copied().collect();
        let unmounted = OptionFuture::from(mounts.as_mut().map(PodMounts::change));
        let (effects, stopping) = (self.context.effects.clone(), self.context.stopping.clone());
        let once_more = OptionFuture::from(kept.map(|kept| kept.retry_requested()));
        tokio::select! {
            biased;
            () = stopping.cancelled() => Wakes::Stopping,
            () = self.matters(update) => Wakes::News,
            // Somebody who shortens the grace period does not want to wait.
            Ok(()) = deadline.changed() => Wakes::News,
            // What has held up other stops holds them up no more.
            () = over, if waits => Wakes::ForMore,
            Some(()) = once_more => Wakes::News,
            // It is a kubelet's, which is not to wait for it.
            Err(_) = effects.run_until_blocked(pending::<()>()), if kept.is_some() => Wakes::ForMore,
            // The kernel tells, whoever has unmounted something.
            Some(()) = unmounted => Wakes::ForMore,
            () = wait_for_any_exit(&held_by) => Wakes::ForMore,
            () = sleep(pause) => Wakes::ForMore,
        }
    }

    /// Returns when there is news worth another attempt at once: the deletion, or the object's end. Most news is the echo
    /// of what this worker has written itself.
    async fn matters(&mut self, update: &PodUpdate) {
        let news = |newer: &PodUpdate| {
            newer.removed != update.removed
                || newer.view.deletion != update.view.deletion
                || newer.imposed != update.imposed
                || newer.releases != update.releases
        };
        if self.updates.wait_for(news).await.is_err() {
            // There will be no more news.
            pending::<()>().await;
        }
    }
}
