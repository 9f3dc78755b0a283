//! Kinds that become served, or are no longer served.

use super::{Graph, Isolated, Link, Node, NodeId, NodeState, WorkItem, links::distinct};
use crate::collector::kinds::KindId;

// === impl Graph ===

impl Graph {
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
            dependents.extend(self.links.dependents(owner).map(|link| link.node));
        }
        // Each once, however many of its owners are of this kind.
        dependents.sort_unstable();
        dependents.dedup();
        for dependent in dependents {
            let links: Vec<Link> = self.links.owners(dependent).collect();
            let relinked = links.into_iter().map(|link| self.relink(dependent, link)).collect();
            self.set_owners(dependent, &distinct(relinked));
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
        unknown.retain(|&id| self.links.node(id).state.contains(NodeState::OBSERVED));
        // Marks all before it releases any: a release must not move one of them to the isolated objects.
        for &id in &unknown {
            self.links.node_mut(id).state.set(NodeState::UNCONFIRMED, true);
        }
        for id in unknown {
            let Node {
                uid, version, state, ..
            } = *self.links.node(id);
            if state.in_orphan_deletion() {
                self.record_orphaning(uid, version);
            }
            let removed_or_unblocked = self.links.set_owners(id, &[]).removed_or_unblocked;
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
        let owner = self.links.node(link.node);
        let (uid, kind, name) = (owner.uid, self.kinds.resolve_alias(owner.kind), owner.name.clone());
        let node = self.owner_node(dependent, kind, uid, &name);
        Link { node, ..link }
    }
}
