//! A picture of objects with their owners and dependents, as the collector knows them: few enough to be looked at, and
//! made in a time that has a limit, however many there are.
//!
//! The agent makes a [`Picture`] and sends it as JSON; who asked for it draws.

pub mod dot;
mod selection;
pub mod svg;
mod text;
pub(super) mod words;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use self::{selection::Selection, words::verdict};
use super::{
    graph::{Graph, NodeId, State},
    names::clipped,
};

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Picture {
    /// The UID that it is drawn around; without one, it shows what is not idle.
    pub around: Option<String>,
    /// What is in it, nearest first.
    pub objects: Vec<Pictured>,
    /// References between them.
    pub references: Vec<Drawn>,
    /// How much is not in it. Around a UID: references to and from its objects; else: objects that are not idle.
    pub left_out: u64,
}

/// An object, or what somebody names as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pictured {
    /// Its group, empty for the core one.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace, empty if it is in none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it is there.
    pub state: Presence,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// `foregroundDeletion` and `orphan`, where it has them. Others' finalizers are not known here.
    pub gc_finalizers: Vec<String>,
    /// What stands out.
    pub look: Look,
    /// What the collector does about it, and why; nothing where there is nothing to do.
    pub decision: Option<String>,
    /// How many references name it.
    pub dependents: u64,
    /// How many of these block its foreground deletion.
    pub blocking: u64,
    /// Its references that are not in the picture.
    pub more_owners: u64,
    /// References to it that are not in the picture.
    pub more_dependents: u64,
    /// How many of these block its foreground deletion.
    pub more_blocking: u64,
}

/// Whether an object is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Presence {
    /// It was seen.
    Observed,
    /// Somebody names it, and it was never seen.
    Virtual,
    /// It is proven not to be there.
    Absent,
    /// It was seen before, and a complete list did not show it.
    InQuestion,
}

/// What stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Look {
    /// It is being deleted in the foreground.
    Waiting,
    /// It is kept because one of its owners cannot be judged.
    Blocked,
    /// It is not known whether it is there.
    Virtual,
    /// It is not there.
    Absent,
    /// It is being deleted, or will be.
    Deleting,
    /// Nothing.
    Plain,
}

/// A reference, by the places of its ends in the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drawn {
    /// Who holds it.
    pub dependent: usize,
    /// Whom it names.
    pub owner: usize,
    /// `blockOwnerDeletion`.
    pub blocking: bool,
    /// The owner is being deleted in the foreground and waits for this one.
    pub holds_up: bool,
}

// === impl Picture ===

impl Picture {
    /// What is connected with the objects of this UID, nearest first. `None` if the graph has none.
    pub fn around(graph: &Graph, uid: &str) -> Option<Self> {
        let nodes = graph.with_uid(uid);
        if nodes.is_empty() {
            return None;
        }
        let mut selection = Selection::new(graph);
        selection.add_around(&nodes);
        Some(Self::of(graph, &selection, Some(clipped(uid))))
    }

    /// What is not idle: being deleted, or not known to be there, with all that is connected with it.
    pub fn of_all(graph: &Graph) -> Self {
        let mut selection = Selection::new(graph);
        let mut restless = 0;
        for id in graph.nodes().filter(|&id| selection::is_restless(graph, id)) {
            restless += 1;
            selection.add_apart(id);
        }
        let drawn = selection
            .nodes()
            .filter(|&id| selection::is_restless(graph, id))
            .count();
        let mut picture = Self::of(graph, &selection, None);
        picture.left_out = restless - drawn as u64;
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
    /// With none of its references drawn.
    fn of(graph: &Graph, id: NodeId) -> Self {
        let node = graph.node(id);
        let has = |fact| node.state.has(fact);
        let (look, decision) = verdict(graph, id);
        let finalizers = [(State::FOREGROUND, "foregroundDeletion"), (State::ORPHAN, "orphan")];
        Self {
            group: clipped(graph.kinds.group(node.kind)),
            kind: clipped(graph.kinds.kind(node.kind)),
            namespace: clipped(graph.namespace(node.namespace)),
            name: clipped(&node.name),
            uid: clipped(&graph.uid(id)),
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
