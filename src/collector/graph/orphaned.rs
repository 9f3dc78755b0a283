//! UIDs of deleted owners that orphaned their dependents. A dependent whose creation is reported later than that
//! deletion must not be deleted (kubernetes/kubernetes#26120).

use std::collections::{HashMap, VecDeque};

use crate::collector::uid::Uid;

/// The most recent ones, each with its last resourceVersion.
#[derive(Debug, Default)]
pub struct Orphaned {
    versions: HashMap<Uid, u64>,
    order: VecDeque<Uid>,
}

/// Maximum number of entries. Late events are late by seconds, not by thousands of owners.
const CAPACITY: usize = 65_536;

// === impl Orphaned ===

impl Orphaned {
    /// Adds an owner.
    pub fn insert(&mut self, uid: Uid, version: u64) {
        if let Some(known) = self.versions.get_mut(&uid) {
            *known = version.max(*known);
            return;
        }
        if self.order.len() == CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.versions.remove(&oldest);
        }
        self.versions.insert(uid, version);
        self.order.push_back(uid);
    }

    /// Whether it contains this owner.
    pub fn contains(&self, uid: Uid) -> bool {
        self.versions.contains_key(&uid)
    }

    /// Removes an owner that was seen without the finalizer, at this resourceVersion; `false` if that state is older
    /// than the entry.
    pub fn remove(&mut self, uid: Uid, version: u64) -> bool {
        if self.versions.get(&uid).is_some_and(|&known| version <= known) {
            return false;
        }
        if self.versions.remove(&uid).is_some() {
            self.order.retain(|other| *other != uid);
        }
        true
    }
}
