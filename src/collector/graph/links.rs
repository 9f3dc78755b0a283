//! Nodes and the owner references between them, in two slabs. Adding and removing a reference and advancing to the next
//! dependent take constant time.

use std::{collections::HashMap, ops::Range};

use super::{
    Coordinates, NodeState,
    node::{Node, NodeId},
    uids::Uids,
};
use crate::collector::{kinds::KindId, uid::Uid};

/// An owner reference.
#[derive(Debug)]
struct Edge {
    owner: u32,
    dependent: u32,
    /// Next in the list of the dependent's owners.
    next_owner: u32,
    /// Next in the ring of the owner's dependents.
    next: u32,
    previous: u32,
    blocking: bool,
}

/// All nodes, and all references between them. Nodes and references have stable numbers until they are removed.
#[derive(Debug, Default)]
pub struct Links {
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    edges: Vec<Edge>,
    free_edges: Vec<u32>,
    uids: Uids,
    /// Head of the list of all nodes of each kind, by [`KindId::index`].
    first_of_kind: Vec<u32>,
    /// Number of observed nodes of each kind, by [`KindId::index`].
    observed: Vec<u64>,
}

/// One end of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The node at the other end.
    pub node: NodeId,
    /// The reference's `blockOwnerDeletion`.
    pub blocking: bool,
}

const NONE: u32 = u32::MAX;

fn index(id: u32) -> usize {
    id as usize
}

/// More than four billion objects do not fit into memory.
fn to_id(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}

// === impl Links ===

impl Links {
    /// The node.
    pub fn node(&self, NodeId(id): NodeId) -> &Node {
        &self.nodes[index(id)]
    }

    /// The node, to be changed.
    pub fn node_mut(&mut self, NodeId(id): NodeId) -> &mut Node {
        &mut self.nodes[index(id)]
    }

    /// Sets whether it exists at its coordinates.
    pub fn set_observed(&mut self, id: NodeId, is_observed: bool) {
        let node = self.node_mut(id);
        let (was_observed, kind) = (node.state.contains(NodeState::OBSERVED), node.kind);
        node.state.set(NodeState::OBSERVED, is_observed);
        if was_observed != is_observed {
            self.count_observed(kind, is_observed);
        }
    }

    /// Number of observed nodes of each kind.
    pub fn observed(&self) -> &[u64] {
        &self.observed
    }

    fn count_observed(&mut self, kind: KindId, is_added: bool) {
        // No object of [`KindId::UNKNOWN`] is ever observed.
        let index = kind.index();
        if self.observed.len() <= index {
            self.observed.resize(index + 1, 0);
        }
        let count = &mut self.observed[index];
        *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.uids.len()
    }

    /// All nodes, in index order.
    pub fn all(&self) -> impl Iterator<Item = NodeId> {
        self.in_range(0..self.slots())
    }

    /// The nodes at these indexes, in order.
    pub fn in_range(&self, indexes: Range<usize>) -> impl Iterator<Item = NodeId> {
        let last = indexes.end.min(self.nodes.len());
        let is_used = |&index: &usize| !self.nodes[index].state.contains(NodeState::FREE);
        (indexes.start..last).filter(is_used).map(|index| NodeId(to_id(index)))
    }

    /// Number of indexes in use or free.
    pub fn slots(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes with this UID, in index order.
    pub fn with_uid(&self, uid: Uid) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.same_uid(uid).collect();
        nodes.sort_unstable();
        nodes
    }

    /// The node with this UID and these coordinates.
    pub fn find(&self, uid: Uid, at: Coordinates<'_>) -> Option<NodeId> {
        self.uids.find(&self.nodes, uid, at).map(NodeId)
    }

    /// All nodes with this UID, in any order.
    pub fn same_uid(&self, uid: Uid) -> impl Iterator<Item = NodeId> {
        self.uids.with_uid(&self.nodes, uid).map(NodeId)
    }

    /// Adds a node.
    pub fn add(&mut self, uid: Uid, at: Coordinates<'_>, state: NodeState) -> NodeId {
        if state.contains(NodeState::OBSERVED) {
            self.count_observed(at.kind, true);
        }
        let node = Node {
            uid,
            version: 0,
            name: at.name.into(),
            namespace: at.namespace,
            kind: at.kind,
            state,
            dependents: 0,
            blocking: 0,
            first_owner_edge: NONE,
            next_dependent_edge: NONE,
            next_of_kind: NONE,
            previous_of_kind: NONE,
        };
        let id = if let Some(id) = self.free_nodes.pop() {
            self.nodes[index(id)] = node;
            id
        } else {
            self.nodes.push(node);
            to_id(self.nodes.len() - 1)
        };
        self.uids.insert(&self.nodes, id);
        self.add_to_kind(id);
        NodeId(id)
    }

