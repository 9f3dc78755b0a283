//! What stands at its coordinates, or is said to.

use super::{Coordinates, SpaceId, State};
use crate::collector::{kinds::KindId, uid::Uid};

/// A node's place. It may be given to another one when the node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

/// What stands at its coordinates, or is said to.
#[derive(Debug)]
pub struct Node {
    /// UID.
    pub uid: Uid,
    /// Version as last observed; 0 if it is not known.
    pub version: u64,
    /// Name.
    pub name: Box<str>,
    /// Namespace.
    pub namespace: SpaceId,
    /// Kind.
    pub kind: KindId,
    /// What is known of it.
    pub state: State,
    /// How many references name it.
    pub dependents: u32,
    /// How many of these block its foreground deletion.
    pub blocking: u32,
    /// First of a chain.
    pub(super) owners: u32,
    /// Anyone of a ring.
    pub(super) ring: u32,
    /// In the chain of all nodes of the kind.
    pub(super) next: u32,
    pub(super) previous: u32,
}

// === impl Node ===

impl Node {
    /// Where it stands.
    pub fn coordinates(&self) -> Coordinates<'_> {
        Coordinates {
            kind: self.kind,
            namespace: self.namespace,
            name: &self.name,
        }
    }
}
