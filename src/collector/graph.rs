//! Objects and their owner references, and the work items that changes to them cause. It is synchronous and sends
//! nothing.
//!
//! A node stands for a UID *at coordinates*. Two references to one UID at different coordinates lead to two nodes; at
//! most one of them is ever observed. A reference with wrong coordinates leads to an absent node and affects no other
//! reference.

mod ends;
mod links;
mod lists;
mod lone;
mod node;
mod orphaned;
mod references;
mod serving;
mod spaces;
mod state;
mod uids;

use std::ops::Range;

use hashbrown::DefaultHashBuilder;

use self::{
    links::Links,
    lists::Round,
    lone::{Lone, Place},
    orphaned::Orphaned,
    spaces::Spaces,
};
use super::{
    kinds::{KindId, Kinds, Resource},
    uid::{OddUids, Uid, is_damaged},
};

pub use self::{
    links::Link,
    node::{Node, NodeId},
    spaces::SpaceId,
    state::State,
};

/// Kind, namespace and name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinates<'a> {
    /// Its kind.
    pub kind: KindId,
    /// Its namespace.
    pub namespace: SpaceId,
    /// Its name.
    pub name: &'a str,
}

/// The metadata that the collector uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// UID.
    pub uid: String,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `resourceVersion`.
    pub version: String,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// It has the finalizer `orphan`.
    pub orphan: bool,
    /// It has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// Its owner references.
    pub owners: Vec<Reference>,
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reference {
    /// Group and version of the owner.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
    /// `blockOwnerDeletion`.
    pub blocking: bool,
}

/// An item of the work queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hint {
    /// Decide on this object.
    Decide(NodeId),
    /// Decide on all dependents of this owner.
    Dependents(NodeId),
    /// GET this object.
    Ask(NodeId),
}

/// What [`Graph::answered`] did with a GET answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The answer is applied.
    Taken,
    /// The answer may be older than the object's deletion. It is ignored.
    AskAgain,
}

/// Effect of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// It is applied.
    Taken,
    /// A later state was known already.
    Old,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Graph {
    /// All known kinds.
    pub kinds: Kinds,
    odd: OddUids,
    spaces: Spaces,
    links: Links,
    lone: Vec<Lone>,
    rounds: Vec<Round>,
    /// Objects that an unfinished list shows in an earlier state than the graph has.
    doubtful: Vec<(KindId, Observed)>,
    orphaned: Orphaned,
    /// Kinds with objects whose UID, namespace or name cannot be represented.
    unkept: Vec<KindId>,
    hints: Vec<Hint>,
    hasher: DefaultHashBuilder,
}

// === impl Graph ===

impl Graph {
    /// Takes the collected work items.
    pub fn hints(&mut self) -> Vec<Hint> {
        std::mem::take(&mut self.hints)
    }

