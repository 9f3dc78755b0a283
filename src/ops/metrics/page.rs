//! Families of metrics as they are written, one after another.

use std::{collections::BTreeMap, fmt, time::Duration};

use prometheus_client::{
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use crate::model::foreign::ForeignText;

/// What is written to.
pub(super) struct Page<'a>(pub DescriptorEncoder<'a>);

/// Longest value of a label, in bytes.
const LONGEST: usize = 256;

/// Names and values.
type Labels<S, const N: usize> = [(&'static str, S); N];

/// Values come from the cluster, too, such as the names of kinds.
fn shown<S: AsRef<str>, const N: usize>(labels: &Labels<S, N>) -> Labels<String, N> {
    labels
        .each_ref()
        .map(|(name, value)| (*name, ForeignText::within(value.as_ref(), LONGEST).into()))
}

// === impl Page ===

impl Page<'_> {
    /// One value.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&value)
    }

    /// Whether something is so.
    pub fn is(&mut self, name: &str, help: &str, holds: bool) -> fmt::Result {
        self.gauge(name, help, u64::from(holds))
    }

    /// One value for each set of labels.
    pub fn gauges<S: AsRef<str>, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<S, N>, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            encoder.encode_family(&shown(&labels))?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A time, where there is one.
    pub fn seconds(&mut self, name: &str, help: &str, value: Option<Duration>) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        value.map_or(Ok(()), |value| encoder.encode_gauge(&value.as_secs_f64()))
    }

    /// A time for each set of labels.
    pub fn all_seconds<S: AsRef<str>, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<S, N>, Duration)>,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        for (labels, value) in values {
            encoder
                .encode_family(&shown(&labels))?
                .encode_gauge(&value.as_secs_f64())?;
        }
        Ok(())
    }

    /// What only grows.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Time that only grows.
    pub fn seconds_counter(&mut self, name: &str, help: &str, value: Duration) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value.as_secs_f64(), None)
    }

    /// What failed how often, told as `STEP: REASON`.
    pub fn failures(&mut self, name: &str, help: &str, failures: &BTreeMap<String, u64>) -> fmt::Result {
        let failures = failures.iter().map(|(failure, &times)| {
            let (step, reason) = failure.split_once(": ").unwrap_or((failure, ""));
            ([("step", step), ("reason", reason)], times)
        });
        self.counters(name, help, failures)
    }

    /// A counter for each set of labels.
    pub fn counters<S: AsRef<str>, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<S, N>, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            encoder
                .encode_family(&shown(&labels))?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// What does not change.
    pub fn info(&mut self, name: &str, help: &str, labels: &Labels<&str, 1>) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        encoder.encode_info(&shown(labels))
    }
}
