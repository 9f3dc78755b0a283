//! Owners that went and left their dependents behind. A dependent whose creation is told only after the end of its owner
//! (kubernetes/kubernetes#26120) is then no leftover.

use std::collections::{HashMap, VecDeque};

use crate::collector::uid::Uid;

/// The last of them, each with the version that it was last seen in.
#[derive(Debug, Default)]
pub struct Orphaned {
    versions: HashMap<Uid, u64>,
    order: VecDeque<Uid>,
}

/// As many as are remembered. What is told too late is so by seconds, not by thousands of owners.
const MOST: usize = 65_536;

// === impl Orphaned ===

impl Orphaned {
    /// Remembers one.
    pub fn remember(&mut self, uid: Uid, version: u64) {
        if let Some(known) = self.versions.get_mut(&uid) {
            *known = version.max(*known);
            return;
        }
        if self.order.len() == MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.versions.remove(&oldest);
        }
        self.versions.insert(uid, version);
        self.order.push_back(uid);
    }

    /// Whether it is remembered.
    pub fn has(&self, uid: Uid) -> bool {
        self.versions.contains_key(&uid)
    }

    /// It was seen otherwise after all, in this version; `false` if that is older than what is remembered.
    pub fn forget(&mut self, uid: Uid, version: u64) -> bool {
        if self.versions.get(&uid).is_some_and(|&known| version <= known) {
            return false;
        }
        if self.versions.remove(&uid).is_some() {
            self.order.retain(|other| *other != uid);
        }
        true
    }
}
