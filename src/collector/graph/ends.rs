//! How objects come to their end, and what they leave to their dependents.

use super::{Graph, Hint, NodeId, State};
use crate::collector::{kinds::KindId, uid::Uid};

// === impl Graph ===

impl Graph {
    /// The object of this kind with this UID has been deleted.
    pub fn vanished(&mut self, kind: KindId, uid: &str) {
        self.round(kind);
        let Some(uid) = self.odd.known(uid) else {
            return;
        };
        self.lone[kind.place()].remove(&self.hasher, uid);
        // It is nowhere then: a UID is never given twice. Of what is said to be of another kind only that one's monitor tells;
        // there are servers that show one object as two kinds, and one of them only to some.
        for id in self.links.with_uid(uid) {
            if self.links.node(id).kind == kind {
                self.absent(id);
            }
        }
    }

    /// Nothing with this UID stands at these coordinates, as an answer shows.
    pub fn absent(&mut self, id: NodeId) {
        if self.node(id).state.is_free() {
            return;
        }
        let released = self.links.set_owners(id, &[]).released;
        let node = self.links.node_mut(id);
        let (uid, version, was) = (node.uid, node.version, node.state);
        self.links.set_observed(id, false);
        let node = self.links.node_mut(id);
        node.state = State::ABSENT;
        node.state
            .set(State::ORPHANED, was.has(State::ORPHANED) || was.orphans());
        node.version = 0;
        if node.dependents > 0 && !was.has(State::ABSENT) {
            self.hints.push(Hint::Dependents(id));
        }
        if was.orphans() {
            self.remember(uid, version);
        }
        self.release(released);
        self.tidy(id);
    }

    /// What was proven to be absent and is still named has to be asked for again. That it orphaned is not forgotten.
    pub fn doubt(&mut self) {
        let is_absent = |id: &NodeId| self.links.node(*id).state.has(State::ABSENT);
        let absent: Vec<NodeId> = self.links.all().filter(is_absent).collect();
        for id in absent {
            self.links.node_mut(id).state.set(State::ABSENT, false);
            self.hints.push(Hint::Ask(id));
        }
    }

    /// It went, and was orphaning when it was last seen. Nodes keep that for themselves: however many other owners go
    /// after it, their dependents are released.
    pub(super) fn remember(&mut self, uid: Uid, version: u64) {
        self.orphaned.remember(uid, version);
        for id in self.links.with_uid(uid) {
            let node = self.links.node_mut(id);
            if !node.state.has(State::ORPHANED) {
                node.state.set(State::ORPHANED, true);
                if node.dependents > 0 {
                    self.hints.push(Hint::Dependents(id));
                }
            }
        }
    }
}
