//! Deleted owners that orphaned their dependents.

use indexmap::IndexMap;

use crate::collector::uid::Uid;

/// UIDs of deleted owners that orphaned their dependents, each with its last resourceVersion, the oldest first. A dependent
/// whose creation is reported later than that deletion must not be deleted (kubernetes/kubernetes#26120).
#[derive(Debug, Default)]
pub struct Orphaned(IndexMap<Uid, u64>);

/// Maximum number of entries. Late events are late by seconds, not by thousands of owners.
const MAX_ORPHANED: usize = 65_536;

// === impl Orphaned ===

impl Orphaned {
    pub fn insert(&mut self, uid: Uid, version: u64) {
        if self.0.len() == MAX_ORPHANED && !self.0.contains_key(&uid) {
            self.0.shift_remove_index(0);
        }
        let known = self.0.entry(uid).or_default();
        *known = version.max(*known);
    }

    pub fn contains(&self, uid: Uid) -> bool {
        self.0.contains_key(&uid)
    }

    /// Removes an owner that was seen without the finalizer, at this resourceVersion; `false` if that state is older
    /// than the entry.
    pub fn remove(&mut self, uid: Uid, version: u64) -> bool {
        if self.0.get(&uid).is_some_and(|&known| version <= known) {
            return false;
        }
        self.0.shift_remove(&uid);
        true
    }
}
