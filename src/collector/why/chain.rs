//! The chain of dependents that a foreground deletion waits for.

use std::collections::HashSet;

use crate::collector::{
    core::Core,
    decide::{Step, decide},
    graph::{Graph, Hint, NodeId},
};

/// Maximum number of objects that are visited.
const LOOKED_AT: usize = 10_000;

/// Each node waits for the next.
pub(super) struct Chain {
    /// Starts with the requested object.
    pub nodes: Vec<NodeId>,
    /// The last node waits for this one: an ownership cycle.
    pub circle: Option<NodeId>,
    /// The search stopped at its limit.
    pub cut: bool,
}

/// A node of the current path, and its blockers that are not visited yet.
struct Stage {
    node: NodeId,
    rest: std::vec::IntoIter<NodeId>,
}

// === impl Chain ===

impl Chain {
    /// The longest chain from this node to one that waits for no dependent; a cycle if there is none.
    pub fn from(core: &Core, first: NodeId) -> Self {
        let graph = &core.graph;
        let (mut seen, mut path) = (HashSet::from([first]), vec![Stage::at(graph, first)]);
        let (mut best, mut circle): (Option<(usize, bool, Vec<NodeId>)>, _) = (None, None);
        while let Some(stage) = path.last_mut() {
            let Some(next) = stage.rest.next() else {
                path.pop();
                continue;
            };
            if let Some(place) = path.iter().position(|stage| stage.node == next) {
                circle.get_or_insert_with(|| (nodes(&path), path[place].node));
                continue;
            }
            if seen.len() >= LOOKED_AT || !seen.insert(next) {
                continue;
            }
            path.push(Stage::at(graph, next));
            if path.last().is_some_and(|stage| stage.rest.as_slice().is_empty()) {
                // Among equally long chains, one with a failing end explains most.
                let fails = core
                    .queue
                    .look(Hint::Decide(next))
                    .is_some_and(|it| it.trouble.is_some());
                let is_better = |(depth, failed, _): &(usize, bool, Vec<NodeId>)| {
                    path.len() > *depth || (path.len() == *depth && fails && !failed)
                };
                if best.as_ref().is_none_or(is_better) {
                    best = Some((path.len(), fails, nodes(&path)));
                }
            }
        }
        let cut = seen.len() >= LOOKED_AT;
        let (nodes, circle) = match (best, circle) {
            (Some((_, _, nodes)), _) => (nodes, None),
            (None, Some((nodes, back))) => (nodes, Some(back)),
            (None, None) => (vec![first], None),
        };
        let mut chain = Self { nodes, circle, cut };
        chain.go_on(graph);
        chain
    }

    /// Its last node.
    pub fn last(&self) -> Option<NodeId> {
        self.nodes.last().copied()
    }

    /// Appends what the last node waits for, if it is not the deletion of a dependent.
    fn go_on(&mut self, graph: &Graph) {
        let Some(last) = self.last().filter(|_| self.circle.is_none()) else {
            return;
        };
        let next = match decide(graph, last) {
            // A reference that a dependent has to drop.
            Step::Wait if graph.node(last).state.orphans() => {
                let others = graph.dependents(last).map(|link| link.node);
                others.take(LOOKED_AT).find(|&id| id != last)
            }
            // The answer to a GET.
            Step::Ask(owners) => owners.first().copied(),
            Step::Nothing
            | Step::Unserved(_)
            | Step::Impossible(_)
            | Step::Release(_)
            | Step::Delete { .. }
            | Step::FinishForeground
            | Step::FinishOrphan
            | Step::Wait => None,
        };
        self.nodes.extend(next.filter(|next| !self.nodes.contains(next)));
    }
}

fn nodes(path: &[Stage]) -> Vec<NodeId> {
    path.iter().map(|stage| stage.node).collect()
}

// === impl Stage ===

impl Stage {
    fn at(graph: &Graph, node: NodeId) -> Self {
        Self {
            node,
            rest: blockers(graph, node).take(LOOKED_AT).collect::<Vec<_>>().into_iter(),
        }
    }
}

/// Dependents that block its foreground deletion. An object in orphan deletion waits for no deletion.
pub(super) fn blockers(graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> {
    let state = graph.node(id).state;
    let waits = state.is_there() && state.waits() && !state.orphans();
    let dependents = graph
        .dependents(id)
        .filter(move |link| waits && link.blocking && link.node != id);
    dependents.map(|link| link.node)
}
