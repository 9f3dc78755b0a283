//! What is known of objects and their owners. Nothing here waits or asks; what is said of it are hints where to look.
//!
//! A node stands for a UID *at coordinates*: two references that name one UID at different places lead to two nodes, of
//! which at most one is ever observed. So a reference with wrong coordinates is one to a node that is not there, and harms
//! no other.

mod links;
mod lone;
mod state;

use std::collections::HashMap;

use hashbrown::DefaultHashBuilder;

use self::{links::Links, lone::Lone};
use super::{
    kinds::{KindId, Kinds, Scope},
    uid::{OddUids, Uid},
};

pub use self::{
    links::{Link, Node, NodeId},
    state::State,
};

/// A namespace by number; that of cluster-scoped objects is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(u32);

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

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Graph {
    /// Kinds that were named.
    pub kinds: Kinds,
    odd: OddUids,
    spaces: Spaces,
    links: Links,
    lone: Vec<Lone>,
    /// Of each kind, the round of lists that counts; see [`Graph::begin_list`].
    rounds: Vec<bool>,
    hints: Vec<Hint>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Spaces {
    names: Vec<Box<str>>,
    places: HashMap<Box<str>, SpaceId>,
}

// === impl SpaceId ===

impl SpaceId {
    /// Of cluster-scoped objects.
    pub const NONE: Self = Self(0);
}

// === impl Graph ===

impl Graph {
    /// Takes the hints that have come together.
    pub fn hints(&mut self) -> Vec<Hint> {
        std::mem::take(&mut self.hints)
    }

    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        self.links.node(id)
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.links.all()
    }

    /// How many objects are known to be there: with references, and without any.
    pub fn len(&self) -> (usize, usize) {
        (self.links.len(), self.lone.iter().map(Lone::len).sum())
    }

    /// Whom a node names as its owners.
    pub fn owners(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.owners(id)
    }

    /// Who names a node as an owner.
    pub fn dependents(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.dependents(id)
    }

    /// Whether others hold up its foreground deletion. Whoever owns itself does not wait for itself.
    pub fn is_blocked(&self, id: NodeId) -> bool {
        let node = self.links.node(id);
        let by_itself = |link: Link| link.node == id && link.blocking;
        match node.blocking {
            0 => false,
            1 => !self.links.owners(id).any(by_itself),
            _ => true,
        }
    }

    /// Whether it is not known if it is there.
    pub fn is_in_question(&self, id: NodeId) -> bool {
        self.links.node(id).state.is_in_question()
    }

    /// The next dependent, round and round.
    pub fn next_dependent(&mut self, id: NodeId) -> Option<NodeId> {
        self.links.next_dependent(id)
    }

    /// All nodes with this UID.
    pub fn with_uid(&self, uid: &str) -> Vec<NodeId> {
        match self.odd.known(uid) {
            Some(uid) => self.links.with_uid(uid),
            None => Vec::new(),
        }
    }

    /// Text of a node's UID.
    pub fn uid(&self, id: NodeId) -> String {
        self.odd.text(self.node(id).uid)
    }

    /// Name of a namespace.
    pub fn namespace(&self, id: SpaceId) -> &str {
        self.spaces.name(id)
    }

    /// An object of this kind is there, as an event, a list or an answer shows it.
    pub fn observe(&mut self, kind: KindId, object: &Observed) {
        let uid = self.odd.uid(&object.uid);
        let at = Coordinates {
            kind,
            namespace: self.spaces.id(&object.namespace),
            name: &object.name,
        };
        let round = self.rounds(kind);
        let plain = object.owners.is_empty() && !object.deleting && !object.orphan && !object.foreground;
        let known = self.links.find(uid, at);
        if known.is_none() && plain {
            if self.lone[kind.place()].insert(&self.hasher, uid, at, round) {
                self.ask_elsewhere(uid, None);
            }
            return;
        }
        let was_lone = self.lone[kind.place()].remove(&self.hasher, uid);
        let version = object.version.parse().unwrap_or(0);
        let id = known.unwrap_or_else(|| self.links.add(uid, at, State::default()));
        let node = self.links.node_mut(id);
        let before = node.state;
        if before.has(State::OBSERVED) && version < node.version {
            // An answer that was overtaken by an event.
            return;
        }
        node.version = version;
        let state = &mut node.state;
        state.set(State::OBSERVED, true);
        state.set(State::ABSENT, false);
        state.set(State::UNSEEN, false);
        state.set(State::ROUND, round);
        state.set(State::DELETING, object.deleting);
        state.set(State::ORPHAN, object.orphan);
        state.set(State::FOREGROUND, object.foreground);
        let now = *state;
        if !before.has(State::OBSERVED) && !was_lone {
            self.ask_elsewhere(uid, Some(id));
        }
        self.follow_owners(id, object);
        if now.waits() && !before.waits() {
            self.hints.push(Hint::Dependents(id));
        }
        if now.waits() || now.orphans() {
            self.hints.push(Hint::Decide(id));
        }
        self.tidy(id);
    }

    /// The object of this kind with this UID has been deleted.
    pub fn vanished(&mut self, kind: KindId, uid: &str) {
        let uid = self.odd.uid(uid);
        self.rounds(kind);
        self.lone[kind.place()].remove(&self.hasher, uid);
        self.nowhere(uid);
    }

    /// A UID is never given twice: once it is gone, it is nowhere.
    fn nowhere(&mut self, uid: Uid) {
        for id in self.links.with_uid(uid) {
            self.absent(id);
        }
    }

    /// Nothing with this UID stands at these coordinates, as an answer shows.
    pub fn absent(&mut self, id: NodeId) {
        if self.node(id).state.is_free() {
            return;
        }
        let released = self.links.set_owners(id, &[]).released;
        let node = self.links.node_mut(id);
        let was = node.state;
        node.state = State::ABSENT;
        node.version = 0;
        if node.dependents > 0 && !was.has(State::ABSENT) {
            self.hints.push(Hint::Dependents(id));
        }
        self.release(released);
        self.tidy(id);
    }

    /// A list of all objects of this kind begins. Each has to be observed before it ends.
    pub fn begin_list(&mut self, kind: KindId) {
        self.rounds(kind);
        let round = &mut self.rounds[kind.place()];
        *round = !*round;
    }

    /// The list was complete: what it did not show is gone, or has to be asked for where somebody depends on it.
    pub fn end_list(&mut self, kind: KindId) {
        let round = self.rounds(kind);
        let unseen = |id: &NodeId| {
            let node = self.links.node(*id);
            node.kind == kind && node.state.has(State::OBSERVED) && node.state.has(State::ROUND) != round
        };
        let unseen: Vec<NodeId> = self.links.all().filter(unseen).collect();
        // All of them first: one that goes lets others go.
        for id in &unseen {
            self.links.node_mut(*id).state.set(State::UNSEEN, true);
        }
        for id in unseen {
            let node = self.links.node(id);
            if node.state.has(State::UNSEEN) && node.dependents == 0 {
                self.absent(id);
            } else if node.state.has(State::UNSEEN) {
                self.hints.push(Hint::Ask(id));
            }
        }
        for uid in self.lone[kind.place()].sweep(round) {
            self.nowhere(uid);
        }
    }

    /// A kind has come to be served, or its scope is another: references to it may lead elsewhere than was thought, and
    /// what could not be asked for can be.
    pub fn served(&mut self, kind: KindId) {
        let of_it = |id: &NodeId| self.links.node(*id).kind == kind;
        let owners: Vec<NodeId> = self.links.all().filter(of_it).collect();
        for owner in owners {
            if self.is_in_question(owner) {
                self.hints.push(Hint::Ask(owner));
            }
            let dependents: Vec<NodeId> = self.links.dependents(owner).map(|link| link.node).collect();
            for dependent in dependents {
                let links: Vec<Link> = self.links.owners(dependent).collect();
                let moved: Vec<Link> = links.into_iter().map(|link| self.moved(dependent, link)).collect();
                self.set_owners(dependent, &moved);
            }
        }
    }

    fn moved(&mut self, dependent: NodeId, link: Link) -> Link {
        let owner = self.links.node(link.node);
        let (uid, kind, name) = (owner.uid, owner.kind, owner.name.clone());
        let node = self.owner_of(dependent, kind, uid, &name);
        Link { node, ..link }
    }

    /// Other nodes with this UID cannot be where they are said to be; they are asked for at once.
    fn ask_elsewhere(&mut self, uid: Uid, but: Option<NodeId>) {
        let virtual_ones = |id: &NodeId| Some(*id) != but && self.is_in_question(*id);
        let others: Vec<NodeId> = self.links.with_uid(uid).into_iter().filter(virtual_ones).collect();
        self.hints.extend(others.into_iter().map(Hint::Ask));
    }

    fn follow_owners(&mut self, id: NodeId, object: &Observed) {
        let mut links: Vec<Link> = Vec::with_capacity(object.owners.len());
        for reference in &object.owners {
            let kind = self.kinds.referenced(&reference.api_version, &reference.kind);
            let uid = self.odd.uid(&reference.uid);
            let node = self.owner_of(id, kind, uid, &reference.name);
            // The same owner in two versions of its kind is one owner.
            match links.iter_mut().find(|link| link.node == node) {
                Some(link) => link.blocking |= reference.blocking,
                None => links.push(Link {
                    node,
                    blocking: reference.blocking,
                }),
            }
        }
        self.set_owners(id, &links);
    }

    fn set_owners(&mut self, id: NodeId, links: &[Link]) {
        let changed = self.links.set_owners(id, links);
        // Only the first to name it: whoever asks does so until there is an answer.
        let is_new = |id: &NodeId| self.is_in_question(*id) && self.links.node(*id).dependents == 1;
        let unknown: Vec<Hint> = changed.added.iter().copied().filter(is_new).map(Hint::Ask).collect();
        self.hints.extend(unknown);
        if !changed.added.is_empty() || !changed.released.is_empty() {
            let decides = |link: &Link| {
                let state = self.links.node(link.node).state;
                state.has(State::ABSENT) || state.waits()
            };
            if links.iter().any(decides) {
                self.hints.push(Hint::Decide(id));
            }
        }
        self.release(changed.released);
    }

    /// Owners that a dependent no longer names or no longer blocks.
    fn release(&mut self, owners: Vec<NodeId>) {
        for owner in owners {
            let node = self.links.node(owner);
            if node.state.waits() && !self.is_blocked(owner) {
                self.hints.push(Hint::Decide(owner));
            }
            self.tidy(owner);
        }
    }

    /// The node that a reference leads to: where it says, in the namespace of whoever holds it.
    fn owner_of(&mut self, dependent: NodeId, kind: KindId, uid: Uid, name: &str) -> NodeId {
        let namespace = match self.kinds.resource(kind).map(|resource| resource.scope) {
            Some(Scope::Cluster) => SpaceId::NONE,
            Some(Scope::Namespaced) | None => self.links.node(dependent).namespace,
        };
        let at = Coordinates { kind, namespace, name };
        if let Some(id) = self.links.find(uid, at) {
            return id;
        }
        let mut state = State::default();
        let lone = self.lone.get_mut(kind.place());
        if let Some(round) = lone.and_then(|lone| lone.take(&self.hasher, uid, at)) {
            state.set(State::OBSERVED, true);
            state.set(State::ROUND, round);
        }
        self.links.add(uid, at, state)
    }

    /// A node that nobody names any more, and that names nobody, costs only its UID, or nothing.
    fn tidy(&mut self, id: NodeId) {
        let node = self.links.node(id);
        let idle = node.dependents == 0 && self.links.owners(id).next().is_none();
        if !idle || (node.state.is_particular() && !node.state.is_in_question()) || node.state.is_free() {
            return;
        }
        if !node.state.is_in_question() && !node.state.has(State::ABSENT) {
            let (round, at) = (node.state.has(State::ROUND), node.coordinates());
            if let Some(lone) = self.lone.get_mut(node.kind.place()) {
                lone.insert(&self.hasher, node.uid, at, round);
            }
        }
        self.links.remove(id);
    }

    /// The round of lists that counts for a kind.
    fn rounds(&mut self, kind: KindId) -> bool {
        let place = kind.place();
        if self.rounds.len() <= place {
            self.rounds.resize(place + 1, false);
            self.lone.resize_with(place + 1, Lone::default);
        }
        self.rounds[place]
    }
}

// === impl Spaces ===

impl Default for Spaces {
    fn default() -> Self {
        Self {
            names: vec![Box::default()],
            places: HashMap::from([(Box::default(), SpaceId::NONE)]),
        }
    }
}

impl Spaces {
    fn id(&mut self, name: &str) -> SpaceId {
        if let Some(&id) = self.places.get(name) {
            return id;
        }
        let id = SpaceId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push(name.into());
        self.places.insert(name.into(), id);
        id
    }

    fn name(&self, SpaceId(id): SpaceId) -> &str {
        self.names.get(id as usize).map_or("", |name| name)
    }
}
