//! `gc graph`: a picture of objects with their owners and dependents. Its size and the time to make it are limited,
//! however many objects there are.
//!
//! The agent makes a [`Picture`] and sends it as JSON; the client draws it.

pub mod dot;
mod selection;
pub mod svg;
mod text;
pub(super) mod words;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use self::{selection::Selection, words::appearance_and_decision};
use super::{
    graph::{Graph, NodeId, State},
    names::truncated,
};

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Picture {
    /// The UID at its center; without one, it shows the objects that are not idle.
    pub around: Option<String>,
    /// Its objects, nearest first.
    pub objects: Vec<Pictured>,
    /// References between them.
    pub references: Vec<PicturedReference>,
    /// Number of references that lead out of it; without a UID: number of objects that are not idle and not in it.
    pub left_out: u64,
}

/// An object, or an owner that is only named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pictured {
    /// Its group, empty for the core group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace, empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it exists.
    pub state: Presence,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// `foregroundDeletion` and `orphan`, if it has them. Other finalizers are not known.
    pub gc_finalizers: Vec<String>,
    /// How it is drawn.
    pub look: Appearance,
    /// The collector's decision and its reason; `None` if there is nothing to do.
    pub decision: Option<String>,
    /// Number of references to it.
    pub dependents: u64,
    /// Number of these with `blockOwnerDeletion`.
    pub blocking: u64,
    /// Its references that are not in the picture.
    pub more_owners: u64,
    /// References to it that are not in the picture.
    pub more_dependents: u64,
    /// Number of these with `blockOwnerDeletion`.
    pub more_blocking: u64,
}

/// Whether an object exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Presence {
    /// It was observed.
    Observed,
    /// It is named and was never observed.
    Virtual,
    /// It does not exist.
    Absent,
    /// It was observed, and the last complete list did not show it.
    InQuestion,
}

/// How an object is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Appearance {
    /// It is in foreground deletion.
    Waiting,
    /// It is kept because one of its owners is unknown.
    Blocked,
    /// It may exist.
    Virtual,
    /// It does not exist.
    Absent,
    /// It is being deleted, or will be.
    Deleting,
    /// None of these.
    Plain,
}

/// A reference, by indexes of the picture's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PicturedReference {
    /// The dependent.
    pub dependent: usize,
    /// The owner.
    pub owner: usize,
    /// `blockOwnerDeletion`.
    pub blocking: bool,
    /// The owner is in foreground deletion and waits for the dependent.
    pub holds_up: bool,
}

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
        Some(Self::of(graph, &selection, Some(truncated(uid))))
    }

    /// The objects that are not idle: being deleted or not known to exist, with all objects connected with them.
    pub fn of_active(graph: &Graph) -> Self {
        let mut selection = Selection::new(graph);
        let mut active = 0;
        for id in graph.nodes().filter(|&id| selection::is_active(graph, id)) {
            active += 1;
            selection.add_unless_omitted(id);
        }
        let drawn = selection.nodes().filter(|&id| selection::is_active(graph, id)).count();
        let mut picture = Self::of(graph, &selection, None);
        picture.left_out = active - drawn as u64;
        picture
    }

    fn of(graph: &Graph, selection: &Selection<'_>, around: Option<String>) -> Self {
        let references = selection.references();
        let mut objects: Vec<Pictured> = selection.nodes().map(|id| Pictured::of(graph, id)).collect();
        for drawn in &references {
            objects[drawn.dependent].more_owners -= 1;
            objects[drawn.owner].more_dependents -= 1;
            objects[drawn.owner].more_blocking -= u64::from(drawn.blocking);
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
    fn of(graph: &Graph, id: NodeId) -> Self {
        let node = graph.node(id);
        let has = |fact| node.state.has(fact);
        let (look, decision) = appearance_and_decision(graph, id);
        let finalizers = [(State::FOREGROUND, "foregroundDeletion"), (State::ORPHAN, "orphan")];
        Self {
            group: truncated(graph.kinds.group(node.kind)),
            kind: truncated(graph.kinds.kind(node.kind)),
            namespace: truncated(graph.namespace(node.namespace)),
            name: truncated(&node.name),
            uid: truncated(&graph.uid(id)),
            state: Presence::of(node.state),
            deleting: has(State::DELETING),
            gc_finalizers: finalizers
                .into_iter()
                .filter(|(fact, _)| has(*fact))
                .map(|(_, name)| name.to_owned())
                .collect(),
            look,
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
    fn of(state: State) -> Self {
        if state.has(State::UNSEEN) {
            Self::InQuestion
        } else if state.has(State::OBSERVED) {
            Self::Observed
        } else if state.has(State::ABSENT) {
            Self::Absent
        } else {
            Self::Virtual
        }
    }
}
