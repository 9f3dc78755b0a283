//! Deletion of objects, and what it means for their dependents.

use super::{Graph, NodeId, NodeState, WorkItem};
use crate::collector::{kinds::KindId, uid::Uid};

// === impl Graph ===

impl Graph {
    /// Applies the deletion of the object of this kind with this UID.
    pub fn apply_deletion(&mut self, kind: KindId, uid: &str) {
        self.list_mark(kind);
        let Some(uid) = self.interned_uids.known(uid) else {
            return;
        };
        self.isolated[kind.index()].remove(&self.hasher, uid);
        // A UID is never reused, so all nodes of the kind with it are absent. Nodes of other kinds stay: some servers
        // show one object as two kinds.
        for id in self.links.with_uid(uid) {
            if self.links.node(id).kind == kind {
                self.set_absent(id);
            }
        }
    }

    /// Records that no object with this UID has these coordinates.
    pub fn set_absent(&mut self, id: NodeId) {
        if self.node(id).state.is_free() {
            return;
        }
        let removed_or_unblocked = self.links.set_owners(id, &[]).removed_or_unblocked;
        let node = self.links.node_mut(id);
        let (uid, version, before) = (node.uid, node.version, node.state);
        self.links.set_observed(id, false);
        let node = self.links.node_mut(id);
        node.state = NodeState::ABSENT;
        node.state.set(
            NodeState::ORPHANED,
            before.contains(NodeState::ORPHANED) || before.in_orphan_deletion(),
        );
        node.version = 0;
        if node.dependents > 0 && !before.contains(NodeState::ABSENT) {
            self.items.push(WorkItem::Dependents(id));
        }
        if before.in_orphan_deletion() {
            self.record_orphaning(uid, version);
        }
        self.recheck_owners(removed_or_unblocked);
        self.compact(id);
    }

    /// Forgets that nodes were absent, and enqueues a GET for each. The record of orphaning stays.
    pub fn recheck_absent(&mut self) {
        let is_absent = |id: &NodeId| self.links.node(*id).state.contains(NodeState::ABSENT);
        let absent: Vec<NodeId> = self.links.all().filter(is_absent).collect();
        for id in absent {
            self.links.node_mut(id).state.set(NodeState::ABSENT, false);
            self.items.push(WorkItem::GetOwner(id));
        }
    }

    /// Records that a deleted owner had the finalizer `orphan`. Nodes keep that in their state, so later owners do not
    /// evict it.
    pub(super) fn record_orphaning(&mut self, uid: Uid, version: u64) {
        self.orphaned.insert(uid, version);
        for id in self.links.with_uid(uid) {
            let node = self.links.node_mut(id);
            if !node.state.contains(NodeState::ORPHANED) {
                node.state.set(NodeState::ORPHANED, true);
                if node.dependents > 0 {
                    self.items.push(WorkItem::Dependents(id));
                }
            }
        }
    }
}