    /// All nodes of a kind, in a stable order.
    pub fn nodes_of_kind(&self, kind: KindId) -> impl Iterator<Item = NodeId> {
        let not_none = |id: u32| Some(id).filter(|&id| id != NONE);
        let first = self.first_of_kind.get(kind.index()).copied().and_then(not_none);
        std::iter::successors(first, move |&id| not_none(self.nodes[index(id)].next_of_kind)).map(NodeId)
    }

    /// Inserts a node at the head of its kind's list.
    fn add_to_kind(&mut self, id: u32) {
        let kind = self.nodes[index(id)].kind.index();
        if self.first_of_kind.len() <= kind {
            self.first_of_kind.resize(kind + 1, NONE);
        }
        let next = std::mem::replace(&mut self.first_of_kind[kind], id);
        let node = &mut self.nodes[index(id)];
        (node.next_of_kind, node.previous_of_kind) = (next, NONE);
        if next != NONE {
            self.nodes[index(next)].previous_of_kind = id;
        }
    }

    fn remove_from_kind(&mut self, id: u32) {
        let Node {
            kind,
            next_of_kind: next,
            previous_of_kind: previous,
            ..
        } = self.nodes[index(id)];
        match previous {
            NONE => self.first_of_kind[kind.index()] = next,
            previous => self.nodes[index(previous)].next_of_kind = next,
        }
        if next != NONE {
            self.nodes[index(next)].previous_of_kind = previous;
        }
    }

    /// Removes a node without owners and dependents.
    pub fn remove(&mut self, NodeId(id): NodeId) {
        self.set_observed(NodeId(id), false);
        if self.uids.remove(&self.nodes, id) {
            self.remove_from_kind(id);
            self.free_nodes.push(id);
        }
        let node = &mut self.nodes[index(id)];
        debug_assert!(node.first_owner_edge == NONE && node.dependents == 0, "{node:?}");
        node.name = Box::default();
        node.state = NodeState::FREE;
    }

    /// The node's owners.
    pub fn owners(&self, NodeId(id): NodeId) -> impl Iterator<Item = Link> {
        let not_none = |edge: u32| Some(edge).filter(|&edge| edge != NONE);
        let first_owner = not_none(self.nodes[index(id)].first_owner_edge);
        std::iter::successors(first_owner, move |&edge| not_none(self.edges[index(edge)].next_owner)).map(|edge| {
            let edge = &self.edges[index(edge)];
            Link {
                node: NodeId(edge.owner),
                blocking: edge.blocking,
            }
        })
    }

    /// The node's dependents.
    pub fn dependents(&self, NodeId(id): NodeId) -> impl Iterator<Item = Link> {
        let node = &self.nodes[index(id)];
        let next_dependent = Some(node.next_dependent_edge).filter(|&edge| edge != NONE);
        std::iter::successors(next_dependent, |&edge| Some(self.edges[index(edge)].next))
            .take(index(node.dependents))
            .map(|edge| {
                let edge = &self.edges[index(edge)];
                Link {
                    node: NodeId(edge.dependent),
                    blocking: edge.blocking,
                }
            })
    }

    /// Returns the next dependent and advances in the ring. As many calls as there are dependents return each of them,
    /// also if references are added or removed in between.
    pub fn next_dependent(&mut self, NodeId(id): NodeId) -> Option<NodeId> {
        let node = &mut self.nodes[index(id)];
        if node.next_dependent_edge == NONE {
            return None;
        }
        let edge = &self.edges[index(node.next_dependent_edge)];
        node.next_dependent_edge = edge.next;
        Some(NodeId(edge.dependent))
    }

