//! What the collector has done, counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::ApiError;

/// Counters since the collector began to work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Events of watches.
    pub events: u64,
    /// Objects deleted.
    pub deleted: u64,
    /// Objects of which references were taken out.
    pub released: u64,
    /// Finalizers taken off.
    pub finished: u64,
    /// Questions whether an owner is there.
    pub asked: u64,
    /// Writes that were refused because the object had changed.
    pub conflicts: u64,
    /// Failures, by step and reason.
    pub failures: BTreeMap<String, u64>,
}

// === impl Counts ===

impl Counts {
    /// Counts a failure.
    pub fn failed(&mut self, step: &'static str, error: &ApiError) {
        let reason = match error {
            ApiError::Refused { code, .. } => code.to_string(),
            ApiError::Unreachable { .. } => "unreachable".to_owned(),
            ApiError::Unproven { .. } => "unproven".to_owned(),
            ApiError::Timeout { .. } => "timeout".to_owned(),
            ApiError::Unreadable { .. } => "unreadable".to_owned(),
            ApiError::Held { .. } => "held".to_owned(),
        };
        *self.failures.entry(format!("{step}: {reason}")).or_default() += 1;
    }
}
