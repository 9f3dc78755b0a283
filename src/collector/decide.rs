//! Decides what to do with an object, by its state and the states of its owners and dependents.

use super::{
    graph::{Graph, NodeId, NodeState},
    kinds::{KindId, Scope},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Dependents are deleted later.
    Background,
    /// Dependents are deleted first.
    Foreground,
    /// Dependents stay.
    Orphan,
}

/// The next step of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// None is known to be necessary.
    Nothing,
    /// GET these owners, then decide again.
    GetOwners(Vec<NodeId>),
    /// Keep it: these owners cannot be resolved, since their kinds are not served or their names are invalid.
    Unresolved(Vec<NodeId>),
    /// Keep it: a cluster-scoped object cannot have these namespaced owners.
    NamespacedOwner(Vec<NodeId>),
    /// Remove the references to these owners: another owner exists, or these orphan their dependents.
    DropReferences(Vec<NodeId>),
    Delete(Deletion),
    /// Remove this finalizer: no known dependent blocks it, or names it. The caller waits until all kinds are synced.
    RemoveFinalizer(Finalizer),
    /// Keep its finalizer: dependents block it, or still name it.
    Wait,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// Deletion policy for its dependents.
    pub policy: Policy,
    /// Clear `blockOwnerDeletion` in its references first: it is part of an ownership cycle.
    pub clear_blocking: bool,
    /// Owners in foreground deletion, which a GET has to confirm. They keep their finalizer until the DELETE is answered.
    pub waiting_owners: Vec<NodeId>,
}

/// A finalizer whose removal needs all kinds to be synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalizer {
    /// A dependent that is seen later is deleted in the background.
    Foreground,
    /// A dependent that is seen later may be deleted, though it should stay.
    Orphan,
}

/// Maximum number of owners of one node with a GET at a time.
pub const MAX_GETS: usize = 64;

pub fn decide(graph: &Graph, id: NodeId) -> Step {
    let node = graph.node(id);
    let state = node.state;
    if !state.contains(NodeState::OBSERVED) {
        return Step::Nothing;
    }
    if !state.exists() && graph.kinds.resource(node.kind).is_none() {
        // No write is possible.
        return Step::Nothing;
    }
    // First of all: these owners wait for it, whatever its other owners are and whether it is deleted itself.
    let orphans_it = |owner: &NodeId| {
        let node = graph.node(*owner);
        *owner != id && node.kind != KindId::UNKNOWN && node.state.orphans_dependents()
    };
    let orphaning: Vec<NodeId> = graph.owners(id).map(|link| link.node).filter(orphans_it).collect();
    if !orphaning.is_empty() {
        return Step::DropReferences(orphaning);
    }
    if state.in_orphan_deletion() {
        return if graph.has_dependents(id) {
            Step::Wait
        } else {
            Step::RemoveFinalizer(Finalizer::Orphan)
        };
    }
    if state.in_foreground_deletion() {
        return if graph.is_blocked(id) {
            Step::Wait
        } else {
            Step::RemoveFinalizer(Finalizer::Foreground)
        };
    }
    if state.contains(NodeState::DELETING) {
        return Step::Nothing;
    }
    decide_by_owners(graph, id)
}

/// Owners by state. kube-controller-manager: pkg/controller/garbagecollector/garbagecollector.go `classifyReferences`.
#[derive(Default)]
struct Owners {
    solid: Vec<NodeId>,
    dangling: Vec<NodeId>,
    waiting_for_dependents_deletion: Vec<NodeId>,
    unknown: Vec<NodeId>,
    unresolved: Vec<NodeId>,
    namespaced: Vec<NodeId>,
}

fn decide_by_owners(graph: &Graph, id: NodeId) -> Step {
    let owners = Owners::classify(graph, id);
    // If one owner is unknown, nothing is concluded from the others.
    if !owners.namespaced.is_empty() {
        return Step::NamespacedOwner(owners.namespaced);
    }
    if !owners.unknown.is_empty() {
        return Step::GetOwners(owners.unknown);
    }
    if !owners.unresolved.is_empty() {
        return Step::Unresolved(owners.unresolved);
    }
    if !owners.solid.is_empty() {
        let mut dangling_or_waiting = owners.dangling;
        dangling_or_waiting.extend(owners.waiting_for_dependents_deletion);
        return if dangling_or_waiting.is_empty() {
            Step::Nothing
        } else {
            Step::DropReferences(dangling_or_waiting)
        };
    }
    if owners.waiting_for_dependents_deletion.is_empty() && owners.dangling.is_empty() {
        return Step::Nothing;
    }
    let node = graph.node(id);
    let (policy, clear_blocking) = if !owners.waiting_for_dependents_deletion.is_empty() && node.num_dependents() > 0 {
        let is_in_cycle = graph
            .dependents(id)
            .any(|link| graph.node(link.node).state.in_foreground_deletion());
        (Policy::Foreground, is_in_cycle)
    } else if node.state.contains(NodeState::ORPHAN) {
        (Policy::Orphan, false)
    } else if node.state.contains(NodeState::FOREGROUND) {
        (Policy::Foreground, false)
    } else {
        (Policy::Background, false)
    };
    Step::Delete(Deletion {
        policy,
        clear_blocking,
        waiting_owners: owners.waiting_for_dependents_deletion,
    })
}

// === impl Policy ===

impl Policy {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

// === impl Finalizer ===

impl Finalizer {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foregroundDeletion",
            Self::Orphan => "orphan",
        }
    }
}

// === impl Owners ===

impl Owners {
    fn classify(graph: &Graph, id: NodeId) -> Self {
        let mut owners = Self::default();
        for owner in graph.owners(id).map(|link| link.node) {
            let node = graph.node(owner);
            let resource = graph.kinds.resource(node.kind);
            let is_namespaced = resource.is_some_and(|resource| resource.scope == Scope::Namespaced);
            let group = if node.state.exists() {
                if node.state.in_foreground_deletion() {
                    &mut owners.waiting_for_dependents_deletion
                } else {
                    &mut owners.solid
                }
            } else if is_namespaced && node.namespace.is_empty() {
                &mut owners.namespaced
            } else if node.state.contains(NodeState::ABSENT) {
                &mut owners.dangling
            } else if !graph.can_be_resolved(owner) {
                &mut owners.unresolved
            } else {
                if owners.unknown.len() == MAX_GETS {
                    continue;
                }
                &mut owners.unknown
            };
            group.push(owner);
        }
        owners
    }
}
