//! Decides what to do with an object, by its state and the states of its owners and dependents.

use super::{
    graph::{Graph, NodeId, NodeState},
    kinds::{KindId, Scope},
};

/// A deletion policy, by its name in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
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

/// A finalizer whose removal needs all kinds to be synced. It is shown by its name in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub enum Finalizer {
    /// A dependent that is seen later is deleted in the background.
    #[strum(serialize = "foregroundDeletion")]
    Foreground,
    /// A dependent that is seen later may be deleted, though it should stay.
    #[strum(serialize = "orphan")]
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

/// What an owner's state means for its dependents. kube-controller-manager: pkg/controller/garbagecollector/garbagecollector.go
/// `classifyReferences`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerState {
    Solid,
    Dangling,
    WaitingForDependentsDeletion,
    Unknown,
    Unresolved,
    Namespaced,
}

fn decide_by_owners(graph: &Graph, id: NodeId) -> Step {
    let owners = graph.owners(id).map(|link| (link.node, owner_state(graph, link.node)));
    let owners: Vec<(NodeId, OwnerState)> = owners.collect();
    let all = |state: OwnerState| -> Vec<NodeId> {
        let matching = owners.iter().filter(|(_, of_owner)| *of_owner == state);
        matching.map(|(owner, _)| *owner).collect()
    };
    // If one owner is unknown, nothing is concluded from the others.
    let namespaced = all(OwnerState::Namespaced);
    if !namespaced.is_empty() {
        return Step::NamespacedOwner(namespaced);
    }
    let mut unknown = all(OwnerState::Unknown);
    if !unknown.is_empty() {
        unknown.truncate(MAX_GETS);
        return Step::GetOwners(unknown);
    }
    let unresolved = all(OwnerState::Unresolved);
    if !unresolved.is_empty() {
        return Step::Unresolved(unresolved);
    }
    let (mut dangling, waiting_owners) = (all(OwnerState::Dangling), all(OwnerState::WaitingForDependentsDeletion));
    if dangling.is_empty() && waiting_owners.is_empty() {
        return Step::Nothing;
    }
    if owners.iter().any(|(_, state)| *state == OwnerState::Solid) {
        dangling.extend(waiting_owners);
        return Step::DropReferences(dangling);
    }
    let node = graph.node(id);
    let (policy, clear_blocking) = if !waiting_owners.is_empty() && node.num_dependents() > 0 {
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
        waiting_owners,
    })
}

fn owner_state(graph: &Graph, owner: NodeId) -> OwnerState {
    let node = graph.node(owner);
    let resource = graph.kinds.resource(node.kind);
    let is_namespaced = resource.is_some_and(|resource| resource.scope == Scope::Namespaced);
    if node.state.exists() {
        match node.state.in_foreground_deletion() {
            true => OwnerState::WaitingForDependentsDeletion,
            false => OwnerState::Solid,
        }
    } else if is_namespaced && node.namespace.is_empty() {
        OwnerState::Namespaced
    } else if node.state.contains(NodeState::ABSENT) {
        OwnerState::Dangling
    } else if !graph.can_be_resolved(owner) {
        OwnerState::Unresolved
    } else {
        OwnerState::Unknown
    }
}
