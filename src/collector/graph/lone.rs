//! Objects that own nothing and are owned by nothing: most of a cluster, so each costs little more than its UID.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::collector::uid::Uid;

/// Where an object of a kind stands. Namespaces in which nothing else is known have no numbers.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Name of its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Those of one kind.
#[derive(Debug, Default)]
pub struct Lone {
    table: HashTable<Entry>,
}

#[derive(Debug)]
struct Entry {
    uid: Uid,
    /// A hash of the coordinates, and in the lowest bit the round of lists in which it was last seen.
    stamp: [u8; 4],
}

/// How much a stamp tells of coordinates.
const STAMP: u32 = !1;

// === impl Lone ===

impl Lone {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Adds one, or sees it again; `true` if it is new.
    pub fn insert(&mut self, hasher: &DefaultHashBuilder, uid: Uid, at: Place<'_>, round: bool) -> bool {
        let hash = hasher.hash_one(uid);
        let stamp = (stamp(hasher, at) | u32::from(round)).to_ne_bytes();
        if let Some(entry) = self.table.find_mut(hash, |entry| entry.uid == uid) {
            entry.stamp = stamp;
            return false;
        }
        self.table
            .insert_unique(hash, Entry { uid, stamp }, |entry| hasher.hash_one(entry.uid));
        true
    }

    /// Takes one away that stands at these coordinates, and tells in which round it was last seen. That it stands there may
    /// be wrong once in two billion times, that it does not is certain.
    pub fn take(&mut self, hasher: &DefaultHashBuilder, uid: Uid, at: Place<'_>) -> Option<bool> {
        let stamp = stamp(hasher, at);
        let is_it = |entry: &Entry| entry.uid == uid && u32::from_ne_bytes(entry.stamp) & STAMP == stamp;
        let found = self.table.find_entry(hasher.hash_one(uid), is_it).ok()?;
        let (entry, _) = found.remove();
        Some(u32::from_ne_bytes(entry.stamp) & 1 == 1)
    }

    /// Takes one away; `true` if it was there.
    pub fn remove(&mut self, hasher: &DefaultHashBuilder, uid: Uid) -> bool {
        let found = self.table.find_entry(hasher.hash_one(uid), |entry| entry.uid == uid);
        found.map(|entry| entry.remove()).is_ok()
    }

    /// Whether one is there.
    pub fn has(&self, hasher: &DefaultHashBuilder, uid: Uid) -> bool {
        self.table
            .find(hasher.hash_one(uid), |entry| entry.uid == uid)
            .is_some()
    }

    /// Makes all of them last seen in this round.
    pub fn mark_all(&mut self, round: bool) {
        for entry in &mut self.table {
            let stamp = u32::from_ne_bytes(entry.stamp) & STAMP;
            entry.stamp = (stamp | u32::from(round)).to_ne_bytes();
        }
    }

    /// Takes away all that were not seen in this round.
    pub fn sweep(&mut self, round: bool) {
        self.table
            .retain(|entry| (u32::from_ne_bytes(entry.stamp) & 1 == 1) == round);
    }
}

fn stamp(hasher: &DefaultHashBuilder, at: Place<'_>) -> u32 {
    let [a, b, c, d, ..] = hasher.hash_one((at.namespace, at.name)).to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d]) & STAMP
}
