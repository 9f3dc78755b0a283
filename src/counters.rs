//! Counters of the agent since its start.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use crate::{
    histogram::{self, Histograms},
    model::{failure::Failure, observation::Verdict, trace::Step},
    trace_recorder::TraceRecorder,
};

/// How often each step failed, by reason.
pub type Failures<S = Step> = BTreeMap<S, BTreeMap<Cow<'static, str>, u64>>;

/// The counters.
#[derive(Debug)]
pub struct Counters {
    counts: Mutex<Counts>,
    /// Durations of finished teardowns.
    pub teardown_durations: Histogram,
    /// Durations of their steps.
    pub step_durations: Histograms<1>,
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
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
    pub leftovers_found: u64,
    /// Failed attempts to unmount an unused volume.
    pub unused_volumes_failed: u64,
    /// Stop requests that were canceled because a kubelet was seen first.
    pub stop_requests_canceled: u64,
    /// Traces that a collector has accepted.
    pub traces_exported: u64,
    /// Traces that were dropped.
    pub traces_dropped: u64,
    /// Terminations by the kubelet that were observed, by verdict.
    pub observations: BTreeMap<Verdict, u64>,
    /// Failed writes of the journal. The journal counts this and the following fields itself.
    pub journal_writes_failed: u64,
    /// Durable writes of the journal.
    pub journal_commits: u64,
    /// Their total duration, in microseconds.
    pub journal_commits_us: u64,
}

// === impl Counters ===

impl Default for Counters {
    fn default() -> Self {
        Self {
            counts: Mutex::new(Counts {
                observations: Verdict::VARIANTS.iter().map(|&verdict| (verdict, 0)).collect(),
                ..Counts::default()
            }),
            teardown_durations: histogram::of_teardowns(),
            step_durations: Histograms::new_with_constructor(histogram::of_teardowns),
        }
    }
}

impl Counters {
    /// Changes the counters.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock());
    }

    /// A teardown has finished: counts it and its durations. Steps before a restart of the agent are not known any more.
    pub fn teardown_finished(&self, trace: &TraceRecorder) {
        self.counts.lock().finished += 1;
        self.teardown_durations.observe(trace.elapsed().as_secs_f64());
        trace.read(|trace| {
            for (span, end_ms) in trace.spans.iter().filter_map(|span| Some((span, span.end_ms?))) {
                let series = self.step_durations.get_or_create(&[("step", span.step.name().into())]);
                series.observe(Duration::from_millis(end_ms.saturating_sub(span.start_ms)).as_secs_f64());
            }
        });
    }

    /// Counts a failed attempt and its failures. An attempt that was interrupted has none, and is not counted.
    pub fn attempt_failed(&self, failures: &[Failure]) {
        if !failures.is_empty() {
            self.counts.lock().attempts_failed += 1;
            failures.iter().for_each(|failure| self.failed(failure));
        }
    }

    /// Counts a failure.
    pub fn failed(&self, Failure { step, reason, .. }: &Failure) {
        let mut counts = self.counts.lock();
        let reasons = counts.failures.entry(*step).or_default();
        *reasons.entry(reason.clone()).or_default() += 1;
    }

    /// A snapshot of all counters.
    pub fn counts(&self) -> Counts {
        self.counts.lock().clone()
    }
}
