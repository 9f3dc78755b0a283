//! What is known of objects and their owners. Nothing here waits or asks; what is said of it are hints where to look.
//!
//! A node stands for a UID *at coordinates*: two references that name one UID at different places lead to two nodes, of
//! which at most one is ever observed. So a reference with wrong coordinates is one to a node that is not there, and harms
//! no other.

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

/// Where an object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinates<'a> {
    /// Its kind.
    pub kind: KindId,
    /// Its namespace.
    pub namespace: SpaceId,
    /// Its name.
    pub name: &'a str,
}

/// As much of an object as the collector looks at.
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

/// Where something may be to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hint {
    /// Decide on this one.
    Decide(NodeId),
    /// Decide on all that name this one as an owner.
    Dependents(NodeId),
    /// Ask whether this one is there.
    Ask(NodeId),
}

/// What an answer to [`Hint::Ask`] was good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is known now what it tells.
    Taken,
    /// It may be older than the end of the object. Nothing is concluded.
    AskAgain,
}

/// What became of what was told of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// It is known now.
    Taken,
    /// A later state was known already.
    Old,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Graph {
    /// Kinds that were named.
    pub kinds: Kinds,
    odd: OddUids,
    spaces: Spaces,
    links: Links,
    lone: Vec<Lone>,
    rounds: Vec<Round>,
    /// What lists that are under way show of objects that were known in a later state.
    doubtful: Vec<(KindId, Observed)>,
    orphaned: Orphaned,
    /// Kinds of objects that are there and were not taken in.
    unkept: Vec<KindId>,
    hints: Vec<Hint>,
    hasher: DefaultHashBuilder,
}

// === impl Graph ===

impl Graph {
    /// Takes the hints that have come together.
    pub fn hints(&mut self) -> Vec<Hint> {
        std::mem::take(&mut self.hints)
    }

