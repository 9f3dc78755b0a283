//! Counters of the collector.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::{api::ApiError, counters::Failures};

/// Counters since the collector's last start.
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
    /// Counters of finished periods.
    pub counts: Counts,
    /// Number of active periods, with the current one.
    pub active_periods: u64,
    /// Number of restarts of the collector.
    pub resets: u64,
}

/// The sums; clones share them.
#[derive(Debug, Clone, Default)]
pub struct SharedTotals(Arc<Mutex<Totals>>);

// === impl SharedTotals ===

impl SharedTotals {
    /// Locks the sums.
    pub fn lock(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Counts ===

impl Counts {
    /// Adds other counters.
    pub fn add(&mut self, other: &Self) {
        let Self {
            events,
            deleted,
            references_dropped,
            finalizers_removed,
            removed_unsynced,
            owner_lookups,
            conflicts,
            failures,
        } = other;
        self.events += events;
        self.deleted += deleted;
        self.references_dropped += references_dropped;
        self.finalizers_removed += finalizers_removed;
        self.removed_unsynced += removed_unsynced;
        self.owner_lookups += owner_lookups;
        self.conflicts += conflicts;
        for (step, reasons) in failures {
            let sums = self.failures.entry(step.clone()).or_default();
            for (reason, times) in reasons {
                *sums.entry(reason.clone()).or_default() += times;
            }
        }
    }

    /// Counts a failure; `true` for the first of its kind.
    pub fn failed(&mut self, step: &'static str, error: &ApiError) -> bool {
        let reasons = self.failures.entry(step.into()).or_default();
        let times = reasons.entry(error.short_reason().into()).or_default();
        *times += 1;
        *times == 1
    }
}
