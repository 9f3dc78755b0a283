//! The worker of one pod. Every attempt begins with the observed state, regardless of how far an earlier one came.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use backon::BackoffBuilder as _;
use tokio::sync::watch;

mod attempt;
mod cleanup;
mod dependents;
mod exits;
mod gate;
mod observe;
mod report;
mod retry;
mod runtime_state;
mod status;
mod stop;
mod survivors;
mod waits;

pub use self::runtime_state::RuntimeState;
use super::{
    boundary::Attempt,
    context::Context,
    journal::PodJournalExt as _,
    period::Period,
    priority_gate::{Priority, PriorityGate},
};
use crate::{
    clock::pauses,
    model::{
        failure::Failure,
        pod::PodView,
        termination::{self, Eviction},
        trace::Stage,
    },
    trace_recorder::TraceRecorder,
};

/// Pauses between attempts: at most 1 s, doubling to at most a minute, with jitter so that the pods of a node do not retry in step.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Longest wait for the status of a stopped container, which has its exit code.
const AFTER_STOP: Duration = Duration::from_secs(30);

/// An update of a pod. A newer update replaces an older one that the worker has not read.
#[derive(Debug, Clone)]
pub struct PodUpdate {
    /// The pod as it was last seen.
    pub view: Arc<PodView>,
    /// The eviction that a user requested.
    pub eviction: Option<Arc<Eviction>>,
    /// Number of mismatches of this pod that a user has approved.
    pub approvals: u32,
}

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

/// Result of an attempt that has not finished the pod.
#[derive(Debug)]
enum AttemptError {
    /// It stopped before its next step; nothing failed.
    Yielded(YieldReason),
    /// Steps failed. They are retried.
    Failed(Vec<Failure>),
}

/// Why an attempt stopped before its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum YieldReason {
    /// The agent stops.
    Stopping,
    /// Nothing may begin: a kubelet starts or runs, or the agent is paused.
    NoNewWork,
    /// A kubelet came before the pod had terminated, and only a stop request terminates it.
    Canceled,
}

/// Why the wait is over.
enum WakeReason {
    /// The agent stops.
    Stopping,
    /// The pod has changed, or something that it waits for: the backoff restarts.
    Changed,
    /// The pause is over.
    RetryDue,
}

/// One pod's worker.
pub struct Worker {
    /// Clients and journal.
    pub context: Arc<Context>,
    /// Updates of the pod.
    pub updates: watch::Receiver<PodUpdate>,
    /// The grace period.
    pub period: Arc<Period>,
    /// The teardown trace.
    pub recorder: Arc<TraceRecorder>,
    /// Delays this pod while pods with priority are being stopped.
    pub priority_gate: PriorityGate,
    /// How often the exit code of a container could not be read.
    pub failed_reads: AtomicU32,
    /// Whether the runtime's state or the kernel's counts.
    pub runtime_state: RuntimeState,
}

// === impl AttemptError ===

impl From<Vec<Failure>> for AttemptError {
    fn from(failures: Vec<Failure>) -> Self {
        Self::Failed(failures)
    }
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Failed(vec![failure])
    }
}

impl From<YieldReason> for AttemptError {
    fn from(why: YieldReason) -> Self {
        Self::Yielded(why)
    }
}

// === impl PodUpdate ===

impl PodUpdate {
    /// The first update.
    pub fn new(view: Arc<PodView>, eviction: Option<Eviction>) -> Self {
        Self {
            view,
            eviction: eviction.map(Arc::new),
            approvals: 0,
        }
    }

    /// Whether the pod terminates without a request of a user of this node.
    pub fn terminates_by_api(&self) -> bool {
        termination::cause(&self.view, false).is_some()
    }
}

// === impl Worker ===

impl Worker {
    /// Makes attempts until the pod is finished, kept or not this agent's any more.
    pub async fn run(mut self) -> WorkerResult {
        let backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE);
        let mut pauses = backoff.build();
        let mut changes = self.watch_node();
        let mut priority: Option<Priority> = None;
        let mut in_progress: Option<Box<dyn Attempt>> = None;
        loop {
            let gate = &self.context.gate;
            let repeated = in_progress.take().filter(|_| gate.may_repeat());
            let repeated = repeated.filter(|attempt| attempt.begin_retry());
            let Some(permit) = repeated.or_else(|| gate.begin(self.recorder.pod())) else {
                if let Some(outcome) = self.wait_for_gate(&mut priority).await {
                    return outcome;
                }
                if priority.is_none() {
                    self.priority_gate.wait().await;
                }
                continue;
            };
            if self.is_canceled() {
                return WorkerResult::Canceled;
            }
            let update = self.updates.borrow_and_update().clone();
            if update.terminates_by_api() {
                self.context.journal.clear_stop_request(&update.view.pod.uid);
            }
            self.recorder.begin_attempt();
            let attempt = self.attempt(&update, priority.take()).await;
            // A handover does not wait for this pause; it reports pods that are not at a safe point.
            let is_in_progress = self.context.journal.is_in_progress(&update.view.pod.uid);
            in_progress = Some(permit)
                .filter(|_| is_in_progress)
                .inspect(|attempt| attempt.set_failed());
            let mut pause = pauses.next().unwrap_or(LONGEST_PAUSE);
            let failures = match attempt {
                Ok(outcome) => {
                    self.clear_blocked();
                    self.recorder.set_stage(match outcome {
                        WorkerResult::Finished => Stage::Finished,
                        WorkerResult::Kept
                        | WorkerResult::Stopping
                        | WorkerResult::FinishedByKubelet
                        | WorkerResult::Canceled => Stage::Terminated,
                    });
                    return outcome;
                }
                Err(AttemptError::Failed(failures)) => {
                    let failures = self.complete(&update.view, failures).await;
                    pause = self.runtime_state.next_check().map_or(pause, |next| pause.min(next));
                    let asked = failures.iter().filter_map(|failure| failure.retry_after).max();
                    pause = pause.max(asked.unwrap_or_default());
                    self.report(&update.view, &failures, pause);
                    failures
                }
                Err(AttemptError::Yielded(why)) => {
                    tracing::debug!(?why, "Attempt yields");
                    self.clear_blocked();
                    Vec::new()
                }
            };
            match self
                .wait_for_retry(&update, &failures, &mut changes, in_progress.as_deref(), pause)
                .await
            {
                WakeReason::Stopping => return WorkerResult::Stopping,
                WakeReason::Changed => pauses = backoff.build(),
                WakeReason::RetryDue => {}
            }
        }
    }
}
