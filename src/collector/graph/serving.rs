//! Kinds that become served, or are no longer served.

use super::{Graph, Hint, Link, Lone, Node, NodeId, State, links::distinct};
use crate::collector::kinds::KindId;

// === impl Graph ===

impl Graph {
    /// Updates references after a kind became served or changed its scope: they may lead to other nodes, and GETs are
    /// possible.
    pub fn served(&mut self, kind: KindId) {
        let mut owners = self.of_kind(kind);
        if let Some(lower) = self.kinds.lower(kind) {
            owners.extend(self.of_kind(lower));
        }
        let mut dependents = Vec::new();
        for owner in owners {
            if self.is_in_question(owner) {
                self.hints.push(Hint::Ask(owner));
            }
            // Dependents that were kept because of this kind have no other item in the queue.
            self.hints.push(Hint::Dependents(owner));
            dependents.extend(self.links.dependents(owner).map(|link| link.node));
        }
        // Each once, however many of its owners are of this kind.
        dependents.sort_unstable();
        dependents.dedup();
        for dependent in dependents {
            let links: Vec<Link> = self.links.owners(dependent).collect();
            let moved = links.into_iter().map(|link| self.moved(dependent, link)).collect();
            self.set_owners(dependent, &distinct(moved));
        }
    }

    /// Handles a kind that is no longer served. Its objects are unknown from now on: they block no owner, and no
    /// dependent is deleted because of them. Its objects with the finalizer `orphan` count as deleted. The kind's
    /// resource is removed here; [`Graph::served`] follows once a new one is set.
    pub fn unserved(&mut self, kind: KindId) {
        self.kinds.set_resource(kind, None);
        self.round(kind);
        self.lone[kind.place()] = Lone::default();
        let mut lost = self.of_kind(kind);
        lost.retain(|&id| self.links.node(id).state.has(State::OBSERVED));
        // Marks all before it releases any: a release must not move one of them to the isolated objects.
        for &id in &lost {
            self.links.node_mut(id).state.set(State::UNSEEN, true);
        }
        for id in lost {
            let Node {
                uid, version, state, ..
            } = *self.links.node(id);
            if state.orphans() {
                self.remember(uid, version);
            }
            let released = self.links.set_owners(id, &[]).released;
            self.release(released);
            self.tidy(id);
        }
    }

    /// Enqueues a GET for each unknown node of a kind.
    pub fn ask_all(&mut self, kind: KindId) {
        let mut unknown = self.of_kind(kind);
        unknown.retain(|&id| self.is_in_question(id));
        self.hints.extend(unknown.into_iter().map(Hint::Ask));
    }

    fn moved(&mut self, dependent: NodeId, link: Link) -> Link {
        let owner = self.links.node(link.node);
        let (uid, kind, name) = (owner.uid, self.kinds.meant(owner.kind), owner.name.clone());
        let node = self.owner_of(dependent, kind, uid, &name);
        Link { node, ..link }
    }
}
