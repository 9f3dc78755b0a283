//! Records the trace of one pod's termination for `status`, `timeline` and the log.

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Duration, Instant},
};

use crate::{
    clock::{Mark, between},
    model::{
        mismatch::Mismatch,
        pod::{PodRef, PodView},
        termination::{Cause, GraceStart},
        trace::{Obstacle, Span, Stage, Step, Trace, UnapprovedMismatch},
    },
    trace_context::{self, TraceContext},
};

/// Limits the memory of a pod that is retried for hours. The oldest spans are kept.
const MAX_SPANS: usize = 64;

/// Minimum time before a stopped pod counts as too slow.
const MIN_PATIENCE: Duration = Duration::from_secs(10);

/// The trace of a pod while it terminates.
#[derive(Debug)]
pub struct TraceRecorder {
    pod: PodRef,
    start: Instant,
    /// Time taken in earlier runs of the agent; `None` if this run has begun it.
    earlier: Option<Duration>,
    state: watch::Sender<RecordedTrace>,
}

#[derive(Debug)]
pub(crate) struct RecordedTrace {
    /// Without what depends on the present time.
    trace: Trace,
    grace: Duration,
    /// When the grace period expires, if it has begun.
    deadline: Option<Instant>,
    kill_at: Option<Instant>,
    finished: Option<Instant>,
}

/// A span in progress. It ends when this is dropped.
#[derive(Debug)]
pub struct OpenSpan<'a> {
    record: &'a TraceRecorder,
    index: Option<usize>,
    start_ms: u64,
}

// === impl TraceRecorder ===

impl TraceRecorder {
    /// A trace that begins now.
    pub fn new(pod: PodRef, cause: Cause, grace: Duration, deadline: Option<Instant>) -> Self {
        let state = RecordedTrace {
            trace: Trace::new(&pod, cause, Timestamp::now()),
            grace,
            deadline,
            kill_at: None,
            finished: None,
        };
        Self {
            pod,
            start: Instant::now(),
            earlier: None,
            state: watch::Sender::new(state),
        }
    }

    /// A trace that an earlier run of the agent has begun at `begun`.
    #[must_use]
    pub fn resumed(self, begun: &Mark, now: &Mark) -> Self {
        self.update(|state| (state.trace.began, state.trace.resumed) = (begun.wall, Some(now.wall)));
        // After a reboot only the wall clock is left, and it may have been set back.
        let taken = begun.elapsed(now).unwrap_or_else(|| between(begun.wall, now.wall));
        Self {
            earlier: Some(taken),
            ..self
        }
    }

    /// The pod of this trace.
    pub fn pod(&self) -> &PodRef {
        &self.pod
    }

    /// Sets the grace period, and its deadline once it has begun.
    pub fn set_grace(&self, grace: Duration, deadline: Option<Instant>) {
        self.update(|state| (state.grace, state.deadline) = (grace, deadline));
    }

    /// Begins the next attempt.
    pub fn begin_attempt(&self) {
        self.update(|state| {
            state.finished = None;
            let trace = &mut state.trace;
            trace.attempts += 1;
            trace.blocked.iter_mut().for_each(|blocked| blocked.retry_at = None);
            trace.waits_for_deletion = false;
        });
    }

    /// Changes the trace, apart from what [`Self::trace`] derives from the present time.
    pub fn change(&self, change: impl FnOnce(&mut Trace)) {
        self.update(|state| change(&mut state.trace));
    }

    /// Reads the trace, apart from what [`Self::trace`] derives from the present time.
    pub fn read<T>(&self, read: impl FnOnce(&Trace) -> T) -> T {
        read(&self.state.borrow().trace)
    }

    /// Sets what blocks the pod; empty if nothing does.
    pub fn set_blocked(&self, blocked: Vec<Obstacle>) {
        self.change(|trace| trace.blocked = blocked);
    }

    /// Sets the mismatch that a user has to approve, with its message.
    pub fn set_mismatch(&self, mismatch: Option<(Mismatch, String)>) {
        self.change(|trace| {
            let before = trace.mismatch.take();
            trace.mismatch = mismatch.map(|(mismatch, why)| {
                let same = before.filter(|before| before.mismatch.kind == mismatch.kind);
                UnapprovedMismatch {
                    since: same.map_or_else(Timestamp::now, |before| before.since),
                    mismatch,
                    why,
                }
            });
        });
    }

    /// Sets the report of what the runtime still shows as running, and when this agent kills it, if it does.
    pub fn set_runtime_state(&self, runtime_state: Option<String>, kill_at: Option<Instant>) {
        self.update(|state| (state.trace.runtime_state, state.kill_at) = (runtime_state, kill_at));
    }

    /// Whether this is the first attempt, in this and earlier runs of the agent.
    pub fn is_first_attempt(&self) -> bool {
        self.earlier.is_none() && self.state.borrow().trace.attempts <= 1
    }

    /// Adds a failure during an attempt.
    pub fn add_failure(&self, failure: Obstacle) {
        self.change(|trace| {
            if !trace.blocked.contains(&failure) {
                trace.blocked.push(failure);
            }
        });
    }

    /// Notifies of each change of [`Self::trace`], except of durations.
    pub(crate) fn subscribe(&self) -> watch::Receiver<RecordedTrace> {
        self.state.subscribe()
    }

    /// The present stage.
    pub fn stage(&self) -> Stage {
        self.read(|trace| trace.stage)
    }

