//! Writes metric families.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use prometheus_client::{
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use crate::{counters::Failures, histogram::Buckets, model::foreign::ForeignText};

/// A page of metrics.
pub(super) struct Page<'a>(pub DescriptorEncoder<'a>);

/// Maximum length of a label value, in bytes.
const MAX_VALUE: usize = 256;

/// Time since the Unix epoch; `None` before it.
pub(super) fn since_epoch(time: Option<Timestamp>) -> Option<Duration> {
    let seconds = u64::try_from(time?.as_second()).ok()?;
    Some(Duration::from_secs(seconds))
}

/// Names and values of labels.
type Labels<S, const N: usize> = [(&'static str, S); N];

/// Escapes and truncates label values: some come from the cluster, such as names of kinds.
fn escaped<S: AsRef<str>, const N: usize>(labels: &Labels<S, N>) -> Labels<String, N> {
    labels
        .each_ref()
        .map(|(name, value)| (*name, ForeignText::within(value.as_ref(), MAX_VALUE).into()))
}

// === impl Page ===

impl Page<'_> {
    /// Writes a gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&value)
    }

    /// Writes a gauge with the value 0 or 1.
    pub fn boolean(&mut self, name: &str, help: &str, value: bool) -> fmt::Result {
        self.gauge(name, help, u64::from(value))
    }

    /// Writes a gauge for each set of labels.
    pub fn gauges<S: AsRef<str>, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<S, N>, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            encoder.encode_family(&escaped(&labels))?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes a gauge in seconds; without a sample for `None`.
    pub fn seconds(&mut self, name: &str, help: &str, value: Option<Duration>) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        value.map_or(Ok(()), |value| encoder.encode_gauge(&value.as_secs_f64()))
    }

    /// Writes a gauge in seconds for each set of labels.
    pub fn seconds_family<S: AsRef<str>, const N: usize>(
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
                .encode_family(&escaped(&labels))?
                .encode_gauge(&value.as_secs_f64())?;
        }
        Ok(())
    }

    /// Writes a counter.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Writes a counter in seconds; without a sample for `None`.
    pub fn seconds_counter(&mut self, name: &str, help: &str, value: Option<Duration>) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        value.map_or(Ok(()), |value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value.as_secs_f64(), None)
        })
    }

    /// Writes a gauge in bytes; without a sample for `None`.
    pub fn bytes(&mut self, name: &str, help: &str, value: Option<u64>) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        value.map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    /// Writes a gauge; without a sample for `None`.
    pub fn optional_gauge(&mut self, name: &str, help: &str, value: Option<u64>) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    /// Writes counters of failures, with the labels `step` and `reason`.
    pub fn failures<S: ToString>(&mut self, name: &str, help: &str, failures: &Failures<S>) -> fmt::Result {
        let failures = failures.iter().flat_map(|(step, reasons)| {
            let step = step.to_string();
            let labels = move |reason: &str| [("step", step.clone()), ("reason", reason.to_owned())];
            reasons.iter().map(move |(reason, &times)| (labels(reason), times))
        });
        self.counters(name, help, failures)
    }

    /// Writes a counter for each set of labels.
    pub fn counters<S: AsRef<str>, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<S, N>, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            encoder
                .encode_family(&escaped(&labels))?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes a histogram in seconds.
    pub fn histogram(&mut self, name: &str, help: &str, buckets: &Buckets) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(buckets.sum, buckets.count(), &buckets.counts, None)
    }

    /// Writes a histogram in seconds for each set of labels.
    pub fn histograms<'a, S: AsRef<str>, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<S, N>, &'a Buckets)>,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, buckets) in values {
            encoder
                .encode_family(&escaped(&labels))?
                .encode_histogram::<NoLabelSet>(buckets.sum, buckets.count(), &buckets.counts, None)?;
        }
        Ok(())
    }

    /// Writes an info metric.
    pub fn info(&mut self, name: &str, help: &str, labels: &Labels<&str, 1>) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        encoder.encode_info(&escaped(labels))
    }
}
