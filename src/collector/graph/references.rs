//! A node's owner references, and what their changes cause.

use super::{Coordinates, Graph, Hint, Link, NodeId, Observed, Place, Reference, SpaceId, State, links::distinct};
use crate::collector::{
    kinds::{KindId, Scope},
    uid::Uid,
};

// === impl Graph ===

impl Graph {
    pub(super) fn follow_owners(&mut self, id: NodeId, object: &Observed) {
        let links = object.owners.iter().map(|reference| Link {
            node: self.referenced(id, reference),
            blocking: reference.blocking,
        });
        let links = distinct(links.collect());
        self.set_owners(id, &links);
    }

    pub(super) fn set_owners(&mut self, id: NodeId, links: &[Link]) {
        let changed = self.links.set_owners(id, links);
        // Only for the first reference: the GET is retried until it is answered.
        let is_new = |id: &NodeId| {
            let node = self.links.node(*id);
            node.state.is_in_question() && !node.state.releases() && node.dependents == 1
        };
        let unknown: Vec<Hint> = changed.added.iter().copied().filter(is_new).map(Hint::Ask).collect();
        self.hints.extend(unknown);
        // Also without a change: the dependent may have dropped the reference and set it again.
        let decides = |link: &Link| {
            let state = self.links.node(link.node).state;
            state.has(State::ABSENT) || state.waits() || state.releases() || self.is_nowhere(link.node)
        };
        if links.iter().any(decides) {
            self.hints.push(Hint::Decide(id));
        }
        self.release(changed.released);
    }

    /// Decides again on owners that a dependent no longer names or no longer blocks.
    pub(super) fn release(&mut self, owners: Vec<NodeId>) {
        for owner in owners {
            let state = self.links.node(owner).state;
            if (state.waits() && !self.is_blocked(owner)) || (state.orphans() && !self.has_dependents(owner)) {
                self.hints.push(Hint::Decide(owner));
            }
            self.tidy(owner);
        }
    }

    /// Whether its kind is namespaced and its dependent has no namespace. No GET is possible; the reference is
    /// reported.
    fn is_nowhere(&self, id: NodeId) -> bool {
        let node = self.links.node(id);
        let scope = self.kinds.resource(node.kind).map(|resource| resource.scope);
        node.namespace == SpaceId::NONE && scope == Some(Scope::Namespaced)
    }

    /// The node of a reference. References that cannot be resolved share a node of [`KindId::UNKNOWN`] per UID, from
    /// which nothing is concluded.
    fn referenced(&mut self, dependent: NodeId, reference: &Reference) -> NodeId {
        let uid = self.odd.referenced(&reference.uid);
        let kind = if uid.is_some() && reference.is_readable() {
            self.kinds.referenced(&reference.api_version, &reference.kind)
        } else {
            KindId::UNKNOWN
        };
        let name = if kind == KindId::UNKNOWN { "" } else { &reference.name };
        self.owner_of(dependent, kind, uid.unwrap_or(Uid::NONE), name)
    }

    /// The node of a reference, in the namespace of its dependent.
    pub(super) fn owner_of(&mut self, dependent: NodeId, kind: KindId, uid: Uid, name: &str) -> NodeId {
        let namespace = match self.kinds.resource(kind).map(|resource| resource.scope) {
            Some(Scope::Cluster) => SpaceId::NONE,
            None if kind == KindId::UNKNOWN => SpaceId::NONE,
            Some(Scope::Namespaced) | None => self.links.node(dependent).namespace,
        };
        let at = Coordinates { kind, namespace, name };
        if let Some(id) = self.links.find(uid, at) {
            return id;
        }
        let mut state = self.named(uid);
        let lone = self.lone.get_mut(kind.place());
        let place = Place {
            namespace: self.spaces.name(namespace),
            name,
        };
        if let Some(round) = lone.and_then(|lone| lone.take(&self.hasher, uid, place)) {
            state.set(State::OBSERVED, true);
            state.set(State::ROUND, round);
        }
        self.add(uid, at, state)
    }

    /// State of a new node that is only named.
    pub(super) fn named(&self, uid: Uid) -> State {
        let mut state = State::default();
        state.set(State::ORPHANED, self.orphaned.has(uid));
        state
    }

    /// Removes a node without owners and dependents. An existing object becomes isolated.
    pub(super) fn tidy(&mut self, id: NodeId) {
        let node = self.links.node(id);
        let idle = node.dependents == 0 && self.links.owners(id).next().is_none();
        if !idle || (node.state.is_particular() && !node.state.is_in_question()) || node.state.is_free() {
            return;
        }
        if !node.state.is_in_question() && !node.state.has(State::ABSENT) {
            let round = node.state.has(State::ROUND);
            let at = Place {
                namespace: self.spaces.name(node.namespace),
                name: &node.name,
            };
            if let Some(lone) = self.lone.get_mut(node.kind.place()) {
                lone.insert(&self.hasher, node.uid, at, round);
            }
        }
        let (uid, version, state) = (node.uid, node.version, node.state);
        self.remove(id);
        if state.orphans() {
            self.remember(uid, version);
        }
    }
}
