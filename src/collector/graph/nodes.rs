//! Nodes of the graph, by UID and coordinates, and the owner references between them.

use std::{
    collections::{BTreeSet, HashSet},
    hash::BuildHasher as _,
    sync::Arc,
};

use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;

use super::{Coordinates, Observed};
use crate::collector::{kinds::KindId, uid::Uid};

/// Index of a node. It is reused after the node is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

/// An object that exists, or that an owner reference names.
#[derive(Debug)]
pub struct Node {
    pub uid: Uid,
    /// Last observed resourceVersion; 0 if unknown.
    pub version: u64,
    pub name: Box<str>,
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    pub kind: KindId,
    pub state: NodeState,
    /// Number of references to it with `blockOwnerDeletion`.
    pub blocking: u32,
    owners: Box<[Link]>,
    /// Dependents, each with `blockOwnerDeletion` of its reference. Most nodes have none.
    dependents: Option<Box<IndexMap<NodeId, bool, DefaultHashBuilder>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The node at the other end.
    pub node: NodeId,
    pub blocking: bool,
}

bitflags::bitflags! {
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct NodeState: u16 {
        /// A list, watch or GET has shown it at its coordinates.
        const OBSERVED = 1;
        /// It does not exist at its coordinates. A node with neither fact is named and unknown.
        const ABSENT = 1 << 1;
        /// It has a `deletionTimestamp`.
        const DELETING = 1 << 2;
        /// It has the finalizer `orphan`.
        const ORPHAN = 1 << 3;
        /// It has the finalizer `foregroundDeletion`.
        const FOREGROUND = 1 << 4;
        /// Mark of the list that last showed it.
        const LIST_MARK = 1 << 5;
        /// It was observed, and the last complete list did not show it.
        const UNCONFIRMED = 1 << 6;
        /// The index is free.
        const FREE = 1 << 7;
        /// It is deleted, or counts as deleted, and had the finalizer `orphan` when it was last seen.
        const ORPHANED = 1 << 8;
    }
}

/// All nodes. Adding and removing a reference takes constant time.
#[derive(Debug, Default)]
pub struct Nodes {
    slots: Vec<Node>,
    free: Vec<NodeId>,
    /// UID and hash of the coordinates of each node. Nearly every UID has one node, but references may name one UID at any
    /// number of coordinates.
    by_uid: BTreeSet<(Uid, u32, NodeId)>,
    namespaces: HashSet<Arc<str>>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
pub struct OwnerChanges {
    pub added: Vec<NodeId>,
    /// Owners that it no longer names, or no longer blocks.
    pub removed_or_unblocked: Vec<NodeId>,
}

/// Owners, each with whether one of the references to it has `blockOwnerDeletion`. The same owner in two API versions is one
/// owner. An object may have some ten thousand owners.
pub type Owners = IndexMap<NodeId, bool>;

/// Merges links to the same node.
pub fn distinct(links: impl IntoIterator<Item = Link>) -> Owners {
    let mut owners = Owners::new();
    for Link { node, blocking } in links {
        *owners.entry(node).or_default() |= blocking;
    }
    owners
}

// === impl Nodes ===

impl Nodes {
    pub fn node(&self, NodeId(id): NodeId) -> &Node {
        &self.slots[id as usize]
    }

    pub fn node_mut(&mut self, NodeId(id): NodeId) -> &mut Node {
        &mut self.slots[id as usize]
    }

    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// All nodes, in index order.
    pub fn all(&self) -> impl Iterator<Item = NodeId> {
        let used = self.slots.iter().zip(0..).filter(|(node, _)| !node.state.is_free());
        used.map(|(_, index)| NodeId(index))
    }

    /// All nodes with this UID, in any order.
    pub fn with_uid(&self, uid: Uid) -> impl Iterator<Item = NodeId> {
        let range = (uid, 0, NodeId(0))..=(uid, u32::MAX, NodeId(u32::MAX));
        self.by_uid.range(range).map(|&(_, _, id)| id)
    }

    /// The node with this UID and these coordinates.
    pub fn find(&self, uid: Uid, at: Coordinates<'_>) -> Option<NodeId> {
        let hash = self.hash(at);
        let range = (uid, hash, NodeId(0))..=(uid, hash, NodeId(u32::MAX));
        let mut found = self.by_uid.range(range).map(|&(_, _, id)| id);
        found.find(|&id| self.node(id).coordinates() == at)
    }

    pub fn add(&mut self, uid: Uid, at: Coordinates<'_>, state: NodeState) -> NodeId {
        let node = Node {
            uid,
            version: 0,
            name: at.name.into(),
            namespace: self.intern_namespace(at.namespace),
            kind: at.kind,
            state,
            blocking: 0,
            owners: Box::default(),
            dependents: None,
        };
        let id = if let Some(id) = self.free.pop() {
            *self.node_mut(id) = node;
            id
        } else {
            self.slots.push(node);
            // More than four billion objects do not fit into memory.
            NodeId(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX))
        };
        self.by_uid.insert((uid, self.hash(at), id));
        id
    }

