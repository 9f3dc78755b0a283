//! Counters of the agent since its start.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};

use crate::{
    histogram::{Histogram, Snapshot, TEARDOWN_BOUNDS},
    model::{failure::Failure, observation::Verdict, trace::Step},
    trace_recorder::TraceRecorder,
};

/// How often each step failed, by reason.
pub type Failures<S = Step> = BTreeMap<S, BTreeMap<Cow<'static, str>, u64>>;

/// The counters.
#[derive(Debug)]
pub struct Counters {
    started: AtomicU64,
    deleted: AtomicU64,
    finished: AtomicU64,
    attempts_failed: AtomicU64,
    failures: Mutex<Failures>,
    hooks_failed: AtomicU64,
    events_dropped: AtomicU64,
    pods_unreadable: AtomicU64,
    workers_panicked: AtomicU64,
    leftovers_found: AtomicU64,
    unused_volumes_failed: AtomicU64,
    stop_requests_canceled: AtomicU64,
    traces_exported: AtomicU64,
    traces_dropped: AtomicU64,
    observations: [AtomicU64; Verdict::ALL.len()],
    teardown_durations: Histogram,
    step_durations: Histogram<Step>,
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Teardowns started.
    pub started: u64,
    /// Final deletes that the API server has accepted.
    pub deleted: u64,
    /// Finished teardowns.
    pub finished: u64,
    /// Failed attempts, which are retried.
    pub attempts_failed: u64,
    /// Failures of steps.
    #[serde(default)]
    pub failures: Failures,
    /// Failed preStop hooks.
    pub hooks_failed: u64,
    /// Events that were dropped.
    pub events_dropped: u64,
    /// Pod objects that could not be parsed.
    pub pods_unreadable: u64,
    /// Workers that panicked and were restarted.
    pub workers_panicked: u64,
    /// Deleted pods with leftovers on the node.
    #[serde(default)]
    pub leftovers_found: u64,
    /// Failed attempts to unmount an unused volume.
    #[serde(default)]
    pub unused_volumes_failed: u64,
    /// Stop requests that were canceled because a kubelet was seen first.
    #[serde(default)]
    pub stop_requests_canceled: u64,
    /// Traces that a collector has accepted.
    #[serde(default)]
    pub traces_exported: u64,
    /// Traces that were dropped.
    #[serde(default)]
    pub traces_dropped: u64,
    /// Terminations by the kubelet that were observed, by verdict.
    #[serde(default)]
    pub observations: BTreeMap<Verdict, u64>,
    /// Failed writes of the journal. The journal counts this and the following fields itself.
    #[serde(default)]
    pub journal_writes_failed: u64,
    /// Durable writes of the journal.
    #[serde(default)]
    pub journal_commits: u64,
    /// Their total duration, in microseconds.
    #[serde(default)]
    pub journal_commits_us: u64,
}

macro_rules! count {
    ($($(#[$doc:meta])* $method:ident => $field:ident;)*) => {
        $($(#[$doc])* pub fn $method(&self) { self.$field.fetch_add(1, Ordering::Relaxed); })*
    };
}

// === impl Counters ===

impl Default for Counters {
    fn default() -> Self {
        Self {
            started: AtomicU64::default(),
            deleted: AtomicU64::default(),
            finished: AtomicU64::default(),
            attempts_failed: AtomicU64::default(),
            failures: Mutex::default(),
            hooks_failed: AtomicU64::default(),
            events_dropped: AtomicU64::default(),
            pods_unreadable: AtomicU64::default(),
            workers_panicked: AtomicU64::default(),
            leftovers_found: AtomicU64::default(),
            unused_volumes_failed: AtomicU64::default(),
            stop_requests_canceled: AtomicU64::default(),
            traces_exported: AtomicU64::default(),
            traces_dropped: AtomicU64::default(),
            observations: Default::default(),
            teardown_durations: Histogram::new(TEARDOWN_BOUNDS),
            step_durations: Histogram::new(TEARDOWN_BOUNDS),
        }
    }
}

impl Counters {
    count! {
        /// A teardown has started.
        teardown_started => started;
        /// The final delete of a pod was accepted.
        pod_deleted => deleted;
        /// A hook failed.
        hook_failed => hooks_failed;
        /// An event was dropped.
        event_dropped => events_dropped;
        /// A pod object could not be parsed completely.
        pod_unreadable => pods_unreadable;
        /// A worker panicked.
        worker_panicked => workers_panicked;
        /// A deleted pod has leftovers on the node.
        leftover_found => leftovers_found;
        /// An unused volume could not be unmounted.
        unused_volume_failed => unused_volumes_failed;
        /// A stop request was canceled.
        stop_request_canceled => stop_requests_canceled;
    }

    /// A teardown has finished: counts it and its durations. Steps before a restart of the agent are not known any more.
    pub fn teardown_finished(&self, trace: &TraceRecorder) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.teardown_durations.observe((), trace.elapsed());
        trace.for_each_ended_span(|step, duration| self.step_durations.observe(step, duration));
    }

    /// Counts traces that a collector has accepted.
    pub fn traces_exported(&self, count: u64) {
        self.traces_exported.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts traces that were dropped.
    pub fn traces_dropped(&self, count: u64) {
        self.traces_dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts an observed termination.
    pub fn observed(&self, verdict: Verdict) {
        let counters = Verdict::ALL.iter().zip(&self.observations);
        for (_, counter) in counters.filter(|(of, _)| **of == verdict) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Durations of finished teardowns.
    pub fn teardown_durations(&self) -> Snapshot {
        self.teardown_durations.snapshot()
    }

    /// Durations of the steps of finished teardowns.
    pub fn step_durations(&self) -> Snapshot<Step> {
        self.step_durations.snapshot()
    }

    /// Counts a failed attempt and its failures. An attempt that was interrupted has none, and is not counted.
    pub fn attempt_failed(&self, failures: &[Failure]) {
        if failures.is_empty() {
            return;
        }
        self.attempts_failed.fetch_add(1, Ordering::Relaxed);
        for failure in failures {
            self.failed(failure);
        }
    }

    /// Counts a failure.
    pub fn failed(&self, Failure { step, reason, .. }: &Failure) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(*step).or_default().entry(reason.clone()).or_default() += 1;
    }

    /// A snapshot of all counters.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            started: read(&self.started),
            deleted: read(&self.deleted),
            finished: read(&self.finished),
            attempts_failed: read(&self.attempts_failed),
            failures: self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            hooks_failed: read(&self.hooks_failed),
            events_dropped: read(&self.events_dropped),
            pods_unreadable: read(&self.pods_unreadable),
            workers_panicked: read(&self.workers_panicked),
            leftovers_found: read(&self.leftovers_found),
            unused_volumes_failed: read(&self.unused_volumes_failed),
            stop_requests_canceled: read(&self.stop_requests_canceled),
            traces_exported: read(&self.traces_exported),
            traces_dropped: read(&self.traces_dropped),
            observations: Verdict::ALL
                .into_iter()
                .zip(&self.observations)
                .map(|(verdict, counter)| (verdict, read(counter)))
                .collect(),
            journal_writes_failed: 0,
            journal_commits: 0,
            journal_commits_us: 0,
        }
    }
}
