//! The story of one pod's end, step by step, for `status`, `timeline` and the log.

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
        termination::Cause,
        trace::{Blocked, OpenMismatch, Span, Stage, Step, Story},
    },
};

/// A pod retried for hours must not grow without bound; the oldest bars say most.
const MAX_SPANS: usize = 64;

/// However short the grace period is.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

/// The story while it is being written.
#[derive(Debug)]
pub struct Record {
    pod: PodRef,
    began: Timestamp,
    cause: Cause,
    start: Instant,
    /// How long it had taken when this run of the agent began, and when that was; nothing where this run has begun it.
    resumed: Option<(Duration, Timestamp)>,
    standing: watch::Sender<Standing>,
    state: Mutex<State>,
}

/// How far it is.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    stage: Stage,
    /// That the pod is over, as the API server shows it.
    shown: Option<Shown>,
    /// Until a deletion comes.
    kept: bool,
}

/// An end as the API server shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// `Failed` or `Succeeded`.
    pub phase: String,
    /// Such as `Evicted`.
    pub reason: Option<String>,
}

#[derive(Debug)]
struct State {
    grace: Duration,
    /// When the grace period is over, if it has begun.
    deadline: Option<Instant>,
    attempts: u32,
    blocked: Vec<Blocked>,
    spans: Vec<Span>,
    mismatch: Option<OpenMismatch>,
    finalizers: Vec<String>,
    given_up: Option<String>,
    runtime_state: Option<String>,
    sandbox_error: Option<String>,
    finished: Option<Instant>,
}

/// A bar that is being drawn; it ends with its guard at the latest.
#[derive(Debug)]
pub struct OpenSpan<'a> {
    record: &'a Record,
    index: Option<usize>,
}

// === impl Record ===

impl Record {
    /// A story that begins now.
    pub fn new(pod: PodRef, cause: Cause, grace: Duration, deadline: Option<Instant>) -> Self {
        Self {
            pod,
            began: Timestamp::now(),
            cause,
            start: Instant::now(),
            resumed: None,
            standing: watch::Sender::default(),
            state: Mutex::new(State {
                grace,
                deadline,
                attempts: 0,
                blocked: Vec::new(),
                spans: Vec::new(),
                mismatch: None,
                finalizers: Vec::new(),
                given_up: None,
                runtime_state: None,
                sandbox_error: None,
                finished: None,
            }),
        }
    }

    /// The same, where an earlier run of this agent began it at `begun`.
    #[must_use]
    pub fn resumed(self, begun: &Mark, now: &Mark) -> Self {
        // After a reboot the wall clock is all there is, and it may have been set back.
        let taken = begun.elapsed(now);
        let taken = taken.unwrap_or_else(|| now.wall.duration_since(begun.wall).try_into().unwrap_or_default());
        Self {
            began: begun.wall,
            resumed: Some((taken, now.wall)),
            ..self
        }
    }

    /// Whose story this is.
    pub fn pod(&self) -> &PodRef {
        &self.pod
    }

    /// The grace period was shortened, or has begun.
    pub fn set_grace(&self, grace: Duration, deadline: Option<Instant>) {
        let mut state = self.lock();
        state.grace = grace;
        state.deadline = deadline;
    }

    /// The next attempt begins.
    pub fn attempt(&self) {
        self.standing.send_modify(|standing| standing.kept = false);
        let mut state = self.lock();
        state.attempts += 1;
        state.finished = None;
    }

    /// Why the pod does not go on; nothing if it does.
    pub fn set_blocked(&self, blocked: Vec<Blocked>) {
        self.lock().blocked = blocked;
        self.changed();
    }

    /// Whether anything keeps the pod from going on.
    pub fn is_blocked(&self) -> bool {
        !self.lock().blocked.is_empty()
    }

    /// The facts that a user has to approve, with the message.
    pub fn set_mismatch(&self, mismatch: Option<(Mismatch, String)>) {
        let mut state = self.lock();
        let before = state.mismatch.take();
        state.mismatch = mismatch.map(|(mismatch, why)| {
            let same = before.filter(|before| before.mismatch.kind == mismatch.kind);
            OpenMismatch {
                since: same.map_or_else(Timestamp::now, |before| before.since),
                mismatch,
                why,
            }
        });
    }

    /// What keeps its object, as the answer to the delete says; nothing once it is gone.
    pub fn set_finalizers(&self, finalizers: Vec<String>) {
        self.lock().finalizers = finalizers;
    }

    /// Whether any are known to.
    pub fn is_kept_by_finalizers(&self) -> bool {
        !self.lock().finalizers.is_empty()
    }