    /// Removes a node without owners and dependents.
    pub fn remove(&mut self, id: NodeId) {
        let node = self.node(id);
        debug_assert!(node.owners.is_empty() && node.num_dependents() == 0, "{node:?}");
        let key = (node.uid, self.hash(node.coordinates()), id);
        if self.by_uid.remove(&key) {
            self.free.push(id);
        }
        let node = self.node_mut(id);
        (node.name, node.namespace) = (Box::default(), Arc::default());
        node.state = NodeState::FREE;
    }

    #[expect(clippy::cast_possible_truncation, reason = "a shorter hash takes less memory")]
    fn hash(&self, at: Coordinates<'_>) -> u32 {
        self.hasher.hash_one(at) as u32
    }

    fn intern_namespace(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.namespaces.get(name) {
            return Arc::clone(known);
        }
        if self.namespaces.len() == self.namespaces.capacity() {
            // Before the table grows, namespaces without nodes go.
            self.namespaces.retain(|namespace| Arc::strong_count(namespace) > 1);
        }
        let namespace: Arc<str> = name.into();
        self.namespaces.insert(Arc::clone(&namespace));
        namespace
    }

    /// Replaces the owners of `dependent`.
    pub fn set_owners(&mut self, dependent: NodeId, wanted: Owners) -> OwnerChanges {
        let mut changes = OwnerChanges::default();
        for Link { node, blocking } in std::mem::take(&mut self.node_mut(dependent).owners) {
            let owner = self.node_mut(node);
            owner.blocking -= u32::from(blocking);
            let still_blocking = wanted.get(&node).copied();
            if still_blocking.is_none() {
                if let Some(dependents) = &mut owner.dependents {
                    dependents.swap_remove(&dependent);
                }
                owner.dependents.take_if(|dependents| dependents.is_empty());
            }
            if still_blocking.is_none_or(|still_blocking| blocking && !still_blocking) {
                changes.removed_or_unblocked.push(node);
            }
        }
        for (&node, &blocking) in &wanted {
            let owner = self.node_mut(node);
            owner.blocking += u32::from(blocking);
            let dependents = owner.dependents.get_or_insert_default();
            if dependents.insert(dependent, blocking).is_none() {
                changes.added.push(node);
            }
        }
        let links = wanted.into_iter().map(|(node, blocking)| Link { node, blocking });
        self.node_mut(dependent).owners = links.collect();
        changes
    }
}

// === impl Node ===

impl Node {
    pub fn coordinates(&self) -> Coordinates<'_> {
        Coordinates {
            kind: self.kind,
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    /// Number of references to it.
    pub fn num_dependents(&self) -> u32 {
        let number = self.dependents.as_ref().map_or(0, |dependents| dependents.len());
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    pub(super) fn owners(&self) -> impl Iterator<Item = Link> {
        self.owners.iter().copied()
    }

    pub(super) fn dependents(&self) -> impl Iterator<Item = Link> {
        let dependents = self.dependents.iter().flat_map(|dependents| dependents.iter());
        dependents.map(|(&node, &blocking)| Link { node, blocking })
    }
}

// === impl NodeState ===

impl NodeState {
    /// Sets the facts that the object shows.
    pub(super) fn set_observed(&mut self, object: &Observed) {
        self.set(Self::OBSERVED, true);
        self.set(Self::ABSENT, false);
        self.set(Self::DELETING, object.deleting);
        self.set(Self::ORPHAN, object.orphan);
        self.set(Self::FOREGROUND, object.foreground);
    }

    pub fn exists(self) -> bool {
        self.contains(Self::OBSERVED) && !self.contains(Self::UNCONFIRMED)
    }

    /// Whether it may exist.
    pub fn is_unknown(self) -> bool {
        self.contains(Self::UNCONFIRMED) || !(self.contains(Self::OBSERVED) || self.contains(Self::ABSENT))
    }

    pub fn in_foreground_deletion(self) -> bool {
        self.contains(Self::DELETING) && self.contains(Self::FOREGROUND)
    }

    pub fn in_orphan_deletion(self) -> bool {
        self.contains(Self::DELETING) && self.contains(Self::ORPHAN)
    }

    /// Whether it is in foreground or orphan deletion, so that its dependents are deleted or lose the reference.
    pub fn has_deletion_finalizer(self) -> bool {
        self.in_foreground_deletion() || self.in_orphan_deletion()
    }

    /// Whether its dependents have to drop their references: it is, or was, in orphan deletion.
    pub fn orphans_dependents(self) -> bool {
        if self.exists() {
            self.in_orphan_deletion()
        } else {
            self.contains(Self::ORPHANED)
        }
    }

    pub(super) fn is_free(self) -> bool {
        self.contains(Self::FREE)
    }

    /// Whether it is being deleted, or has the finalizer of orphan or foreground deletion.
    pub(super) fn has_deletion_facts(self) -> bool {
        self.intersects(Self::DELETING | Self::ORPHAN | Self::FOREGROUND)
    }
}
