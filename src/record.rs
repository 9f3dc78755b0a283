//! The story of one pod's end, step by step, for `status`, `timeline` and the log.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Duration, Instant};

use crate::pod::PodRef;

/// Steps of a teardown, in the order in which they are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A preStop hook runs.
    Hook,
    /// A container has its stop signal and ends by itself.
    Term,
    /// A container outlived its grace period.
    Kill,
    /// Sandboxes are stopped.
    Sandbox,
    /// Volumes are unmounted and their directories removed.
    Volumes,
    /// The pod's cgroup is emptied and removed.
    Cgroup,
    /// The status is sent.
    Status,
    /// The final delete.
    Delete,
    /// Containers, sandboxes, logs and the pod's directory are removed.
    Cleanup,
}

/// Where a pod's end stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Its containers are being stopped.
    Terminating,
    /// Nothing of it runs; the node is being cleaned.
    Terminated,
    /// The API object is gone or held by finalizers; what is left in the runtime is being removed.
    Deleted,
    /// Nothing is left to do.
    Finished,
}

/// One bar of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// Which step.
    pub step: Step,
    /// What it was about, such as a container's name; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Milliseconds from the beginning.
    pub start_ms: u64,
    /// Milliseconds from the beginning; `None` while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<u64>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The story as it is told on request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Story {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Identity.
    pub uid: String,
    /// When this agent began.
    pub began: Timestamp,
    /// Grace period in force, in seconds.
    pub grace_seconds: u64,
    /// Time left of the grace period, in milliseconds; 0 when it is over.
    pub grace_left_ms: u64,
    /// Where it stands.
    pub stage: Stage,
    /// Milliseconds since the beginning, or until the end.
    pub elapsed_ms: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// What failed in the last attempt, while that has not been made good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// The bars.
    pub spans: Vec<Span>,
}

/// A pod retried for hours must not grow without bound; the oldest bars say most.
const MAX_SPANS: usize = 64;

/// The story while it is being written.
#[derive(Debug)]
pub struct Record {
    pod: PodRef,
    began: Timestamp,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    grace: Duration,
    deadline: Instant,
    stage: Stage,
    attempts: u32,
    failures: Vec<String>,
    spans: Vec<Span>,
    finished: Option<Instant>,
}

/// A bar that is being drawn; it ends with its guard at the latest.
#[derive(Debug)]
pub struct OpenSpan<'a> {
    record: &'a Record,
    index: Option<usize>,
}

// === impl Story ===

impl Story {
    /// The step that failed first in the last attempt. Failures are told as `STEP WHAT: WHY`.
    pub fn failed_at(&self) -> Option<Step> {
        let name = self.failures.first()?.split([' ', ':']).next()?;
        Step::ALL.into_iter().find(|step| step.to_string() == name)
    }
}

// === impl Step ===

impl Step {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Hook,
        Self::Term,
        Self::Kill,
        Self::Sandbox,
        Self::Volumes,
        Self::Cgroup,
        Self::Status,
        Self::Delete,
        Self::Cleanup,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hook => "hook",
            Self::Term => "term",
            Self::Kill => "kill",
            Self::Sandbox => "sandbox",
            Self::Volumes => "volumes",
            Self::Cgroup => "cgroup",
            Self::Status => "status",
            Self::Delete => "delete",
            Self::Cleanup => "cleanup",
        })
    }
}

// === impl Record ===

impl Record {
    /// A story that begins now.
    pub fn new(pod: PodRef, grace: Duration, deadline: Instant) -> Self {
        Self {
            pod,
            began: Timestamp::now(),
            start: Instant::now(),
            state: Mutex::new(State {
                grace,
                deadline,
                stage: Stage::Terminating,
                attempts: 0,
                failures: Vec::new(),
                spans: Vec::new(),
                finished: None,
            }),
        }
    }

    /// Whose story this is.
    pub fn pod(&self) -> &PodRef {
        &self.pod
    }

    /// The grace period was shortened.
    pub fn set_grace(&self, grace: Duration, deadline: Instant) {
        let mut state = self.lock();
        state.grace = grace;
        state.deadline = deadline;
    }

    /// The next attempt begins.
    pub fn attempt(&self) {
        self.lock().attempts += 1;
    }

    /// What failed in the attempt that has just ended; nothing if all went well.
    pub fn set_failures(&self, failures: Vec<String>) {
        self.lock().failures = failures;
    }

    /// Where the pod stands.
    pub fn stage(&self) -> Stage {
        self.lock().stage
    }

    /// The pod has come to this stage.
    pub fn set_stage(&self, stage: Stage) {
        let mut state = self.lock();
        state.stage = stage;
        if stage == Stage::Finished {
            state.finished = Some(Instant::now());
            state.failures.clear();
        }
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
        OpenSpan { record: self, index }
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.lock().finished.unwrap_or_else(Instant::now) - self.start
    }

    /// The story so far.
    pub fn tell(&self) -> Story {
        let now = Instant::now();
        let state = self.lock();
        Story {
            namespace: self.pod.namespace.to_string(),
            name: self.pod.name.to_string(),
            uid: self.pod.uid.to_string(),
            began: self.began,
            grace_seconds: state.grace.as_secs(),
            grace_left_ms: millis(state.deadline.saturating_duration_since(now)),
            stage: state.stage,
            elapsed_ms: self.ms(state.finished.unwrap_or(now)),
            attempts: state.attempts,
            failures: state.failures.clone(),
            spans: state.spans.clone(),
        }
    }

    fn ms(&self, at: Instant) -> u64 {
        millis(at.saturating_duration_since(self.start))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
        Record::new(pod, grace, Instant::now() + grace)
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
    async fn a_pod_that_is_retried_for_ever_does_not_grow() {
        let record = record();
        for _ in 0..1000 {
            record.span(Step::Sandbox, "").failed("no CNI");
        }
        assert_eq!(record.tell().spans.len(), MAX_SPANS);
    }
}