    /// The request for its end is given up, for this reason.
    pub fn give_up(&self, why: String) {
        self.lock().given_up = Some(why);
    }

    /// What is to be said of the runtime's word that containers run.
    pub fn set_runtime_state(&self, state: Option<String>) {
        self.lock().runtime_state = state;
    }

    /// A stop of its sandbox failed so. The first time counts: some runtimes report a failure of the network once, and then
    /// call it done.
    pub fn sandbox_failed(&self, why: String) {
        self.lock().sandbox_error.get_or_insert(why);
    }

    /// What was shown as a failure is none any more.
    pub fn mends(&self, failure: &Blocked) {
        self.lock().blocked.retain(|other| other != failure);
        self.changed();
    }

    /// Whether no attempt came before, in this run of the agent or in an earlier one.
    pub fn is_first_attempt(&self) -> bool {
        self.resumed.is_none() && self.lock().attempts <= 1
    }

    /// What fails while the attempt goes on, beside what has failed already.
    pub fn fails(&self, failure: Blocked) {
        let mut state = self.lock();
        if !state.blocked.contains(&failure) {
            state.blocked.push(failure);
        }
        drop(state);
        self.changed();
    }

    /// Marks each change of what [`Self::tell`] tells, but for what the clock changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Where the pod stands.
    pub fn stage(&self) -> Stage {
        self.standing.borrow().stage
    }

    /// The pod has come to this stage.
    pub fn set_stage(&self, stage: Stage) {
        if stage == Stage::Finished {
            let mut state = self.lock();
            state.finished = Some(Instant::now());
            state.blocked.clear();
            state.mismatch = None;
        }
        self.standing.send_modify(|standing| standing.stage = stage);
    }

    /// Nothing is left to do but for a deletion.
    pub fn is_kept(&self) {
        self.lock().finished = Some(Instant::now());
        self.standing.send_modify(|standing| standing.kept = true);
    }

    /// The API server shows the pod like this.
    pub fn is_shown(&self, view: &PodView) {
        let status = view.object.as_ref().and_then(|object| object.pod.status.as_ref());
        let Some(status) = status.filter(|_| view.terminal_phase) else {
            return;
        };
        let shown = Shown {
            phase: status.phase.clone().unwrap_or_default(),
            reason: status.reason.clone(),
        };
        self.standing.send_modify(|standing| standing.shown = Some(shown));
    }

    /// The end that the API server was last seen to show.
    pub fn shown(&self) -> Option<Shown> {
        self.standing.borrow().shown.clone()
    }

    /// Whether nothing runs, and the API server shows that or has no such object any more.
    pub fn has_ended(&self) -> bool {
        let standing = self.standing.borrow();
        // To keep a pod is decided by an answer of the API server, of which the watch may not have heard yet.
        standing.has_ended() || standing.stage >= Stage::Terminated && standing.kept
    }

    /// Returns when the pod has ended and it is known how.
    pub async fn ends(&self) {
        // The sender is ours: it cannot close.
        self.standing.subscribe().wait_for(Standing::has_ended).await.ok();
    }

    /// Whether somebody who asked for this pod's end has waited for longer than a kubelet would.
    pub fn takes_too_long(&self) -> bool {
        let patience = (self.lock().grace * 3 / 2).max(LEAST_PATIENCE);
        self.cause == Cause::Requested && self.stage() == Stage::Terminating && self.elapsed() > patience
    }

