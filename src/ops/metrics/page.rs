//! Families of metrics as they are written, one after another.

use std::{collections::BTreeMap, fmt, time::Duration};

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

/// What is written to.
pub(super) struct Page<'a>(pub DescriptorEncoder<'a>);

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
    pub fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            encoder.encode_family(&labels)?.encode_gauge(&value)?;
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
    pub fn all_seconds<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, Duration)>,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        for (labels, value) in values {
            encoder.encode_family(&labels)?.encode_gauge(&value.as_secs_f64())?;
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
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            encoder
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// What does not change.
    pub fn info(&mut self, name: &str, help: &str, labels: &impl EncodeLabelSet) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        encoder.encode_info(labels)
    }
}
