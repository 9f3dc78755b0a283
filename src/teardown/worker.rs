//! The worker of one pod: attempts until it is finished, and the waits between them.

use std::{future::pending, time::Duration};

use backon::BackoffBuilder as _;
use futures::future::OptionFuture;
use tokio::time::{Instant, sleep};

mod gate;
mod report;

use super::{
    attempt::{Interrupted, PodUpdate, Worker, YieldReason},
    context::Context,
    period::wait_for_deadline,
    steps,
    work::WorkInProgress,
};
use crate::{
    clock::pauses,
    model::{failure::Failure, trace::Stage},
};

/// Pauses between attempts: at most 1 s, doubling to at most 30 s, with jitter so that the pods of a node do not retry in step.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Result of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerResult {
    /// Nothing of the pod is left on the node.
    Finished,
    /// Nothing of it runs, but it is not deleted: its containers and logs stay.
    Kept,
    /// The agent stops before the pod is finished. Its next start continues.
    Stopping,
    /// A kubelet has finished it.
    FinishedByKubelet,
    /// A stop request was canceled because a kubelet came before the pod had terminated: the pod is that kubelet's.
    Canceled,
}

/// Why the wait is over.
enum WakeReason {
    /// The agent stops.
    Stopping,
    /// The pod has changed: the backoff restarts.
    Changed,
    /// The pause is over.
    RetryDue,
}

/// Makes attempts until the pod is finished, kept or not this agent's any more.
pub(super) async fn run(mut worker: Worker) -> WorkerResult {
    let backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE);
    let mut pauses = backoff.build();
    let mut in_progress: Option<WorkInProgress> = None;
    let mut stopped_first = None;
    loop {
        let Some(permit) = worker.begin_work(in_progress.take()) else {
            match worker.wait_for_gate(&mut stopped_first).await {
                Some(outcome) => return outcome,
                None => continue,
            }
        };
        if worker.is_canceled() {
            return WorkerResult::Canceled;
        }
        let update = worker.updates.borrow_and_update().clone();
        if update.terminates_by_api() {
            worker.context.journal.clear_stop_request(&update.view.pod.uid);
        }
        worker.recorder.begin_attempt();
        let end = steps::attempt(&worker, &update, stopped_first.take()).await;
        // A handover does not wait for this pause; it reports pods that are not at a safe point.
        let is_in_progress = worker.context.journal.is_in_progress(&update.view.pod.uid);
        in_progress = is_in_progress.then_some(permit).inspect(WorkInProgress::set_failed);
        let mut pause = pauses.next().unwrap_or(LONGEST_PAUSE);
        let failures = match end {
            Ok(()) => return worker.end(Stage::Finished, WorkerResult::Finished),
            Err(Interrupted::Yield(YieldReason::NotDeleted)) => {
                return worker.end(Stage::Terminated, WorkerResult::Kept);
            }
            Err(Interrupted::Yield(why)) => {
                tracing::debug!(?why, "Attempt yields");
                worker.clear_blocked();
                Vec::new()
            }
            Err(Interrupted::Failed(failures)) => {
                let failures = worker.complete(failures).await;
                pause = worker.runtime_state.next_check().map_or(pause, |next| pause.min(next));
                let asked = failures.iter().filter_map(|failure| failure.retry_after).max();
                pause = pause.max(asked.unwrap_or_default());
                worker.report(&update.view, &failures, pause);
                failures
            }
        };
        let retry = worker.wait_for_retry(&update, &failures, in_progress.as_ref(), pause);
        match retry.await {
            WakeReason::Stopping => return WorkerResult::Stopping,
            WakeReason::Changed => pauses = backoff.build(),
            WakeReason::RetryDue => {}
        }
    }
}

impl Worker {
    /// Begins or repeats an attempt; `None` if nothing may begin.
    fn begin_work(&self, in_progress: Option<WorkInProgress>) -> Option<WorkInProgress> {
        let Context { work, node, .. } = &*self.context;
        let repeated = in_progress.filter(|_| node.effects.check_retry().is_ok());
        let repeated = repeated.filter(WorkInProgress::begin_retry);
        repeated.or_else(|| work.begin(&node.effects, self.recorder.pod().to_string()).ok())
    }

    fn end(&self, stage: Stage, result: WorkerResult) -> WorkerResult {
        self.clear_blocked();
        self.recorder.set_stage(stage);
        result
    }

    /// Waits after an attempt with these failures until the next one makes sense, at most for `pause`. `in_progress` is given if the
    /// pod is not at a safe point.
    async fn wait_for_retry(
        &mut self,
        update: &PodUpdate,
        failures: &[Failure],
        in_progress: Option<&WorkInProgress>,
        pause: Duration,
    ) -> WakeReason {
        let mut period = self.period.subscribe();
        let over = wait_for_deadline(period.clone());
        let waits = self.period.deadline() > Instant::now() && failures.iter().any(Failure::is_stop_failure);
        let (effects, stopping) = (self.context.node.effects.clone(), self.context.stopping.clone());
        let requested = OptionFuture::from(in_progress.map(|attempt| attempt.wait_for_retry_request()));
        tokio::select! {
            biased;
            () = stopping.cancelled() => WakeReason::Stopping,
            () = self.wait_for_important_change(update) => WakeReason::Changed,
            // A user who shortens the grace period does not want to wait.
            Ok(()) = period.changed() => WakeReason::Changed,
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
