//! Objects that are deleted, that a complete list does not show, or whose kind is no longer served, and what that means for
//! their dependents; also kinds that become served.

use super::{
    Graph, Isolated, Link, ListMark, Node, NodeId, NodeState, WorkItem,
    nodes::{Owners, distinct},
};
use crate::collector::{kinds::KindId, uid::Uid};

impl Graph {
    /// Applies the deletion of the object of this kind with this UID.
    pub fn apply_deletion(&mut self, kind: KindId, uid: &str) {
        self.list_mark(kind);
        let Some(uid) = self.interned_uids.known(uid) else {
            return;
        };
        self.isolated[kind.index()].remove(uid);
        // A UID is never reused, so all nodes of the kind with it are absent. Nodes of other kinds stay: some servers
        // show one object as two kinds.
        for id in self.nodes_with_uid(uid) {
            if self.nodes.node(id).kind == kind {
                self.set_absent(id);
            }
        }
    }

    /// Records that no object with this UID has these coordinates.
    pub fn set_absent(&mut self, id: NodeId) {
        if self.node(id).state.is_free() {
            return;
        }
        let removed_or_unblocked = self.nodes.set_owners(id, Owners::new()).removed_or_unblocked;
        let node = self.nodes.node_mut(id);
        let (uid, version, before) = (node.uid, node.version, node.state);
        node.state = NodeState::ABSENT;
        node.state.set(
            NodeState::ORPHANED,
            before.contains(NodeState::ORPHANED) || before.in_orphan_deletion(),
        );
        node.version = 0;
        if node.num_dependents() > 0 && !before.contains(NodeState::ABSENT) {
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
        let is_absent = |id: &NodeId| self.nodes.node(*id).state.contains(NodeState::ABSENT);
        let absent: Vec<NodeId> = self.nodes.all().filter(is_absent).collect();
        for id in absent {
            self.nodes.node_mut(id).state.set(NodeState::ABSENT, false);
            self.items.push(WorkItem::GetOwner(id));
        }
    }

    /// Records that a deleted owner had the finalizer `orphan`. Nodes keep that in their state, so later owners do not
    /// evict it.
    pub(super) fn record_orphaning(&mut self, uid: Uid, version: u64) {
        self.orphaned.insert(uid, version);
        for id in self.nodes_with_uid(uid) {
            let node = self.nodes.node_mut(id);
            if !node.state.contains(NodeState::ORPHANED) {
                node.state.set(NodeState::ORPHANED, true);
                if node.num_dependents() > 0 {
                    self.items.push(WorkItem::Dependents(id));
                }
            }
        }
    }

    /// Starts a list of this kind. Results of an aborted list do not count.
    pub fn begin_list(&mut self, kind: KindId) {
        let ListMark { mark, is_open, .. } = self.list_mark(kind);
        if is_open {
            self.list_marks[kind.index()].contradicted = None;
            for id in self.nodes_of_kind(kind) {
                self.nodes.node_mut(id).state.set(NodeState::LIST_MARK, !mark);
            }
            self.isolated[kind.index()].mark_all(!mark);
        } else {
            self.list_marks[kind.index()] = ListMark {
                mark: !mark,
                is_open: true,
                contradicted: None,
            };
        }
    }

    /// Completes a list at this resourceVersion. Objects that it did not show are absent; those with dependents need a
    /// GET.
    ///
    /// Returns whether the list contradicts the graph: it showed an object in an earlier state than the graph has, and that state is
    /// not newer than the list. Then the store was restored, and its revision raised.
    pub fn end_list(&mut self, kind: KindId, version: u64) -> bool {
        let ListMark { mark, contradicted, .. } = self.list_mark(kind);
        self.list_marks[kind.index()].is_open = false;
        let mut unseen = self.nodes_of_kind(kind);
        unseen.retain(|&id| {
            let state = self.nodes.node(id).state;
            state.contains(NodeState::OBSERVED) && state.contains(NodeState::LIST_MARK) != mark
        });
        // Marks all before it removes any: a removal may remove others.
        for &id in &unseen {
            let state = &mut self.nodes.node_mut(id).state;
            state.set(NodeState::UNCONFIRMED, true);
            state.set(NodeState::LIST_MARK, mark);
        }
        for id in unseen {
            let node = self.nodes.node(id);
            if node.state.contains(NodeState::UNCONFIRMED) && node.num_dependents() == 0 {
                self.set_absent(id);
            } else if node.state.contains(NodeState::UNCONFIRMED) {
                self.items.push(WorkItem::GetOwner(id));
            }
        }
        // Nodes with such a UID at other coordinates stay: a GET younger than the list may have shown them.
        self.isolated[kind.index()].sweep(mark);
        contradicted.is_some_and(|known| known <= version)
    }

    /// The mark of a kind. It creates the kind's entries in the tables.
    pub(super) fn list_mark(&mut self, kind: KindId) -> ListMark {
        let index = kind.index();
        if self.list_marks.len() <= index {
            self.list_marks.resize(index + 1, ListMark::default());
            self.isolated.resize_with(index + 1, Isolated::default);
        }
        self.list_marks[index]
    }

    /// All nodes of a kind, in index order.
    pub(super) fn nodes_of_kind(&self, kind: KindId) -> Vec<NodeId> {
        self.nodes
            .all()
            .filter(|&id| self.nodes.node(id).kind == kind)
            .collect()
    }

    /// Updates references after a kind became served or changed its scope: they may lead to other nodes, and GETs are
    /// possible.
    pub fn apply_served(&mut self, kind: KindId) {
        let mut owners = self.nodes_of_kind(kind);
        if let Some(lower) = self.kinds.lower_case_alias(kind) {
            owners.extend(self.nodes_of_kind(lower));
        }
        let mut dependents = Vec::new();
        for owner in owners {
            if self.is_unknown(owner) {
                self.items.push(WorkItem::GetOwner(owner));
            }
            // Dependents that were kept because of this kind have no other item in the queue.
            self.items.push(WorkItem::Dependents(owner));
            dependents.extend(self.nodes.node(owner).dependents().map(|link| link.node));
        }
        // Each once, however many of its owners are of this kind.
        dependents.sort_unstable();
        dependents.dedup();
        for dependent in dependents {
            let links: Vec<Link> = self.nodes.node(dependent).owners().collect();
            let owners = distinct(links.into_iter().map(|link| self.relink(dependent, link)));
            self.set_owners(dependent, owners);
        }
    }

    /// Handles a kind that is no longer served. Its objects are unknown from now on: they block no owner, and no
    /// dependent is deleted because of them. Its objects with the finalizer `orphan` count as deleted. The kind's
    /// resource is removed here; [`Graph::apply_served`] follows once a new one is set.
    pub fn apply_unserved(&mut self, kind: KindId) {
        self.kinds.set_resource(kind, None);
        self.list_mark(kind);
        self.isolated[kind.index()] = Isolated::default();
        let mut unknown = self.nodes_of_kind(kind);
        unknown.retain(|&id| self.nodes.node(id).state.contains(NodeState::OBSERVED));
        // Marks all before it releases any: a release must not move one of them to the isolated objects.
        for &id in &unknown {
            self.nodes.node_mut(id).state.set(NodeState::UNCONFIRMED, true);
        }
        for id in unknown {
            let Node {
                uid, version, state, ..
            } = *self.nodes.node(id);
            if state.in_orphan_deletion() {
                self.record_orphaning(uid, version);
            }
            let removed_or_unblocked = self.nodes.set_owners(id, Owners::new()).removed_or_unblocked;
            self.recheck_owners(removed_or_unblocked);
            self.compact(id);
        }
    }

    /// Enqueues a GET for each unknown node of a kind.
    pub fn enqueue_unknown(&mut self, kind: KindId) {
        let mut unknown = self.nodes_of_kind(kind);
        unknown.retain(|&id| self.is_unknown(id));
        self.items.extend(unknown.into_iter().map(WorkItem::GetOwner));
    }

    fn relink(&mut self, dependent: NodeId, link: Link) -> Link {
        let owner = self.nodes.node(link.node);
        let (uid, kind, name) = (owner.uid, self.kinds.resolve_alias(owner.kind), owner.name.clone());
        let node = self.owner_node(dependent, kind, uid, &name);
        Link { node, ..link }
    }
}
