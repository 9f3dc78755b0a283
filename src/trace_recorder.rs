//! Records the trace of one pod's termination for `status`, `timeline` and the log.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Duration, Instant},
};

use crate::{
    clock::Mark,
    model::{
        mismatch::Mismatch,
        pod::{PodRef, PodView},
        termination::{Cause, GraceStart},
        trace::{Blocked, Span, Stage, Step, Trace, UnapprovedMismatch},
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
    began: Timestamp,
    cause: Cause,
    start: Instant,
    /// Time taken in earlier runs of the agent, and when this run resumed it; `None` if this run has begun it.
    resumed: Option<(Duration, Timestamp)>,
    progress: watch::Sender<Progress>,
    state: Mutex<RecordedTrace>,
}

/// Progress that others wait for.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    stage: Stage,
    /// The terminal phase in the API.
    shown: Option<TerminalState>,
    /// Only a deletion is missing.
    kept: bool,
}

/// A terminal phase in the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalState {
    /// `Failed` or `Succeeded`.
    pub phase: String,
    /// Such as `Evicted`.
    pub reason: Option<String>,
}

#[derive(Debug)]
struct RecordedTrace {
    grace: Duration,
    /// When the grace period expires, if it has begun.
    deadline: Option<Instant>,
    attempts: u32,
    blocked: Vec<Blocked>,
    spans: Vec<Span>,
    mismatch: Option<UnapprovedMismatch>,
    finalizers: Vec<String>,
    canceled: Option<String>,
    runtime_state: Option<String>,
    kill_at: Option<Instant>,
    sandbox_error: Option<String>,
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
        Self {
            pod,
            began: Timestamp::now(),
            cause,
            start: Instant::now(),
            resumed: None,
            progress: watch::Sender::default(),
            state: Mutex::new(RecordedTrace {
                grace,
                deadline,
                attempts: 0,
                blocked: Vec::new(),
                spans: Vec::new(),
                mismatch: None,
                finalizers: Vec::new(),
                canceled: None,
                runtime_state: None,
                kill_at: None,
                sandbox_error: None,
                finished: None,
            }),
        }
    }

    /// A trace that an earlier run of the agent has begun at `begun`.
    #[must_use]
    pub fn resumed(self, begun: &Mark, now: &Mark) -> Self {
        // After a reboot only the wall clock is left, and it may have been set back.
        let taken = begun.elapsed(now);
        let taken = taken.unwrap_or_else(|| now.wall.duration_since(begun.wall).try_into().unwrap_or_default());
        Self {
            began: begun.wall,
            resumed: Some((taken, now.wall)),
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
        {
            let mut state = self.lock();
            state.attempts += 1;
            state.finished = None;
            state.blocked.iter_mut().for_each(|blocked| blocked.retry_at = None);
        }
        self.progress.send_modify(|progress| progress.kept = false);
    }

    /// Sets what blocks the pod; empty if nothing does.
    pub fn set_blocked(&self, blocked: Vec<Blocked>) {
        self.update(|state| state.blocked = blocked);
    }

    /// Whether anything blocks the pod.
    pub fn is_blocked(&self) -> bool {
        !self.lock().blocked.is_empty()
    }

    /// Sets the mismatch that a user has to approve, with its message.
    pub fn set_mismatch(&self, mismatch: Option<(Mismatch, String)>) {
        self.update(|state| {
            let before = state.mismatch.take();
            state.mismatch = mismatch.map(|(mismatch, why)| {
                let same = before.filter(|before| before.mismatch.kind == mismatch.kind);
                UnapprovedMismatch {
                    since: same.map_or_else(Timestamp::now, |before| before.since),
                    mismatch,
                    why,
                }
            });
        });
    }

    /// Sets the finalizers that keep its object, from the answer to the final delete; empty when it is deleted.
    pub fn set_finalizers(&self, finalizers: Vec<String>) {
        self.update(|state| state.finalizers = finalizers);
    }

    /// Whether finalizers are known to keep its object.
    pub fn has_finalizers(&self) -> bool {
        !self.lock().finalizers.is_empty()
    }

    /// Records why the stop request was canceled.
    pub fn set_canceled(&self, why: String) {
        self.update(|state| state.canceled = Some(why));
    }

    /// Sets the report of what the runtime still shows as running, and when this agent kills it, if it does.
    pub fn set_runtime_state(&self, runtime_state: Option<String>, kill_at: Option<Instant>) {
        self.update(|state| (state.runtime_state, state.kill_at) = (runtime_state, kill_at));
    }

    /// Records a failed stop of the sandbox. Only the first error is kept: some runtimes report a network failure once and then succeed.
    pub fn set_sandbox_error(&self, why: String) {
        self.update(|state| {
            state.sandbox_error.get_or_insert(why);
        });
    }

    /// Removes a resolved failure.
    pub fn clear_failure(&self, failure: &Blocked) {
        self.update(|state| state.blocked.retain(|other| other != failure));
    }

    /// Whether this is the first attempt, in this and earlier runs of the agent.
    pub fn is_first_attempt(&self) -> bool {
        self.resumed.is_none() && self.lock().attempts <= 1
    }

    /// Adds a failure during an attempt.
    pub fn add_failure(&self, failure: Blocked) {
        self.update(|state| {
            if !state.blocked.contains(&failure) {
                state.blocked.push(failure);
            }
        });
    }

    /// Notifies of each change of [`Self::trace`], except of durations.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// The present stage.
    pub fn stage(&self) -> Stage {
        self.progress.borrow().stage
    }

    /// Enters a stage. `Finished` clears what blocks the pod.
    pub fn set_stage(&self, stage: Stage) {
        if stage == Stage::Finished {
            let mut state = self.lock();
            state.finished = Some(Instant::now());
            state.blocked.clear();
            state.mismatch = None;
        }
        self.progress.send_modify(|progress| progress.stage = stage);
    }

    /// Records that only the deletion of the pod is missing.
    pub fn set_kept(&self) {
        self.lock().finished = Some(Instant::now());
        self.progress.send_modify(|progress| progress.kept = true);
    }

    /// Records the terminal phase of the pod in the API, if it has one.
    pub fn set_terminal_state(&self, view: &PodView) {
        let status = view.object.status();
        let Some(status) = status.filter(|_| view.terminal_phase) else {
            return;
        };
        let shown = TerminalState {
            phase: status.phase.clone().unwrap_or_default(),
            reason: status.reason.clone(),
        };
        self.progress.send_modify(|progress| progress.shown = Some(shown));
    }

    /// The terminal phase in the API.
    pub fn terminal_state(&self) -> Option<TerminalState> {
        self.progress.borrow().shown.clone()
    }

    /// Whether no container runs, and the API server shows that or the object is deleted.
    pub fn has_terminated(&self) -> bool {
        let progress = self.progress.borrow();
        // `kept` follows from an answer of the API server that the watch may not have seen yet.
        progress.has_terminated() || progress.stage >= Stage::Terminated && progress.kept
    }

    /// Waits until the pod has terminated and its terminal phase is known.
    pub async fn wait_until_terminated(&self) {
        // The sender lives as long as `self`.
        self.progress.subscribe().wait_for(Progress::has_terminated).await.ok();
    }

    /// Whether the pod was stopped by a user and takes longer than 1.5 times its grace period.
    pub fn exceeds_grace_period(&self) -> bool {
        let patience = (self.lock().grace * 3 / 2).max(MIN_PATIENCE);
        self.cause == Cause::Requested && self.stage() == Stage::Terminating && self.elapsed() > patience
    }

    /// Begins a span.
    pub fn span(&self, step: Step, what: &str) -> OpenSpan<'_> {
        let start_ms = self.millis_at(Instant::now());
        let index = self.update(|state| {
            let index = (state.spans.len() < MAX_SPANS).then_some(state.spans.len())?;
            state.spans.push(Span {
                step,
                what: what.to_owned(),
                start_ms,
                end_ms: None,
                failure: None,
            });
            Some(index)
        });
        OpenSpan {
            record: self,
            index,
            start_ms,
        }
    }

    /// Calls `each` with step and duration of each span that has ended.
    pub fn for_each_ended_span(&self, mut each: impl FnMut(Step, Duration)) {
        for span in &self.lock().spans {
            if let Some(end_ms) = span.end_ms {
                each(span.step, Duration::from_millis(end_ms.saturating_sub(span.start_ms)));
            }
        }
    }

    /// Time since the beginning, until now or until it finished.
    pub fn elapsed(&self) -> Duration {
        let finished = self.lock().finished;
        self.since_begun(finished.unwrap_or_else(Instant::now))
    }

    /// The trace up to now.
    pub fn trace(&self) -> Trace {
        let now = Instant::now();
        let shown = self.terminal_state();
        let kept = self.progress.borrow().kept;
        let state = self.lock();
        Trace {
            namespace: self.pod.namespace.to_string(),
            name: self.pod.name.to_string(),
            uid: self.pod.uid.to_string(),
            began: self.began,
            resumed: self.resumed.map(|(_, at)| at),
            cause: self.cause,
            grace_seconds: state.grace.as_secs(),
            grace_left_ms: millis(
                state
                    .deadline
                    .map_or(state.grace, |deadline| deadline.saturating_duration_since(now)),
            ),
            grace_end_ms: state.deadline.map(|deadline| self.millis_at(deadline)),
            grace_counted_from: match state.deadline {
                Some(_) => GraceStart::Termination,
                None => GraceStart::NotBegun,
            },
            stage: self.stage(),
            elapsed_ms: self.millis_at(state.finished.unwrap_or(now)),
            attempts: state.attempts,
            blocked: state.blocked.clone(),
            reason: shown.as_ref().and_then(|shown| shown.reason.clone()),
            phase: shown.map(|shown| shown.phase),
            waits_for_deletion: kept,
            finalizers: state.finalizers.clone(),
            canceled_because: state.canceled.clone(),
            runtime_state: state.runtime_state.clone(),
            kill_in_ms: state.kill_at.map(|at| millis(at.saturating_duration_since(now))),
            sandbox_error: state.sandbox_error.clone(),
            spans: state.spans.clone(),
            mismatch: state.mismatch.clone(),
        }
    }

    /// Changes the state, and notifies subscribers.
    fn update<T>(&self, change: impl FnOnce(&mut RecordedTrace) -> T) -> T {
        let changed = change(&mut self.lock());
        self.progress.send_modify(|_| ());
        changed
    }

    fn millis_at(&self, at: Instant) -> u64 {
        millis(self.since_begun(at))
    }

    /// A grace period may have expired before this run of the agent.
    fn since_begun(&self, at: Instant) -> Duration {
        let before = self.resumed.map(|(taken, _)| taken).unwrap_or_default();
        (before + at.saturating_duration_since(self.start)).saturating_sub(self.start.saturating_duration_since(at))
    }

    fn lock(&self) -> MutexGuard<'_, RecordedTrace> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// === impl Progress ===

impl Progress {
    fn has_terminated(&self) -> bool {
        self.stage >= Stage::Deleted || self.stage >= Stage::Terminated && self.shown.is_some()
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

    /// Ends the span successfully.
    pub fn done(self) {}

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
        match result {
            Ok(_) => self.done(),
            Err(error) => self.failed(error),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Span)) {
        let Some(index) = self.index else { return };
        self.record.update(|state| state.spans.get_mut(index).map(change));
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