    /// Takes the kinds with objects whose UID, namespace or name cannot be represented.
    pub fn unkept(&mut self) -> Vec<KindId> {
        std::mem::take(&mut self.unkept)
    }

    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        self.links.node(id)
    }

    /// All nodes, in index order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.links.all()
    }

    /// The nodes at these indexes, out of [`Graph::places`].
    pub fn nodes_at(&self, places: Range<usize>) -> impl Iterator<Item = NodeId> {
        self.links.at(places)
    }

    /// Number of indexes in use or free.
    pub fn places(&self) -> usize {
        self.links.places()
    }

    /// Number of nodes, and of isolated objects.
    pub fn len(&self) -> (usize, usize) {
        (self.links.len(), self.lone.iter().map(Lone::len).sum())
    }

    /// Number of existing objects of each kind, by [`KindId::place`]. Its cost does not depend on the number of
    /// objects.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = self.counted_alone();
        for (count, observed) in counts.iter_mut().zip(self.links.observed()) {
            *count += observed;
        }
        counts
    }

    /// Number of isolated objects of each kind.
    pub(super) fn counted_alone(&self) -> Vec<u64> {
        self.lone.iter().map(|lone| lone.len() as u64).collect()
    }

    /// The node's owners.
    pub fn owners(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.owners(id)
    }

    /// The node's dependents.
    pub fn dependents(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.dependents(id)
    }

    /// Whether a node has this index. A work item may be older than its node.
    pub fn lives(&self, id: NodeId) -> bool {
        !self.links.node(id).state.is_free()
    }

    /// Whether this index still has the node with this UID and coordinates. An index is reused, also for the same UID
    /// at other coordinates.
    pub fn is_it(&self, id: NodeId, uid: Uid, at: Coordinates<'_>) -> bool {
        let node = self.links.node(id);
        self.lives(id) && node.uid == uid && node.coordinates() == at
    }

    /// Whether dependents block its foreground deletion. A reference to itself does not.
    pub fn is_blocked(&self, id: NodeId) -> bool {
        let by_itself = |link: Link| link.node == id && link.blocking;
        match self.links.node(id).blocking {
            0 => false,
            1 => !self.links.owners(id).any(by_itself),
            _ => true,
        }
    }

    /// Whether it has dependents other than itself.
    pub fn has_dependents(&self, id: NodeId) -> bool {
        match self.links.node(id).dependents {
            0 => false,
            1 => !self.links.owners(id).any(|link| link.node == id),
            _ => true,
        }
    }

    /// Whether an object with its UID and kind exists at other coordinates: the reference has the wrong name or
    /// namespace. Only the first nodes with that UID are checked.
    pub fn is_elsewhere(&self, id: NodeId) -> bool {
        let Node { uid, kind, .. } = *self.links.node(id);
        let is_there = |other: NodeId| {
            let node = self.links.node(other);
            other != id && node.kind == kind && node.state.is_there()
        };
        let lone = self.lone.get(kind.place());
        lone.is_some_and(|lone| lone.has(&self.hasher, uid)) || self.links.same_uid(uid).take(ELSEWHERE).any(is_there)
    }

    /// Whether the API server can be asked for it: its kind is served and its name is a valid path segment. The API
    /// server does not validate names in owner references. A name with a slash would reach another resource, or a
    /// proxy.
    pub fn can_be_asked_for(&self, id: NodeId) -> bool {
        let node = self.links.node(id);
        let is_short = node.name.len() <= LONGEST || node.state.has(State::OBSERVED);
        self.kinds.resource(node.kind).is_some() && is_segment(&node.name) && is_short
    }

    /// Whether it keeps its dependents because nothing can resolve the reference to it.
    pub fn is_untold(&self, id: NodeId) -> bool {
        self.is_in_question(id) && self.links.node(id).dependents > 0 && !self.can_be_asked_for(id)
    }

    /// Whether it may exist.
    pub fn is_in_question(&self, id: NodeId) -> bool {
        self.links.node(id).state.is_in_question()
    }

    /// Returns the next dependent and advances. After the last one follows the first.
    pub fn next_dependent(&mut self, id: NodeId) -> Option<NodeId> {
        self.links.next_dependent(id)
    }

    /// Returns the next dependent and does not advance.
    pub fn peek_dependent(&self, id: NodeId) -> Option<NodeId> {
        self.links.dependents(id).next().map(|link| link.node)
    }

    /// All nodes with this UID.
    pub fn with_uid(&self, uid: &str) -> Vec<NodeId> {
        match self.odd.known(uid) {
            Some(uid) => self.links.with_uid(uid),
            None => Vec::new(),
        }
    }

    /// The kind of the isolated object with this UID. Isolated objects have no node.
    pub fn alone(&self, uid: &str) -> Option<KindId> {
        let uid = self.odd.known(uid)?;
        let has = |(id, _): &(KindId, &Resource)| {
            let lone = self.lone.get(id.place());
            lone.is_some_and(|lone| lone.has(&self.hasher, uid))
        };
        self.kinds.served().find(has).map(|(id, _)| id)
    }

    /// The UID of a node as text.
    pub fn uid(&self, id: NodeId) -> String {
        self.odd.text(self.node(id).uid)
    }

    /// Number of known namespaces.
    #[cfg(test)]
    pub fn spaces(&self) -> usize {
        self.spaces.len()
    }

    /// Name of a namespace.
    pub fn namespace(&self, id: SpaceId) -> &str {
        self.spaces.name(id)
    }

    /// Applies an object from a list or a watch event.
    pub fn observe(&mut self, kind: KindId, object: &Observed) {
        let Round { mark, is_open } = self.round(kind);
        if self.take_in(kind, object, mark) == News::Old && is_open {
            self.doubtful.push((kind, object.clone()));
        }
    }

    /// Applies the answer to a GET. `progress` is the resourceVersion up to which the kind's monitor has reported
    /// everything: that of its last complete list, or of a later event or bookmark; 0 before the first list.
    ///
    /// The answer may be older than `progress`. An object that is not known to exist at that point is deleted already,
    /// and no second event would report that. So the kind needs a monitor, and the caller checks [`Graph::is_it`]
    /// first.
    pub fn answered(&mut self, id: NodeId, object: &Observed, progress: u64) -> Answer {
        let Node { kind, state, .. } = *self.links.node(id);
        if !state.is_there() && object.number() <= progress {
            return Answer::AskAgain;
        }
        // A list in progress that is younger has to show the object too.
        let Round { mark, is_open } = self.round(kind);
        let round = if state.has(State::OBSERVED) {
            state.has(State::ROUND)
        } else {
            mark != is_open
        };
        self.take_in(kind, object, round);
        if state.is_there() && self.links.node(id).dependents > 0 {
            self.hints.push(Hint::Dependents(id));
        }
        Answer::Taken
    }

    fn take_in(&mut self, kind: KindId, object: &Observed, round: bool) -> News {
        let is_readable = !is_damaged(&object.namespace) && !is_damaged(&object.name);
        let Some(uid) = self.odd.observed(&object.uid).filter(|_| is_readable) else {
            // No request can name it, and no reference leads to it.
            self.unkept.push(kind);
            return News::Taken;
        };
        let name = &*object.name;
        let plain = object.owners.is_empty() && !object.deleting && !object.orphan && !object.foreground;
        let known = self.spaces.known(&object.namespace).and_then(|namespace| {
            let at = Coordinates { kind, namespace, name };
            self.links.find(uid, at)
        });
        if known.is_none() && plain {
            let at = Place {
                namespace: &object.namespace,
                name,
            };
            if self.lone[kind.place()].insert(&self.hasher, uid, at, round) {
                self.ask_elsewhere(uid, None);
            }
            return News::Taken;
        }
        let was_lone = self.lone[kind.place()].remove(&self.hasher, uid);
        let version = object.number();
        let id = known.unwrap_or_else(|| {
            let namespace = self.spaces.id(&object.namespace);
            self.add(uid, Coordinates { kind, namespace, name }, self.named(uid))
        });
        let node = self.links.node_mut(id);
        let before = node.state;
        let state = &mut node.state;
        // Even an old state proves that it exists.
        state.set(State::UNSEEN, false);
        state.set(State::ROUND, round);
        if !before.is_there() && node.dependents > 0 {
            // Its dependents were not decided on while it was unknown.
            self.hints.push(Hint::Dependents(id));
        }
        if before.has(State::OBSERVED) && version < node.version {
            return News::Old;
        }
        node.version = version;
        self.links.set_observed(id, true);
        let state = &mut self.links.node_mut(id).state;
        state.set(State::ABSENT, false);
        state.set(State::DELETING, object.deleting);
        state.set(State::ORPHAN, object.orphan);
        state.set(State::FOREGROUND, object.foreground);
        if before.has(State::ORPHANED) && !state.orphans() && self.orphaned.forget(uid, version) {
            state.set(State::ORPHANED, false);
        }
        let now = *state;
        if !before.has(State::OBSERVED) && !was_lone {
            self.ask_elsewhere(uid, Some(id));
        }
        self.follow_owners(id, object);
        if (now.waits() && !before.waits()) || (now.orphans() && !before.orphans()) {
            self.hints.push(Hint::Dependents(id));
        }
        if now.waits() || now.orphans() {
            self.hints.push(Hint::Decide(id));
        }
        self.tidy(id);
        News::Taken
    }

    /// Adds a node.
    fn add(&mut self, uid: Uid, at: Coordinates<'_>, state: State) -> NodeId {
        self.spaces.enter(at.namespace);
        self.links.add(uid, at, state)
    }

    /// Removes a node without owners and dependents.
    fn remove(&mut self, id: NodeId) {
        self.spaces.leave(self.links.node(id).namespace);
        self.links.remove(id);
    }

    /// Enqueues a GET for the unknown nodes with this UID: it exists at other coordinates.
    fn ask_elsewhere(&mut self, uid: Uid, but: Option<NodeId>) {
        let virtual_ones = |id: &NodeId| Some(*id) != but && self.is_in_question(*id);
        let others: Vec<NodeId> = self.links.with_uid(uid).into_iter().filter(virtual_ones).collect();
        self.hints.extend(others.into_iter().map(Hint::Ask));
    }
}

/// Maximum number of nodes with one UID that are checked.
const ELSEWHERE: usize = 256;

/// Nearly all names have at most 253 characters. Some kinds, such as roles, have no limit of their own.
const LONGEST: usize = 1024;

/// Whether client-go accepts this name as a path segment. apimachinery: pkg/api/validation/path/name.go
/// `IsValidPathSegmentName`.
fn is_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

// === impl Reference ===

impl Reference {
    /// Whether all its strings are valid UTF-8.
    fn is_readable(&self) -> bool {
        let texts = [&self.api_version, &self.kind, &self.name, &self.uid];
        !texts.into_iter().any(|text| is_damaged(text))
    }
}

// === impl Observed ===

impl Observed {
    /// Whether another state of the object leads to the same decision.
    pub fn decides_like(&self, other: &Self) -> bool {
        let facts = |it: &Self| (it.deleting, it.orphan, it.foreground);
        self.uid == other.uid && facts(self) == facts(other) && self.owners == other.owners
    }

    /// Its resourceVersion as a number; 0 if it is none.
    fn number(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }
}
