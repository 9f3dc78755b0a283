//! The chain of dependents that a foreground deletion waits for.

use std::collections::HashSet;

use crate::collector::{
    core::Core,
    decide::{Step, decide},
    graph::{Graph, NodeId, WorkItem},
};

/// Maximum number of objects that are visited.
const MAX_VISITED: usize = 10_000;

/// Each node waits for the next.
pub(super) struct Chain {
    /// Starts with the requested object.
    pub nodes: Vec<NodeId>,
    /// The last node waits for this one: an ownership cycle.
    pub cycle: Option<NodeId>,
    /// The search stopped at its limit.
    pub is_truncated: bool,
}

/// A node of the current path, and its blockers that are not visited yet.
struct Frame {
    node: NodeId,
    unvisited: std::vec::IntoIter<NodeId>,
}

// === impl Chain ===

impl Chain {
    /// The longest chain from this node to one that waits for no dependent; a cycle if there is none.
    pub fn longest_from(core: &Core, first: NodeId) -> Self {
        let graph = &core.graph;
        let (mut seen, mut path) = (HashSet::from([first]), vec![Frame::at(graph, first)]);
        let (mut best, mut cycle): (Option<(usize, bool, Vec<NodeId>)>, _) = (None, None);
        while let Some(frame) = path.last_mut() {
            let Some(next) = frame.unvisited.next() else {
                path.pop();
                continue;
            };
            if let Some(index) = path.iter().position(|frame| frame.node == next) {
                cycle.get_or_insert_with(|| (nodes(&path), path[index].node));
                continue;
            }
            if seen.len() >= MAX_VISITED || !seen.insert(next) {
                continue;
            }
            path.push(Frame::at(graph, next));
            if path.last().is_some_and(|frame| frame.unvisited.as_slice().is_empty()) {
                // Among equally long chains, one with a failing end explains most.
                let fails = core
                    .queue
                    .status(WorkItem::Decide(next))
                    .is_some_and(|status| status.last_error.is_some());
                let is_better = |(depth, failed, _): &(usize, bool, Vec<NodeId>)| {
                    path.len() > *depth || (path.len() == *depth && fails && !failed)
                };
                if best.as_ref().is_none_or(is_better) {
                    best = Some((path.len(), fails, nodes(&path)));
                }
            }
        }
        let is_truncated = seen.len() >= MAX_VISITED;
        let (nodes, cycle) = match (best, cycle) {
            (Some((_, _, nodes)), _) => (nodes, None),
            (None, Some((nodes, first_of_cycle))) => (nodes, Some(first_of_cycle)),
            (None, None) => (vec![first], None),
        };
        let mut chain = Self {
            nodes,
            cycle,
            is_truncated,
        };
        chain.append_last_wait(graph);
        chain
    }

    /// Its last node.
    pub fn last(&self) -> Option<NodeId> {
        self.nodes.last().copied()
    }

    /// Appends what the last node waits for, if it is not the deletion of a dependent.
    fn append_last_wait(&mut self, graph: &Graph) {
        let Some(last) = self.last().filter(|_| self.cycle.is_none()) else {
            return;
        };
        let next = match decide(graph, last) {
            // A reference that a dependent has to drop.
            Step::Wait if graph.node(last).state.in_orphan_deletion() => {
                let others = graph.dependents(last).map(|link| link.node);
                others.take(MAX_VISITED).find(|&id| id != last)
            }
            // The answer to a GET.
            Step::GetOwners(owners) => owners.first().copied(),
            Step::Nothing
            | Step::Unresolved(_)
            | Step::NamespacedOwner(_)
            | Step::DropReferences(_)
            | Step::Delete { .. }
            | Step::RemoveForegroundFinalizer
            | Step::RemoveOrphanFinalizer
            | Step::Wait => None,
        };
        self.nodes.extend(next.filter(|next| !self.nodes.contains(next)));
    }
}

fn nodes(path: &[Frame]) -> Vec<NodeId> {
    path.iter().map(|frame| frame.node).collect()
}

// === impl Frame ===

impl Frame {
    fn at(graph: &Graph, node: NodeId) -> Self {
        Self {
            node,
            unvisited: blockers(graph, node).take(MAX_VISITED).collect::<Vec<_>>().into_iter(),
        }
    }
}

/// Dependents that block its foreground deletion. An object in orphan deletion waits for no deletion.
pub(super) fn blockers(graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> {
    let state = graph.node(id).state;
    let waits = state.exists() && state.in_foreground_deletion() && !state.in_orphan_deletion();
    let dependents = graph
        .dependents(id)
        .filter(move |link| waits && link.blocking && link.node != id);
    dependents.map(|link| link.node)
}
