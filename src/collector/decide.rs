//! Decides what to do with an object, by its state and the states of its owners and dependents.

use super::{
    graph::{Graph, NodeId, SpaceId, State},
    kinds::{KindId, Scope},
};

/// Propagation policy of a deletion.
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
    Ask(Vec<NodeId>),
    /// Keep it: these owners cannot be resolved, since their kinds are not served or their names are invalid.
    Unserved(Vec<NodeId>),
    /// Keep it: a cluster-scoped object cannot have these namespaced owners.
    Impossible(Vec<NodeId>),
    /// Remove the references to these owners: another owner exists, or these orphan their dependents.
    Release(Vec<NodeId>),
    /// Delete it.
    Delete {
        /// The propagation policy.
        policy: Policy,
        /// Clear `blockOwnerDeletion` in its references first: it is part of an ownership cycle.
        unblock: bool,
        /// Owners in foreground deletion, which a GET has to confirm.
        because: Vec<NodeId>,
    },
    /// Remove the finalizer `foregroundDeletion`: no known dependent blocks it. The caller waits until all kinds are
    /// synced.
    FinishForeground,
    /// Remove the finalizer `orphan`: no known dependent names it. The caller waits until all kinds are synced.
    FinishOrphan,
    /// Keep its finalizer: dependents block it, or still name it.
    Wait,
}

/// Maximum number of owners of one node with a GET at a time.
pub const AT_ONCE: usize = 64;

/// Decides on a node.
pub fn decide(graph: &Graph, id: NodeId) -> Step {
    let node = graph.node(id);
    let state = node.state;
    if !state.has(State::OBSERVED) {
        return Step::Nothing;
    }
    if !state.is_there() && graph.kinds.resource(node.kind).is_none() {
        // No write is possible.
        return Step::Nothing;
    }
    // First of all: these owners wait for it, whatever its other owners are and whether it is deleted itself.
    let releases = |owner: &NodeId| {
        let node = graph.node(*owner);
        *owner != id && node.kind != KindId::UNKNOWN && node.state.releases()
    };
    let released: Vec<NodeId> = graph.owners(id).map(|link| link.node).filter(releases).collect();
    if !released.is_empty() {
        return Step::Release(released);
    }
    if state.orphans() {
        return if graph.has_dependents(id) {
            Step::Wait
        } else {
            Step::FinishOrphan
        };
    }
    if state.waits() {
        return if graph.is_blocked(id) {
            Step::Wait
        } else {
            Step::FinishForeground
        };
    }
    if state.has(State::DELETING) {
        return Step::Nothing;
    }
    by_owners(graph, id)
}

#[derive(Default)]
struct Owners {
    solid: Vec<NodeId>,
    absent: Vec<NodeId>,
    waiting: Vec<NodeId>,
    unknown: Vec<NodeId>,
    unserved: Vec<NodeId>,
    impossible: Vec<NodeId>,
}

fn by_owners(graph: &Graph, id: NodeId) -> Step {
    let owners = Owners::of(graph, id);
    // If one owner is unknown, nothing is concluded from the others.
    if !owners.impossible.is_empty() {
        return Step::Impossible(owners.impossible);
    }
    if !owners.unknown.is_empty() {
        return Step::Ask(owners.unknown);
    }
    if !owners.unserved.is_empty() {
        return Step::Unserved(owners.unserved);
    }
    if !owners.solid.is_empty() {
        let mut out = owners.absent;
        out.extend(owners.waiting);
        return if out.is_empty() {
            Step::Nothing
        } else {
            Step::Release(out)
        };
    }
    if owners.waiting.is_empty() && owners.absent.is_empty() {
        return Step::Nothing;
    }
    let node = graph.node(id);
    let (policy, unblock) = if !owners.waiting.is_empty() && node.dependents > 0 {
        let in_circle = graph.dependents(id).any(|link| graph.node(link.node).state.waits());
        (Policy::Foreground, in_circle)
    } else if node.state.has(State::ORPHAN) {
        (Policy::Orphan, false)
    } else if node.state.has(State::FOREGROUND) {
        (Policy::Foreground, false)
    } else {
        (Policy::Background, false)
    };
    Step::Delete {
        policy,
        unblock,
        because: owners.waiting,
    }
}

// === impl Owners ===

impl Owners {
    fn of(graph: &Graph, id: NodeId) -> Self {
        let mut owners = Self::default();
        for owner in graph.owners(id).map(|link| link.node) {
            let node = graph.node(owner);
            let resource = graph.kinds.resource(node.kind);
            let namespaced = resource.is_some_and(|resource| resource.scope == Scope::Namespaced);
            let group = if node.state.is_there() {
                if node.state.waits() {
                    &mut owners.waiting
                } else {
                    &mut owners.solid
                }
            } else if namespaced && node.namespace == SpaceId::NONE {
                &mut owners.impossible
            } else if node.state.has(State::ABSENT) {
                &mut owners.absent
            } else if !graph.can_be_asked_for(owner) {
                &mut owners.unserved
            } else {
                if owners.unknown.len() == AT_ONCE {
                    continue;
                }
                &mut owners.unknown
            };
            group.push(owner);
        }
        owners
    }
}
