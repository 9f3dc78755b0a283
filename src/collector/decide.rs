//! What is to be done about an object, from what is known of it and of those that it names and that name it.

use super::{
    graph::{Graph, NodeId, SpaceId, State},
    kinds::{KindId, Scope},
};

/// How dependents of what is deleted fare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// They are collected afterwards.
    Background,
    /// They go first.
    Foreground,
    /// They stay.
    Orphan,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing, as far as is known.
    Nothing,
    /// Ask whether these owners are there, and decide again.
    Ask(Vec<NodeId>),
    /// Nothing, because these owners are of kinds that are nowhere served, or have names that nothing can have: nobody can tell
    /// whether they are there.
    Unserved(Vec<NodeId>),
    /// Nothing, because a cluster-scoped object cannot have these namespaced owners.
    Impossible(Vec<NodeId>),
    /// Take the references to these owners out: another one is there, or they go without their dependents.
    Release(Vec<NodeId>),
    /// Delete it.
    Delete {
        /// How.
        policy: Policy,
        /// Lift its blocking references first: it is part of a circle.
        unblock: bool,
        /// Owners of which it has to be certain that they still wait for their dependents.
        because: Vec<NodeId>,
    },
    /// Its blocking dependents are gone: take the finalizer `foregroundDeletion` off. Whether there are others, only all
    /// kinds together tell: gated by the worker on all of them being synced.
    FinishForeground,
    /// No dependent names it any more: take the finalizer `orphan` off. Gated by the worker on all kinds being synced.
    FinishOrphan,
    /// It waits for dependents: for blocking ones to go, or for all to be released.
    Wait,
}

/// Of the owners of one node so many are asked for at a time; the others when these have had the time to be answered.
pub const AT_ONCE: usize = 64;

/// Decides on a node.
pub fn decide(graph: &Graph, id: NodeId) -> Step {
    let node = graph.node(id);
    let state = node.state;
    if !state.has(State::OBSERVED) {
        return Step::Nothing;
    }
    if !state.is_there() && graph.kinds.resource(node.kind).is_none() {
        // Nobody takes a write.
        return Step::Nothing;
    }
    // Before all else: these owners wait for it, whatever its other owners are and whether it goes itself.
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
    // Where one owner is not known, nothing is concluded from the others.
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
