//! Nodes by UID. Nearly every UID has one node, but references may name one UID at any number of coordinates.

use std::{collections::HashMap, hash::BuildHasher as _};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{Coordinates, node::Node};
use crate::collector::uid::Uid;

/// Indexes of nodes.
#[derive(Debug, Default)]
pub struct Uids {
    /// By UID alone.
    by_uid: HashTable<u32>,
    /// UIDs with many nodes, by their coordinates. A UID stays here until its last node is removed.
    by_coordinates: HashMap<Uid, HashTable<u32>>,
    hasher: DefaultHashBuilder,
}

/// Up to this many nodes with one UID are searched linearly.
const MAX_LINEAR: usize = 32;

fn node(nodes: &[Node], id: u32) -> &Node {
    &nodes[id as usize]
}

/// Hash of a node in [`Uids::by_coordinates`].
fn hash_coordinates(hasher: &DefaultHashBuilder, at: Coordinates<'_>) -> u64 {
    hasher.hash_one((at.kind, at.namespace, at.name))
}

// === impl Uids ===

impl Uids {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.by_uid.len() + self.by_coordinates.values().map(HashTable::len).sum::<usize>()
    }

    /// All nodes with this UID, in any order.
    pub fn with_uid(&self, nodes: &[Node], uid: Uid) -> impl Iterator<Item = u32> {
        let by_uid = self.by_uid.iter_hash(self.hasher.hash_one(uid)).copied();
        let by_uid = by_uid.filter(move |&id| node(nodes, id).uid == uid);
        by_uid.chain(self.by_coordinates.get(&uid).into_iter().flatten().copied())
    }

    /// The node with this UID and these coordinates.
    pub fn find(&self, nodes: &[Node], uid: Uid, at: Coordinates<'_>) -> Option<u32> {
        let matches = |id: &u32| node(nodes, *id).coordinates() == at;
        match self.by_coordinates.get(&uid) {
            Some(same_uid) => same_uid.find(hash_coordinates(&self.hasher, at), matches).copied(),
            None => self.with_uid(nodes, uid).find(matches),
        }
    }

    /// Adds a node.
    pub fn insert(&mut self, nodes: &[Node], id: u32) {
        let (uid, hasher) = (node(nodes, id).uid, &self.hasher);
        if !self.by_coordinates.contains_key(&uid) {
            let same: Vec<u32> = self.with_uid(nodes, uid).collect();
            if same.len() < MAX_LINEAR {
                let hash = |id: &u32| hasher.hash_one(node(nodes, *id).uid);
                self.by_uid.insert_unique(hash(&id), id, hash);
                return;
            }
            for &other in &same {
                self.remove(nodes, other);
            }
            for other in same {
                self.insert_by_coordinates(nodes, uid, other);
            }
        }
        self.insert_by_coordinates(nodes, uid, id);
    }

    fn insert_by_coordinates(&mut self, nodes: &[Node], uid: Uid, id: u32) {
        let hash = |id: &u32| hash_coordinates(&self.hasher, node(nodes, *id).coordinates());
        let same_uid = self.by_coordinates.entry(uid).or_default();
        same_uid.insert_unique(hash(&id), id, hash);
    }

    /// Removes a node, whose UID and coordinates are unchanged; `true` if it was present.
    pub fn remove(&mut self, nodes: &[Node], id: u32) -> bool {
        let uid = node(nodes, id).uid;
        let Some(same_uid) = self.by_coordinates.get_mut(&uid) else {
            let found = self.by_uid.find_entry(self.hasher.hash_one(uid), |&other| other == id);
            return found.map(|entry| entry.remove()).is_ok();
        };
        let hash = hash_coordinates(&self.hasher, node(nodes, id).coordinates());
        let found = same_uid.find_entry(hash, |&other| other == id);
        let is_removed = found.map(|entry| entry.remove()).is_ok();
        if same_uid.is_empty() {
            self.by_coordinates.remove(&uid);
        }
        is_removed
    }
}
