//! Objects without owners and dependents. They are most of a cluster, so each takes little more than its UID.

use std::hash::BuildHasher as _;

use hashbrown::HashMap;

use super::Coordinates;
use crate::collector::uid::Uid;

#[derive(Debug, Default)]
pub struct Isolated {
    /// By UID, a hash of the coordinates; its lowest bit is the mark of the list that last showed the object. In bytes, so that an
    /// entry needs no padding.
    stamps: HashMap<Uid, [u8; 4]>,
}

fn mark_of(stamp: [u8; 4]) -> bool {
    stamp[0] & 1 == 1
}

fn marked([first, others @ ..]: [u8; 4], mark: bool) -> [u8; 4] {
    let [b, c, d] = others;
    [first & !1 | u8::from(mark), b, c, d]
}

// === impl Isolated ===

impl Isolated {
    pub fn len(&self) -> usize {
        self.stamps.len()
    }

    /// Adds or updates an object; `true` if it is new.
    pub fn insert(&mut self, uid: Uid, at: Coordinates<'_>, mark: bool) -> bool {
        let stamp = marked(self.stamp(at), mark);
        self.stamps.insert(uid, stamp).is_none()
    }

    /// Removes an object at these coordinates and returns its mark. Coordinates are compared by a 31-bit hash: a match
    /// is wrong once in two billion times.
    pub fn take(&mut self, uid: Uid, at: Coordinates<'_>) -> Option<bool> {
        let stamp = *self.stamps.get(&uid)?;
        let is_same = marked(stamp, false) == marked(self.stamp(at), false);
        is_same.then(|| self.stamps.remove(&uid)).flatten().map(mark_of)
    }

    pub fn remove(&mut self, uid: Uid) -> bool {
        self.stamps.remove(&uid).is_some()
    }

    pub fn has(&self, uid: Uid) -> bool {
        self.stamps.contains_key(&uid)
    }

    pub fn mark_all(&mut self, mark: bool) {
        self.stamps.values_mut().for_each(|stamp| *stamp = marked(*stamp, mark));
    }

    pub fn sweep(&mut self, mark: bool) {
        self.stamps.retain(|_, stamp| mark_of(*stamp) == mark);
    }

    fn stamp(&self, at: Coordinates<'_>) -> [u8; 4] {
        let [a, b, c, d, ..] = self.stamps.hasher().hash_one((at.namespace, at.name)).to_ne_bytes();
        [a, b, c, d]
    }
}
