//! Counters of the collector.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{api::ApiError, counters::Failures, model::failure::Reasoned as _};

/// Counters since the agent's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "GcCounts"))]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Watch events.
    pub events: u64,
    /// Objects deleted.
    pub deleted: u64,
    /// Objects that lost owner references.
    pub references_dropped: u64,
    /// Finalizers removed.
    pub finalizers_removed: u64,
    /// Finalizers removed while a kind was not synced.
    pub removed_unsynced: u64,
    /// Owners that were looked up with a GET.
    pub owner_lookups: u64,
    /// Writes that met a conflict.
    pub conflicts: u64,
    /// Failures of steps.
    pub failures: Failures<Cow<'static, str>>,
}

/// Sums over all periods in which this agent's collector was active.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Counters until the end of the last finished period.
    pub counts: Counts,
    /// Number of active periods, with the current one.
    pub active_periods: u64,
    /// Number of restarts of the collector.
    pub resets: u64,
}

// === impl Counts ===

impl Counts {
    /// Counts a failure; `true` for the first of its kind.
    pub fn failed(&mut self, step: &'static str, error: &ApiError) -> bool {
        let reasons = self.failures.entry(step.into()).or_default();
        let times = reasons.entry(error.reason()).or_default();
        *times += 1;
        *times == 1
    }
}
