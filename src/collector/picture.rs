//! `gc graph`: a picture of objects with their owners and dependents. Its size and the time to make it are limited,
//! however many objects there are.
//!
//! The agent makes a [`Picture`] and sends it as JSON; the client writes it in DOT, and Graphviz draws it.

pub mod dot;
mod object;
mod selection;
mod text;
pub(super) mod words;

#[cfg(test)]
mod tests;

pub use self::object::{Appearance, Picture, Pictured, PicturedReference, Presence};
use self::{selection::Selection, words::appearance_and_decision};
use super::{
    graph::{Graph, NodeId, NodeState},
    names::truncate,
};

// === impl Picture ===

impl Picture {
    /// The objects connected with this UID, nearest first. `None` if the graph does not have it.
    pub fn around(graph: &Graph, uid: &str) -> Option<Self> {
        let nodes = graph.with_uid(uid);
        if nodes.is_empty() {
            return None;
        }
        let mut selection = Selection::new(graph);
        selection.add_around(&nodes);
        Some(Self::from_selection(graph, &selection, Some(truncate(uid))))
    }

    /// The objects that are not idle: being deleted or not known to exist, with all objects connected with them.
    pub fn from_active(graph: &Graph) -> Self {
        let mut selection = Selection::new(graph);
        let mut active = 0;
        for id in graph.nodes().filter(|&id| selection::is_active(graph, id)) {
            active += 1;
            selection.add_unless_omitted(id);
        }
        let shown = selection.nodes().filter(|&id| selection::is_active(graph, id)).count();
        let mut picture = Self::from_selection(graph, &selection, None);
        picture.left_out = active - shown as u64;
        picture
    }

    fn from_selection(graph: &Graph, selection: &Selection<'_>, around: Option<String>) -> Self {
        let references = selection.references();
        let mut objects: Vec<Pictured> = selection.nodes().map(|id| Pictured::from_node(graph, id)).collect();
        for reference in &references {
            objects[reference.dependent].more_owners -= 1;
            objects[reference.owner].more_dependents -= 1;
            objects[reference.owner].more_blocking -= u64::from(reference.blocking);
        }
        let left_out = objects.iter().map(|it| it.more_owners + it.more_dependents).sum();
        Self {
            around,
            objects,
            references,
            left_out,
        }
    }
}

// === impl Pictured ===

impl Pictured {
    /// No reference is drawn yet.
    fn from_node(graph: &Graph, id: NodeId) -> Self {
        let node = graph.node(id);
        let has = |fact| node.state.contains(fact);
        let (class, decision) = appearance_and_decision(graph, id);
        let finalizers = [
            (NodeState::FOREGROUND, "foregroundDeletion"),
            (NodeState::ORPHAN, "orphan"),
        ];
        Self {
            group: truncate(graph.kinds.group(node.kind)),
            kind: truncate(graph.kinds.kind(node.kind)),
            namespace: truncate(graph.namespace(node.namespace)),
            name: truncate(&node.name),
            uid: truncate(&graph.uid(id)),
            state: Presence::from_state(node.state),
            deleting: has(NodeState::DELETING),
            gc_finalizers: finalizers
                .into_iter()
                .filter(|(fact, _)| has(*fact))
                .map(|(_, name)| name.to_owned())
                .collect(),
            class,
            decision,
            dependents: node.dependents.into(),
            blocking: node.blocking.into(),
            more_owners: graph.owners(id).count() as u64,
            more_dependents: node.dependents.into(),
            more_blocking: node.blocking.into(),
        }
    }
}

// === impl Presence ===

impl Presence {
    fn from_state(state: NodeState) -> Self {
        if state.contains(NodeState::UNCONFIRMED) {
            Self::Unconfirmed
        } else if state.contains(NodeState::OBSERVED) {
            Self::Observed
        } else if state.contains(NodeState::ABSENT) {
            Self::Absent
        } else {
            Self::Virtual
        }
    }
}
