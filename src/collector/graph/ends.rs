//! Deletion of objects, and what it means for their dependents.

use super::{Graph, Hint, NodeId, State};
use crate::collector::{kinds::KindId, uid::Uid};

// === impl Graph ===

impl Graph {
    /// Applies the deletion of the object of this kind with this UID.
    pub fn vanished(&mut self, kind: KindId, uid: &str) {
        self.round(kind);
        let Some(uid) = self.odd.known(uid) else {
            return;
        };
        self.lone[kind.place()].remove(&self.hasher, uid);
        // A UID is never reused, so all nodes of the kind with it are absent. Nodes of other kinds stay: some servers
        // show one object as two kinds.
        for id in self.links.with_uid(uid) {
            if self.links.node(id).kind == kind {
                self.absent(id);
            }
        }
    }

    /// Records that no object with this UID has these coordinates.
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

    /// Forgets that nodes were absent, and enqueues a GET for each. What is known of orphaning stays.
    pub fn doubt(&mut self) {
        let is_absent = |id: &NodeId| self.links.node(*id).state.has(State::ABSENT);
        let absent: Vec<NodeId> = self.links.all().filter(is_absent).collect();
        for id in absent {
            self.links.node_mut(id).state.set(State::ABSENT, false);
            self.hints.push(Hint::Ask(id));
        }
    }

    /// Records that a deleted owner had the finalizer `orphan`. Nodes keep that in their state, so later owners do not
    /// evict it.
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
