//! Histograms of durations, with fixed buckets and few series.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Upper bounds in seconds for requests and writes: from a millisecond to the longest timeout.
pub const REQUEST_BOUNDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];
/// Upper bounds in seconds for teardowns and their steps: from a fast step to a long grace period.
pub const TEARDOWN_BOUNDS: &[f64] = &[
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// A histogram with one series for each `L`. `L` must have few values: a series is never removed.
#[derive(Debug)]
pub struct Histogram<L = ()> {
    bounds: &'static [f64],
    series: Mutex<BTreeMap<L, Buckets>>,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// Upper bound of each bucket in seconds, and the number of observations in it. The last bound is infinity. Not cumulative.
    pub counts: Vec<(f64, u64)>,
    /// Sum of all observations, in seconds.
    pub sum: f64,
}

/// A snapshot of all series.
pub type Snapshot<L = ()> = BTreeMap<L, Buckets>;

// === impl Histogram ===

impl<L: Ord + Clone> Histogram<L> {
    /// A histogram without observations. The bounds ascend.
    pub const fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            series: Mutex::new(BTreeMap::new()),
        }
    }

    /// Adds an observation. Only the first one of a series allocates.
    pub fn observe(&self, labels: L, duration: Duration) {
        let bounds = self.bounds;
        let mut series = self.lock();
        series
            .entry(labels)
            .or_insert_with(|| Buckets::empty(bounds))
            .observe(duration);
    }

    /// A copy of all series.
    pub fn snapshot(&self) -> Snapshot<L> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot<L>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Buckets ===

impl Buckets {
    /// Buckets without observations.
    pub fn empty(bounds: &[f64]) -> Self {
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        Self {
            counts: bounds.map(|bound| (bound, 0)).collect(),
            sum: 0.0,
        }
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Adds the observations of another series with the same bounds.
    pub fn add(&mut self, other: &Self) {
        for ((_, count), (_, more)) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }

    /// Adds an observation.
    pub fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        // A bound belongs to its bucket: `le` means "less or equal".
        let index = self.counts.partition_point(|(bound, _)| *bound < seconds);
        if let Some((_, count)) = self.counts.get_mut(index) {
            *count += 1;
        }
        self.sum += seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observation_is_in_the_first_bucket_whose_bound_is_not_less() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for ms in [500, 501, 1000, 1001] {
            histogram.observe((), Duration::from_millis(ms));
        }
        let buckets = histogram.snapshot().remove(&()).unwrap();
        assert_eq!(buckets.counts, [(0.5, 1), (1.0, 2), (f64::INFINITY, 1)]);
        assert_eq!(buckets.count(), 4);
        assert!((buckets.sum - 3.002).abs() < 1e-9, "{}", buckets.sum);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [REQUEST_BOUNDS, TEARDOWN_BOUNDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
