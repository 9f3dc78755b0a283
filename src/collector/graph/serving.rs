//! Kinds that come to be served and cease to be.

use super::{Graph, Hint, Link, Lone, Node, NodeId, State, links::distinct};
use crate::collector::kinds::KindId;

// === impl Graph ===

impl Graph {
    /// A kind has come to be served, or its scope is another: references to it may lead elsewhere than was thought, and
    /// what could not be asked for can be.
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
            // Nobody decides again on what was left alone because of this kind, unless told.
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

    /// A kind is no longer served, for certain: nobody can tell any more whether its objects are there. So they hold up
    /// nobody, and nobody is deleted because of them; those that were orphaning are taken to have gone without their
    /// dependents. Its resource is forgotten here, so that nothing is asked for or written where nobody answers;
    /// [`Graph::served`] comes after the new one is set.
    pub fn unserved(&mut self, kind: KindId) {
        self.kinds.set_resource(kind, None);
        self.round(kind);
        self.lone[kind.place()] = Lone::default();
        let mut lost = self.of_kind(kind);
        lost.retain(|&id| self.links.node(id).state.has(State::OBSERVED));
        // All of them first: one that lets another go must not make it one that is there and lone.
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

    /// All of a kind that are in question are to be asked for.
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
