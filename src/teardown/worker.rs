//! The worker of one pod: attempts until it is finished, and the waits between them.

use std::time::Duration;

use backon::BackoffBuilder as _;

mod gate;
mod report;
mod retry;

use super::{
    attempt::{StepEnd, Worker, YieldReason},
    context::Context,
    steps,
    work::WorkInProgress,
};
use crate::{clock::pauses, model::trace::Stage};

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
        in_progress = Some(permit)
            .filter(|_| is_in_progress)
            .inspect(WorkInProgress::set_failed);
        let mut pause = pauses.next().unwrap_or(LONGEST_PAUSE);
        let failures = match end {
            StepEnd::Done => return worker.end(Stage::Finished, WorkerResult::Finished),
            StepEnd::Yield(YieldReason::NotDeleted) => return worker.end(Stage::Terminated, WorkerResult::Kept),
            StepEnd::Yield(why) => {
                tracing::debug!(?why, "Attempt yields");
                worker.clear_blocked();
                Vec::new()
            }
            StepEnd::Failed(failures) => {
                let failures = worker.complete(failures).await;
                pause = worker.runtime_state.next_check().map_or(pause, |next| pause.min(next));
                let asked = failures.iter().filter_map(|failure| failure.retry_after).max();
                pause = pause.max(asked.unwrap_or_default());
                worker.report(&update.view, &failures, pause);
                failures
            }
        };
        match worker
            .wait_for_retry(&update, &failures, in_progress.as_ref(), pause)
            .await
        {
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
}