    /// Enters a stage. `Finished` clears what blocks the pod.
    pub fn set_stage(&self, stage: Stage) {
        self.update(|state| {
            state.trace.stage = stage;
            if stage == Stage::Finished {
                state.finished = Some(Instant::now());
                state.trace.blocked.clear();
                state.trace.mismatch = None;
            }
        });
    }

    /// Records that only the deletion of the pod is missing.
    pub fn set_kept(&self) {
        self.update(|state| (state.finished, state.trace.waits_for_deletion) = (Some(Instant::now()), true));
    }

    /// Records the terminal phase of the pod in the API, if it has one.
    pub fn set_terminal_state(&self, view: &PodView) {
        let status = view.object.status();
        let Some(status) = status.filter(|_| view.terminal_phase) else {
            return;
        };
        let (phase, reason) = (status.phase.clone(), status.reason.clone());
        self.change(|trace| (trace.phase, trace.reason) = (phase, reason));
    }

    /// Whether no container runs, and the API server shows that or the object is deleted.
    pub fn has_terminated(&self) -> bool {
        let state = self.state.borrow();
        // `kept` follows from an answer of the API server that the watch may not have seen yet.
        state.has_terminated() || state.trace.stage >= Stage::Terminated && state.trace.waits_for_deletion
    }

    /// Waits until the pod has terminated and its terminal phase is known.
    pub async fn wait_until_terminated(&self) {
        // The sender lives as long as `self`.
        self.subscribe().wait_for(RecordedTrace::has_terminated).await.ok();
    }

    /// Whether the pod was stopped by a user and takes longer than 1.5 times its grace period.
    pub fn exceeds_grace_period(&self) -> bool {
        let patience = (self.state.borrow().grace * 3 / 2).max(MIN_PATIENCE);
        let is_requested = self.read(|trace| trace.cause == Cause::Requested);
        is_requested && self.stage() == Stage::Terminating && self.elapsed() > patience
    }

    /// Begins a span.
    pub fn span(&self, step: Step, what: &str) -> OpenSpan<'_> {
        let start_ms = self.millis_at(Instant::now());
        let mut index = None;
        self.change(|trace| {
            let spans = &mut trace.spans;
            if spans.len() < MAX_SPANS {
                index = Some(spans.len());
                spans.push(Span {
                    step,
                    what: what.to_owned(),
                    start_ms,
                    end_ms: None,
                    failure: None,
                });
            }
        });
        OpenSpan {
            record: self,
            index,
            start_ms,
        }
    }

    /// Time since the beginning, until now or until it finished.
    pub fn elapsed(&self) -> Duration {
        let finished = self.state.borrow().finished;
        self.since_begun(finished.unwrap_or_else(Instant::now))
    }

    /// The trace up to now.
    pub fn trace(&self) -> Trace {
        let now = Instant::now();
        let state = self.state.borrow();
        let left = |until: Instant| until.saturating_duration_since(now);
        Trace {
            grace_seconds: state.grace.as_secs(),
            grace_left_ms: millis(state.deadline.map_or(state.grace, left)),
            grace_end_ms: state.deadline.map(|deadline| self.millis_at(deadline)),
            grace_counted_from: match state.deadline {
                Some(_) => GraceStart::Termination,
                None => GraceStart::NotBegun,
            },
            elapsed_ms: self.millis_at(state.finished.unwrap_or(now)),
            kill_in_ms: state.kill_at.map(|at| millis(left(at))),
            ..state.trace.clone()
        }
    }

    /// Changes the state, and notifies subscribers.
    fn update(&self, change: impl FnOnce(&mut RecordedTrace)) {
        self.state.send_modify(change);
    }

    fn millis_at(&self, at: Instant) -> u64 {
        millis(self.since_begun(at))
    }

    /// A grace period may have expired before this run of the agent.
    fn since_begun(&self, at: Instant) -> Duration {
        let earlier = self.earlier.unwrap_or_default();
        (earlier + at.saturating_duration_since(self.start)).saturating_sub(self.start.saturating_duration_since(at))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// === impl RecordedTrace ===

impl RecordedTrace {
    fn has_terminated(&self) -> bool {
        let Trace { stage, phase, .. } = &self.trace;
        *stage >= Stage::Deleted || *stage >= Stage::Terminated && phase.is_some()
    }
}

// === impl OpenSpan ===

impl OpenSpan<'_> {
    /// The context for calls of this span, if the pod is traced: spans of the runtime hang below this one.
    pub fn context(&self) -> Option<TraceContext> {
        trace_context::current()?;
        let root = TraceContext::for_pod(self.record.pod.uid.as_str());
        Some(root.step(self.index?, self.start_ms))
    }

    /// Ends the span with a failure.
    pub fn failed(self, why: &(impl ToString + ?Sized)) {
        let why = why.to_string();
        self.change(|span| span.failure = Some(why));
    }

    /// Ends this span and begins the next one.
    pub fn then(self, step: Step, what: &str) -> Self {
        let record = self.record;
        drop(self);
        record.span(step, what)
    }

    /// Ends the span with this result.
    pub fn end<T, E: ToString>(self, result: &Result<T, E>) {
        if let Err(error) = result {
            self.failed(error);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Span)) {
        let Some(index) = self.index else { return };
        self.record.change(|trace| {
            trace.spans.get_mut(index).map(change);
        });
    }
}

impl Drop for OpenSpan<'_> {
    fn drop(&mut self) {
        let now = self.record.millis_at(Instant::now());
        self.change(|span| span.end_ms = Some(now));
    }
}

#[cfg(test)]
mod tests;