    /// Takes the kinds of objects that are there and were not taken in, since their UIDs or names are none that can be kept.
    pub fn unkept(&mut self) -> Vec<KindId> {
        std::mem::take(&mut self.unkept)
    }

    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        self.links.node(id)
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.links.all()
    }

    /// The nodes at these places, of all [`Graph::places`].
    pub fn nodes_at(&self, places: Range<usize>) -> impl Iterator<Item = NodeId> {
        self.links.at(places)
    }

    /// How many places for nodes there are.
    pub fn places(&self) -> usize {
        self.links.places()
    }

    /// How many objects are known to be there: with references, and without any.
    pub fn len(&self) -> (usize, usize) {
        (self.links.len(), self.lone.iter().map(Lone::len).sum())
    }

    /// How many objects of each kind are known to be there, by the kinds' places. It takes no longer where there are many.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = self.counted_alone();
        for (count, observed) in counts.iter_mut().zip(self.links.observed()) {
            *count += observed;
        }
        counts
    }

    /// The same of those without owners and dependents.
    pub(super) fn counted_alone(&self) -> Vec<u64> {
        self.lone.iter().map(|lone| lone.len() as u64).collect()
    }

    /// Whom a node names as its owners.
    pub fn owners(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.owners(id)
    }

    /// Who names a node as an owner.
    pub fn dependents(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.dependents(id)
    }

    /// Whether a node has this place. Hints may be older than what they speak of.
    pub fn lives(&self, id: NodeId) -> bool {
        !self.links.node(id).state.is_free()
    }

    /// Whether the node at this place is still this one: while something was asked, the place may have been given to
    /// another, also to one that has the same UID and stands elsewhere.
    pub fn is_it(&self, id: NodeId, uid: Uid, at: Coordinates<'_>) -> bool {
        let node = self.links.node(id);
        self.lives(id) && node.uid == uid && node.coordinates() == at
    }

    /// Whether others hold up its foreground deletion. Whoever owns itself does not wait for itself.
    pub fn is_blocked(&self, id: NodeId) -> bool {
        let by_itself = |link: Link| link.node == id && link.blocking;
        match self.links.node(id).blocking {
            0 => false,
            1 => !self.links.owners(id).any(by_itself),
            _ => true,
        }
    }

    /// Whether others name it as an owner.
    pub fn has_dependents(&self, id: NodeId) -> bool {
        match self.links.node(id).dependents {
            0 => false,
            1 => !self.links.owners(id).any(|link| link.node == id),
            _ => true,
        }
    }

    /// Whether what it stands for is known to be there, of the same kind, but elsewhere: whoever named it is mistaken in
    /// the name or the namespace. Where somebody names its UID at very many places, only some are looked at.
    pub fn is_elsewhere(&self, id: NodeId) -> bool {
        let Node { uid, kind, .. } = *self.links.node(id);
        let is_there = |other: NodeId| {
            let node = self.links.node(other);
            other != id && node.kind == kind && node.state.is_there()
        };
        let lone = self.lone.get(kind.place());
        lone.is_some_and(|lone| lone.has(&self.hasher, uid)) || self.links.same_uid(uid).take(ELSEWHERE).any(is_there)
    }

    /// Whether the API server can be asked for what it stands for: its kind is served, and its name can be one. The server
    /// does not look at the names in references; one with a slash would lead to another resource, or through a proxy of the
    /// server's to whatever answers there.
    pub fn can_be_asked_for(&self, id: NodeId) -> bool {
        let node = self.links.node(id);
        let is_short = node.name.len() <= LONGEST || node.state.has(State::OBSERVED);
        self.kinds.resource(node.kind).is_some() && is_segment(&node.name) && is_short
    }

    /// Whether others name it, and nobody can tell if it is there: they are kept.
    pub fn is_untold(&self, id: NodeId) -> bool {
        self.is_in_question(id) && self.links.node(id).dependents > 0 && !self.can_be_asked_for(id)
    }

    /// Whether it is not known if it is there.
    pub fn is_in_question(&self, id: NodeId) -> bool {
        self.links.node(id).state.is_in_question()
    }

    /// The next dependent, round and round.
    pub fn next_dependent(&mut self, id: NodeId) -> Option<NodeId> {
        self.links.next_dependent(id)
    }

    /// The same, which stays the next.
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

    /// The kind of an object with this UID that has neither owners nor dependents; such objects are no nodes.
    pub fn alone(&self, uid: &str) -> Option<KindId> {
        let uid = self.odd.known(uid)?;
        let has = |(id, _): &(KindId, &Resource)| {
            let lone = self.lone.get(id.place());
            lone.is_some_and(|lone| lone.has(&self.hasher, uid))
        };
        self.kinds.served().find(has).map(|(id, _)| id)
    }

    /// Text of a node's UID.
    pub fn uid(&self, id: NodeId) -> String {
        self.odd.text(self.node(id).uid)
    }

    /// Of how many namespaces the names are kept.
    #[cfg(test)]
    pub fn spaces(&self) -> usize {
        self.spaces.len()
    }

    /// Name of a namespace.
    pub fn namespace(&self, id: SpaceId) -> &str {
        self.spaces.name(id)
    }

    /// An object of this kind is there, as an event or a list shows it.
    pub fn observe(&mut self, kind: KindId, object: &Observed) {
        let Round { mark, is_open } = self.round(kind);
        if self.take_in(kind, object, mark) == News::Old && is_open {
            self.doubtful.push((kind, object.clone()));
        }
    }

    /// It is there, as the answer to a GET shows it. `progress` is the highest version up to which the monitor of its kind
    /// has told everything: that of the last complete list, or of an event or bookmark after it; 0 before the first list.
    ///
    /// The answer may be older than what the monitor has told meanwhile. What is not known to be there although the monitor
    /// is past its version has come to its end, and would be a ghost whose end nobody tells a second time. So a kind without
    /// a monitor has no place here, and whether the answer speaks of this node is to be seen first ([`Graph::is_it`]).
    pub fn answered(&mut self, id: NodeId, object: &Observed, progress: u64) -> Answer {
        let Node { kind, state, .. } = *self.links.node(id);
        if !state.is_there() && object.number() <= progress {
            return Answer::AskAgain;
        }
        // It says nothing about a list that is under way: if that is younger, it has to show the object too.
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
            // Nothing can be asked of it or done to it, and no reference leads to it.
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
        // However old the news, it is there.
        state.set(State::UNSEEN, false);
        state.set(State::ROUND, round);
        if !before.is_there() && node.dependents > 0 {
            // Whoever depends on it was left alone until it was known.
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

    /// A new node.
    fn add(&mut self, uid: Uid, at: Coordinates<'_>, state: State) -> NodeId {
        self.spaces.enter(at.namespace);
        self.links.add(uid, at, state)
    }

    /// Takes a node away that has neither owners nor dependents.
    fn remove(&mut self, id: NodeId) {
        self.spaces.leave(self.links.node(id).namespace);
        self.links.remove(id);
    }

    /// Other nodes with this UID cannot be where they are said to be; they are asked for at once.
    fn ask_elsewhere(&mut self, uid: Uid, but: Option<NodeId>) {
        let virtual_ones = |id: &NodeId| Some(*id) != but && self.is_in_question(*id);
        let others: Vec<NodeId> = self.links.with_uid(uid).into_iter().filter(virtual_ones).collect();
        self.hints.extend(others.into_iter().map(Hint::Ask));
    }
}

/// Places at which a UID is looked for.
const ELSEWHERE: usize = 256;

/// Nearly all names are of 253 letters at most; of some kinds, such as roles, only the server's patience limits them.
const LONGEST: usize = 1024;

/// As Kubernetes' clients see names: what is none of a path is refused before it is sent.
fn is_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

// === impl Reference ===

impl Reference {
    /// Whether all of it was text.
    fn is_readable(&self) -> bool {
        let texts = [&self.api_version, &self.kind, &self.name, &self.uid];
        !texts.into_iter().any(|text| is_damaged(text))
    }
}

// === impl Observed ===

impl Observed {
    /// Whether another observation of the same object leads to the same decision about it.
    pub fn decides_like(&self, other: &Self) -> bool {
        let facts = |it: &Self| (it.deleting, it.orphan, it.foreground);
        self.uid == other.uid && facts(self) == facts(other) && self.owners == other.owners
    }

    /// Its version, as one that can be compared.
    fn number(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }
}
