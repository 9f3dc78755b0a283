//! Registers the values of a scrape as metrics.

use std::{borrow::Cow, sync::atomic::AtomicU64, time::Duration};

use jiff::Timestamp;
use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{self, ConstGauge, Gauge},
    },
    registry::{Metric, Registry, Unit},
};
use strum::VariantArray;

use crate::{counters::Failures, model::foreign::ForeignText};

/// A line for each family: its name without prefix, unit and suffix, a colon and its help.
const HELP: &str = include_str!("help.txt");
/// Maximum length of a label value, in bytes.
const MAX_VALUE: usize = 256;

/// Names and values of labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// The metrics of one scrape. A family without series is not encoded.
pub(super) struct Metrics<'a>(pub &'a mut Registry);

/// Labels whose values are escaped and truncated: some come from the cluster, such as names of kinds.
pub(super) fn labels<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    let escaped = labels.map(|(name, value)| (name, ForeignText::within(value, MAX_VALUE).into()));
    escaped.into()
}

/// Time since the Unix epoch; `None` before it.
pub(super) fn since_epoch(time: Option<Timestamp>) -> Option<Duration> {
    let seconds = u64::try_from(time?.as_second()).ok()?;
    Some(Duration::from_secs(seconds))
}

// === impl Metrics ===

impl Metrics<'_> {
    pub fn register(&mut self, name: &'static str, metric: impl Metric) {
        self.0.register(name, help(name), metric);
    }

    pub fn register_seconds(&mut self, name: &'static str, metric: impl Metric) {
        self.0.register_with_unit(name, help(name), Unit::Seconds, metric);
    }

    pub fn gauge(&mut self, name: &'static str, value: impl Into<u64>) {
        self.register(name, ConstGauge::new(value.into()));
    }

    /// A gauge for the number of these.
    pub fn count(&mut self, name: &'static str, count: usize) {
        self.gauge(name, count as u64);
    }

    pub fn gauges(&mut self, name: &'static str, values: impl IntoIterator<Item = (Labels, u64)>) {
        self.register(name, family(values));
    }

    /// A gauge in seconds, without a sample for `None`.
    pub fn seconds(&mut self, name: &'static str, value: impl Into<Option<Duration>>) {
        if let Some(value) = value.into() {
            self.register_seconds(name, ConstGauge::new(value.as_secs_f64()));
        }
    }

    pub fn seconds_of(&mut self, name: &'static str, values: impl IntoIterator<Item = (Labels, Duration)>) {
        let values = values.into_iter().map(|(labels, value)| (labels, value.as_secs_f64()));
        self.register_seconds(name, family(values));
    }

    /// Gauges of which that of the current state is 1, and those of all other states are 0.
    pub fn state<T: PartialEq + ToString + VariantArray>(
        &mut self,
        name: &'static str,
        label: &'static str,
        current: Option<&T>,
    ) {
        let value = |state: &T| (labels([(label, &state.to_string())]), u64::from(current == Some(state)));
        self.gauges(name, T::VARIANTS.iter().map(value));
    }

    pub fn counter(&mut self, name: &'static str, value: u64) {
        self.register(name, ConstCounter::new(value));
    }

    pub fn counters(&mut self, name: &'static str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.register(name, family);
    }

    /// Counters of failures, with the labels `step` and `reason`.
    pub fn failures<S: ToString>(&mut self, name: &'static str, failures: &Failures<S>) {
        let failures = failures.iter().flat_map(|(step, reasons)| {
            let step = step.to_string();
            let of_reason =
                move |(reason, times): (&Cow<'_, str>, &u64)| (labels([("step", &step), ("reason", reason)]), *times);
            reasons.iter().map(of_reason)
        });
        self.counters(name, failures);
    }
}

fn help(name: &str) -> &'static str {
    let of_line = |line: &'static str| line.strip_prefix(name)?.strip_prefix(": ");
    let help = HELP.lines().find_map(of_line).unwrap_or_default();
    // The library adds a full stop.
    help.trim_end_matches('.')
}

fn family<V>(values: impl IntoIterator<Item = (Labels, V)>) -> Family<Labels, Gauge<V, AtomicU64>>
where
    AtomicU64: gauge::Atomic<V>,
{
    let family = Family::<Labels, Gauge<V, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    family
}
