//! What the collector has done, counted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

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
    /// Finalizers taken off although not every kind could be seen.
    #[serde(default)]
    pub unseen: u64,
    /// Questions whether an owner is there.
    pub asked: u64,
    /// Writes that were refused because the object had changed.
    pub conflicts: u64,
    /// Failures, by step and reason.
    pub failures: BTreeMap<String, u64>,
}

/// What the collectors of this agent's earlier turns have done: what was counted once is not lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// All together.
    pub counts: Counts,
    /// How many turns have begun, the present one included.
    pub turns: u64,
    /// How often all that was known had to be forgotten.
    pub forgets: u64,
}

/// The same, shared; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct SharedPast(Arc<Mutex<Past>>);

// === impl SharedPast ===

impl SharedPast {
    /// All of it, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Past> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Counts ===

impl Counts {
    /// Adds those of another time.
    pub fn add(&mut self, other: &Self) {
        let Self {
            events,
            deleted,
            released,
            finished,
            unseen,
            asked,
            conflicts,
            failures,
        } = other;
        self.events += events;
        self.deleted += deleted;
        self.released += released;
        self.finished += finished;
        self.unseen += unseen;
        self.asked += asked;
        self.conflicts += conflicts;
        for (failure, times) in failures {
            *self.failures.entry(failure.clone()).or_default() += times;
        }
    }

    /// Counts a failure; `true` if it is the first of its kind.
    pub fn failed(&mut self, step: &'static str, error: &ApiError) -> bool {
        let times = self
            .failures
            .entry(format!("{step}: {}", error.in_a_word()))
            .or_default();
        *times += 1;
        *times == 1
    }
}