    /// Replaces the owners of `dependent` with `wanted`, which are [`distinct`].
    pub fn set_owners(&mut self, dependent: NodeId, wanted: &[Link]) -> OwnerChanges {
        let mut changes = OwnerChanges::default();
        let mut positions = Positions::default();
        let mut kept = vec![false; wanted.len()];
        let (mut previous_edge, mut edge) = (NONE, self.nodes[index(dependent.0)].first_owner_edge);
        while edge != NONE {
            let (owner, next) = (self.edges[index(edge)].owner, self.edges[index(edge)].next_owner);
            match positions.find(wanted, NodeId(owner)) {
                Some(at) => {
                    let blocking = wanted[at].blocking;
                    if self.set_blocking(edge, blocking) && !blocking {
                        changes.removed_or_unblocked.push(NodeId(owner));
                    }
                    kept[at] = true;
                    previous_edge = edge;
                }
                None => {
                    self.remove_edge(edge, previous_edge);
                    changes.removed_or_unblocked.push(NodeId(owner));
                }
            }
            edge = next;
        }
        for (link, kept) in wanted.iter().zip(kept) {
            if !kept {
                self.add_edge(dependent.0, *link);
                changes.added.push(link.node);
            }
        }
        changes
    }

    fn add_edge(&mut self, dependent: u32, to: Link) {
        let owner = to.node.0;
        let new = Edge {
            owner,
            dependent,
            next_owner: self.nodes[index(dependent)].first_owner_edge,
            next: NONE,
            previous: NONE,
            blocking: to.blocking,
        };
        let id = if let Some(id) = self.free_edges.pop() {
            self.edges[index(id)] = new;
            id
        } else {
            self.edges.push(new);
            to_id(self.edges.len() - 1)
        };
        self.nodes[index(dependent)].first_owner_edge = id;
        let node = &mut self.nodes[index(owner)];
        node.dependents += 1;
        node.blocking += u32::from(to.blocking);
        // At the end of the ring: before the next one.
        let (next, previous) = match node.next_dependent_edge {
            NONE => (id, id),
            next => (next, self.edges[index(next)].previous),
        };
        if node.next_dependent_edge == NONE {
            node.next_dependent_edge = id;
        }
        self.edges[index(id)].next = next;
        self.edges[index(id)].previous = previous;
        self.edges[index(previous)].next = id;
        self.edges[index(next)].previous = id;
    }

    /// `previous_edge` precedes it in the list of the dependent's owners.
    fn remove_edge(&mut self, id: u32, previous_edge: u32) {
        let Edge {
            owner,
            dependent,
            next_owner,
            next,
            previous,
            blocking,
        } = self.edges[index(id)];
        let node = &mut self.nodes[index(owner)];
        node.dependents -= 1;
        node.blocking -= u32::from(blocking);
        if node.next_dependent_edge == id {
            node.next_dependent_edge = if next == id { NONE } else { next };
        }
        self.edges[index(previous)].next = next;
        self.edges[index(next)].previous = previous;
        match previous_edge {
            NONE => self.nodes[index(dependent)].first_owner_edge = next_owner,
            previous_edge => self.edges[index(previous_edge)].next_owner = next_owner,
        }
        self.free_edges.push(id);
    }

    fn set_blocking(&mut self, id: u32, blocking: bool) -> bool {
        let edge = &mut self.edges[index(id)];
        if edge.blocking == blocking {
            return false;
        }
        edge.blocking = blocking;
        let node = &mut self.nodes[index(edge.owner)];
        node.blocking = node.blocking + u32::from(blocking) - u32::from(!blocking);
        true
    }
}

/// Changes to a node's owners.
#[derive(Debug, Default)]
pub struct OwnerChanges {
    /// New owners.
    pub added: Vec<NodeId>,
    /// Owners that it no longer names, or no longer blocks.
    pub removed_or_unblocked: Vec<NodeId>,
}

/// Merges links to the same node; the result blocks if one of them does. The same owner in two API versions is one
/// owner.
pub fn distinct(mut links: Vec<Link>) -> Vec<Link> {
    let (mut positions, mut kept) = (Positions::default(), 0);
    for at in 0..links.len() {
        let link = links[at];
        match positions.find(&links[..kept], link.node) {
            Some(position) => links[position].blocking |= link.blocking,
            None => {
                links[kept] = link;
                kept += 1;
            }
        }
    }
    links.truncate(kept);
    links
}

/// Positions of nodes in a growing slice of links.
#[derive(Default)]
struct Positions {
    table: HashMap<NodeId, usize>,
}

/// Up to this length a linear search is faster than a table. An object may have some ten thousand owners.
const MAX_LINEAR: usize = 16;

// === impl Positions ===

impl Positions {
    fn find(&mut self, links: &[Link], node: NodeId) -> Option<usize> {
        if links.len() <= MAX_LINEAR {
            return links.iter().position(|link| link.node == node);
        }
        for (at, link) in links.iter().enumerate().skip(self.table.len()) {
            self.table.insert(link.node, at);
        }
        self.table.get(&node).copied()
    }
}