    /// Begins a bar.
    pub fn span(&self, step: Step, what: &str) -> OpenSpan<'_> {
        let start_ms = self.ms(Instant::now());
        let mut state = self.lock();
        let index = (state.spans.len() < MAX_SPANS).then_some(state.spans.len());
        if index.is_some() {
            state.spans.push(Span {
                step,
                what: what.to_owned(),
                start_ms,
                end_ms: None,
                failure: None,
            });
        }
        drop(state);
        self.changed();
        OpenSpan { record: self, index }
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        let finished = self.lock().finished;
        self.since_begun(finished.unwrap_or_else(Instant::now))
    }

    /// The story so far.
    pub fn tell(&self) -> Story {
        let now = Instant::now();
        let shown = self.shown();
        let kept = self.standing.borrow().kept;
        let state = self.lock();
        Story {
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
            stage: self.stage(),
            elapsed_ms: self.ms(state.finished.unwrap_or(now)),
            attempts: state.attempts,
            blocked: state.blocked.clone(),
            reason: shown.as_ref().and_then(|shown| shown.reason.clone()),
            phase: shown.map(|shown| shown.phase),
            kept,
            finalizers: state.finalizers.clone(),
            given_up: state.given_up.clone(),
            runtime_state: state.runtime_state.clone(),
            sandbox_error: state.sandbox_error.clone(),
            spans: state.spans.clone(),
            mismatch: state.mismatch.clone(),
        }
    }

    /// What is told has changed.
    fn changed(&self) {
        self.standing.send_modify(|_| ());
    }

    fn ms(&self, at: Instant) -> u64 {
        millis(self.since_begun(at))
    }

    fn since_begun(&self, at: Instant) -> Duration {
        let before = self.resumed.map(|(taken, _)| taken);
        before.unwrap_or_default() + at.saturating_duration_since(self.start)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// === impl Standing ===

impl Standing {
    fn has_ended(&self) -> bool {
        self.stage >= Stage::Deleted || self.stage >= Stage::Terminated && self.shown.is_some()
    }
}

// === impl OpenSpan ===

impl OpenSpan<'_> {
    /// The step was done.
    pub fn done(self) {}

    /// The step failed.
    pub fn failed(self, why: &(impl ToString + ?Sized)) {
        let why = why.to_string();
        self.change(|span| span.failure = Some(why));
    }

    /// Ends this bar and begins another where it ends.
    pub fn turn_into(self, step: Step, what: &str) -> Self {
        let record = self.record;
        drop(self);
        record.span(step, what)
    }

    /// Ends the bar as failed or done.
    pub fn end<T, E: ToString>(self, result: &Result<T, E>) {
        match result {
            Ok(_) => self.done(),
            Err(error) => self.failed(error),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Span)) {
        let Some(index) = self.index else { return };
        if let Some(span) = self.record.lock().spans.get_mut(index) {
            change(span);
        }
        self.record.changed();
    }
}

impl Drop for OpenSpan<'_> {
    fn drop(&mut self) {
        let now = self.record.ms(Instant::now());
        self.change(|span| span.end_ms = Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let pod = PodRef {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "pod".into(),
        };
        let grace = Duration::from_secs(30);
        Record::new(pod, Cause::Deleted, grace, Some(Instant::now() + grace))
    }

    #[tokio::test(start_paused = true)]
    async fn a_bar_ends_with_its_guard_and_keeps_why_it_failed() {
        let record = record();
        let open = record.span(Step::Term, "main");
        tokio::time::advance(Duration::from_secs(2)).await;
        let kill = open.turn_into(Step::Kill, "main");
        tokio::time::advance(Duration::from_secs(1)).await;
        kill.failed("hangs");
        let story = record.tell();
        let bars: Vec<_> = story
            .spans
            .iter()
            .map(|span| (span.step, span.start_ms, span.end_ms))
            .collect();
        assert_eq!(bars, [(Step::Term, 0, Some(2000)), (Step::Kill, 2000, Some(3000))]);
        assert_eq!(story.spans[1].failure.as_deref(), Some("hangs"));
        assert_eq!((story.grace_seconds, story.grace_left_ms), (30, 27_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_story_that_an_earlier_run_began_goes_on() {
        let mark = |boot_id: &str, since_boot, wall| Mark {
            boot_id: boot_id.to_owned(),
            since_boot: Duration::from_secs(since_boot),
            wall: Timestamp::from_second(wall).unwrap(),
        };
        let begun = mark("a", 100, 5000);
        // The clock on the wall was set back, and the machine was booted; at last both.
        for (now, taken) in [
            (mark("a", 107, 1000), 7_000),
            (mark("b", 3, 5060), 60_000),
            (mark("b", 3, 1000), 0),
        ] {
            let record = record().resumed(&begun, &now);
            tokio::time::advance(Duration::from_secs(2)).await;
            drop(record.span(Step::Term, "main"));
            let story = record.tell();
            assert_eq!((story.began, story.resumed), (begun.wall, Some(now.wall)));
            assert_eq!(story.elapsed_ms, taken + 2_000);
            assert_eq!(story.spans[0].start_ms, taken + 2_000);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_grace_period_that_has_not_begun_is_left_whole() {
        let grace = Duration::from_secs(30);
        let record = Record::new(record().pod().clone(), Cause::Deleted, grace, None);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(record.tell().grace_left_ms, 30_000);
        record.set_grace(grace, Some(Instant::now() + grace));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(record.tell().grace_left_ms, 20_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_retried_for_ever_does_not_grow() {
        let record = record();
        for _ in 0..1000 {
            record.span(Step::Sandbox, "").failed("no CNI");
        }
        assert_eq!(record.tell().spans.len(), MAX_SPANS);
    }
}
