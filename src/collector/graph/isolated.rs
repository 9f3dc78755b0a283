//! Objects without owners and dependents. They are most of a cluster, so each takes little more than its UID.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::collector::uid::Uid;

/// Namespace and name of an object. Its namespace may have no [`NamespaceId`].
#[derive(Debug, Clone, Copy)]
pub struct NamespacedName<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

/// The isolated objects of one kind.
#[derive(Debug, Default)]
pub struct Isolated {
    table: HashTable<Entry>,
}

#[derive(Debug)]
struct Entry {
    uid: Uid,
    /// A hash of the coordinates; the lowest bit is the mark of the list that last showed it.
    stamp: [u8; 4],
}

/// The bits of the hash.
const STAMP_MASK: u32 = !1;

// === impl Isolated ===

impl Isolated {
    /// Number of objects.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Adds or updates an object; `true` if it is new.
    pub fn insert(&mut self, hasher: &DefaultHashBuilder, uid: Uid, name: NamespacedName<'_>, mark: bool) -> bool {
        let hash = hasher.hash_one(uid);
        let stamp = (stamp(hasher, name) | u32::from(mark)).to_ne_bytes();
        if let Some(entry) = self.table.find_mut(hash, |entry| entry.uid == uid) {
            entry.stamp = stamp;
            return false;
        }
        self.table
            .insert_unique(hash, Entry { uid, stamp }, |entry| hasher.hash_one(entry.uid));
        true
    }

    /// Removes an object at these coordinates and returns its mark. Coordinates are compared by a 31-bit hash: a match
    /// is wrong once in two billion times.
    pub fn take(&mut self, hasher: &DefaultHashBuilder, uid: Uid, name: NamespacedName<'_>) -> Option<bool> {
        let stamp = stamp(hasher, name);
        let matches = |entry: &Entry| entry.uid == uid && u32::from_ne_bytes(entry.stamp) & STAMP_MASK == stamp;
        let found = self.table.find_entry(hasher.hash_one(uid), matches).ok()?;
        let (entry, _) = found.remove();
        Some(u32::from_ne_bytes(entry.stamp) & 1 == 1)
    }

    /// Removes an object; `true` if it existed.
    pub fn remove(&mut self, hasher: &DefaultHashBuilder, uid: Uid) -> bool {
        let found = self.table.find_entry(hasher.hash_one(uid), |entry| entry.uid == uid);
        found.map(|entry| entry.remove()).is_ok()
    }

    /// Whether it contains this UID.
    pub fn has(&self, hasher: &DefaultHashBuilder, uid: Uid) -> bool {
        self.table
            .find(hasher.hash_one(uid), |entry| entry.uid == uid)
            .is_some()
    }

    /// Sets the mark of all objects.
    pub fn mark_all(&mut self, mark: bool) {
        for entry in &mut self.table {
            let stamp = u32::from_ne_bytes(entry.stamp) & STAMP_MASK;
            entry.stamp = (stamp | u32::from(mark)).to_ne_bytes();
        }
    }

    /// Removes all objects with another mark.
    pub fn sweep(&mut self, mark: bool) {
        self.table
            .retain(|entry| (u32::from_ne_bytes(entry.stamp) & 1 == 1) == mark);
    }
}

fn stamp(hasher: &DefaultHashBuilder, name: NamespacedName<'_>) -> u32 {
    let [a, b, c, d, ..] = hasher.hash_one((name.namespace, name.name)).to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d]) & STAMP_MASK
}
