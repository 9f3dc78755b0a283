//! Histograms of durations in seconds, with fixed buckets and few series.

use std::borrow::Cow;

use prometheus_client::metrics::{family::Family, histogram::Histogram};

/// Upper bounds for requests and writes: from a millisecond to the longest timeout.
const REQUEST_BOUNDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];
/// Upper bounds for teardowns and their steps: from a fast step to a long grace period.
const TEARDOWN_BOUNDS: [f64; 16] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// Histograms with `N` labels. These must have few values: a series is never removed. Clones share the series.
pub type Histograms<const N: usize> = Family<[(&'static str, Cow<'static, str>); N], Histogram>;

/// A histogram of requests or writes. Clones share it.
pub fn of_requests() -> Histogram {
    Histogram::new(REQUEST_BOUNDS)
}

/// A histogram of teardowns or their steps. Clones share it.
pub fn of_teardowns() -> Histogram {
    Histogram::new(TEARDOWN_BOUNDS)
}
