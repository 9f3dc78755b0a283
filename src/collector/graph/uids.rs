//! Nodes by UID. Nearly every UID has one node, but references may name one UID at any number of coordinates.

use std::{collections::HashMap, hash::BuildHasher as _};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{Coordinates, node::Node};
use crate::collector::uid::Uid;

/// Indexes of nodes.
#[derive(Debug, Default)]
pub struct Uids {
    /// By UID alone.
    few: HashTable<u32>,
    /// UIDs with many nodes, by their coordinates. A UID stays here until its last node is removed.
    crowds: HashMap<Uid, HashTable<u32>>,
    hasher: DefaultHashBuilder,
}

/// Up to this many nodes with one UID are searched linearly.
const FEW: usize = 32;

fn node(nodes: &[Node], id: u32) -> &Node {
    &nodes[id as usize]
}

/// Hash of a node in [`Uids::crowds`].
fn hash_at(hasher: &DefaultHashBuilder, at: Coordinates<'_>) -> u64 {
    hasher.hash_one((at.kind, at.namespace, at.name))
}

// === impl Uids ===

impl Uids {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.few.len() + self.crowds.values().map(HashTable::len).sum::<usize>()
    }

    /// All nodes with this UID, in any order.
    pub fn same(&self, nodes: &[Node], uid: Uid) -> impl Iterator<Item = u32> {
        let few = self.few.iter_hash(self.hasher.hash_one(uid)).copied();
        let few = few.filter(move |&id| node(nodes, id).uid == uid);
        few.chain(self.crowds.get(&uid).into_iter().flatten().copied())
    }

    /// The node with this UID and these coordinates.
    pub fn find(&self, nodes: &[Node], uid: Uid, at: Coordinates<'_>) -> Option<u32> {
        let is_it = |id: &u32| node(nodes, *id).coordinates() == at;
        match self.crowds.get(&uid) {
            Some(crowd) => crowd.find(hash_at(&self.hasher, at), is_it).copied(),
            None => self.same(nodes, uid).find(is_it),
        }
    }

    /// Adds a node.
    pub fn insert(&mut self, nodes: &[Node], id: u32) {
        let (uid, hasher) = (node(nodes, id).uid, &self.hasher);
        if !self.crowds.contains_key(&uid) {
            let same: Vec<u32> = self.same(nodes, uid).collect();
            if same.len() < FEW {
                let hash = |id: &u32| hasher.hash_one(node(nodes, *id).uid);
                self.few.insert_unique(hash(&id), id, hash);
                return;
            }
            for &other in &same {
                self.remove(nodes, other);
            }
            for other in same {
                self.join(nodes, uid, other);
            }
        }
        self.join(nodes, uid, id);
    }

    fn join(&mut self, nodes: &[Node], uid: Uid, id: u32) {
        let hash = |id: &u32| hash_at(&self.hasher, node(nodes, *id).coordinates());
        let crowd = self.crowds.entry(uid).or_default();
        crowd.insert_unique(hash(&id), id, hash);
    }

    /// Removes a node, whose UID and coordinates are unchanged; `true` if it was present.
    pub fn remove(&mut self, nodes: &[Node], id: u32) -> bool {
        let uid = node(nodes, id).uid;
        let Some(crowd) = self.crowds.get_mut(&uid) else {
            let found = self.few.find_entry(self.hasher.hash_one(uid), |&other| other == id);
            return found.map(|entry| entry.remove()).is_ok();
        };
        let hash = hash_at(&self.hasher, node(nodes, id).coordinates());
        let found = crowd.find_entry(hash, |&other| other == id);
        let is_gone = found.map(|entry| entry.remove()).is_ok();
        if crowd.is_empty() {
            self.crowds.remove(&uid);
        }
        is_gone
    }
}
