//! A node of the graph.

use super::{Coordinates, NamespaceId, NodeState};
use crate::collector::{kinds::KindId, uid::Uid};

/// Index of a node. It is reused after the node is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

/// An object that exists, or that an owner reference names.
#[derive(Debug)]
pub struct Node {
    /// UID.
    pub uid: Uid,
    /// Last observed resourceVersion; 0 if unknown.
    pub version: u64,
    /// Name.
    pub name: Box<str>,
    /// Namespace.
    pub namespace: NamespaceId,
    /// Kind.
    pub kind: KindId,
    /// Facts about it.
    pub state: NodeState,
    /// Number of references to it.
    pub dependents: u32,
    /// Number of these with `blockOwnerDeletion`.
    pub blocking: u32,
    /// First reference to an owner.
    pub(super) first_owner_edge: u32,
    /// Next reference in the ring of its dependents.
    pub(super) next_dependent_edge: u32,
    /// Next node of the kind.
    pub(super) next_of_kind: u32,
    pub(super) previous_of_kind: u32,
}

// === impl Node ===

impl Node {
    /// Its coordinates.
    pub fn coordinates(&self) -> Coordinates<'_> {
        Coordinates {
            kind: self.kind,
            namespace: self.namespace,
            name: &self.name,
        }
    }
}
