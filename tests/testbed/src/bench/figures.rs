//! Median and range.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Summary of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

// === impl Figures ===

impl Figures {
    /// Of at least one measurement; of none, zeros.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self {
            median: middle(&values),
            min: values.first().copied().unwrap_or_default(),
            max: values.last().copied().unwrap_or_default(),
        }
    }

    /// Of durations, in seconds.
    pub fn of_seconds(durations: &[Duration]) -> Self {
        Self::of(durations.iter().map(Duration::as_secs_f64))
    }
}

/// For the times of a round's pods, in seconds.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max } = self;
        write!(f, "{max:.3} s (median {median:.3}, first {min:.3})")
    }
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(half)) {
        (_, None) => 0.0,
        (1, Some(middle)) => *middle,
        (_, Some(upper)) => f64::midpoint(sorted[half - 1], *upper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let figures = |values: &[f64]| Figures::of(values.iter().copied());
        assert_eq!(
            figures(&[3.0, 1.0, 2.0]),
            Figures {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert_eq!(figures(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(figures(&[]).median, 0.0);
    }
}
