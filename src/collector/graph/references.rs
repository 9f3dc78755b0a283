//! A node's owner references, and what their changes cause.

use super::{
    Coordinates, Graph, Link, NamespaceId, NamespacedName, NodeId, NodeState, Observed, Reference, WorkItem,
    links::distinct,
};
use crate::collector::{
    kinds::{KindId, Scope},
    uid::Uid,
};

// === impl Graph ===

impl Graph {
    pub(super) fn update_owners(&mut self, id: NodeId, object: &Observed) {
        let links = object.owners.iter().map(|reference| Link {
            node: self.reference_node(id, reference),
            blocking: reference.blocking,
        });
        let links = distinct(links.collect());
        self.set_owners(id, &links);
    }

    pub(super) fn set_owners(&mut self, id: NodeId, links: &[Link]) {
        let changes = self.links.set_owners(id, links);
        // Only for the first reference: the GET is retried until it is answered.
        let is_new = |id: &NodeId| {
            let node = self.links.node(*id);
            node.state.is_unknown() && !node.state.orphans_dependents() && node.dependents == 1
        };
        let unknown: Vec<WorkItem> = changes
            .added
            .iter()
            .copied()
            .filter(is_new)
            .map(WorkItem::GetOwner)
            .collect();
        self.items.extend(unknown);
        // Also without a change: the dependent may have dropped the reference and set it again.
        let needs_decision = |link: &Link| {
            let state = self.links.node(link.node).state;
            state.contains(NodeState::ABSENT)
                || state.in_foreground_deletion()
                || state.orphans_dependents()
                || self.lacks_namespace(link.node)
        };
        if links.iter().any(needs_decision) {
            self.items.push(WorkItem::Decide(id));
        }
        self.recheck_owners(changes.removed_or_unblocked);
    }

    /// Decides again on owners that a dependent no longer names or no longer blocks.
    pub(super) fn recheck_owners(&mut self, owners: Vec<NodeId>) {
        for owner in owners {
            let state = self.links.node(owner).state;
            if (state.in_foreground_deletion() && !self.is_blocked(owner))
                || (state.in_orphan_deletion() && !self.has_dependents(owner))
            {
                self.items.push(WorkItem::Decide(owner));
            }
            self.compact(owner);
        }
    }

    /// Whether its kind is namespaced and its dependent has no namespace. No GET is possible; the reference is
    /// reported.
    fn lacks_namespace(&self, id: NodeId) -> bool {
        let node = self.links.node(id);
        let scope = self.kinds.resource(node.kind).map(|resource| resource.scope);
        node.namespace == NamespaceId::NONE && scope == Some(Scope::Namespaced)
    }

    /// The node of a reference. References that cannot be resolved share a node of [`KindId::UNKNOWN`] per UID, from
    /// which nothing is concluded.
    fn reference_node(&mut self, dependent: NodeId, reference: &Reference) -> NodeId {
        let uid = self.interned_uids.intern_referenced(&reference.uid);
        let kind = if uid.is_some() && reference.is_readable() {
            self.kinds.referenced(&reference.api_version, &reference.kind)
        } else {
            KindId::UNKNOWN
        };
        let name = if kind == KindId::UNKNOWN { "" } else { &reference.name };
        self.owner_node(dependent, kind, uid.unwrap_or(Uid::NONE), name)
    }

    /// The node of a reference, in the namespace of its dependent.
    pub(super) fn owner_node(&mut self, dependent: NodeId, kind: KindId, uid: Uid, name: &str) -> NodeId {
        let namespace = match self.kinds.resource(kind).map(|resource| resource.scope) {
            Some(Scope::Cluster) => NamespaceId::NONE,
            None if kind == KindId::UNKNOWN => NamespaceId::NONE,
            Some(Scope::Namespaced) | None => self.links.node(dependent).namespace,
        };
        let at = Coordinates { kind, namespace, name };
        if let Some(id) = self.links.find(uid, at) {
            return id;
        }
        let mut state = self.initial_state(uid);
        let isolated = self.isolated.get_mut(kind.index());
        let namespaced_name = NamespacedName {
            namespace: self.namespaces.name(namespace),
            name,
        };
        if let Some(mark) = isolated.and_then(|isolated| isolated.take(&self.hasher, uid, namespaced_name)) {
            state.set(NodeState::OBSERVED, true);
            state.set(NodeState::LIST_MARK, mark);
        }
        self.add(uid, at, state)
    }

    /// State of a new node that is only named.
    pub(super) fn initial_state(&self, uid: Uid) -> NodeState {
        let mut state = NodeState::default();
        state.set(NodeState::ORPHANED, self.orphaned.contains(uid));
        state
    }

    /// Removes a node without owners and dependents. An existing object becomes isolated.
    pub(super) fn compact(&mut self, id: NodeId) {
        let node = self.links.node(id);
        let is_idle = node.dependents == 0 && self.links.owners(id).next().is_none();
        if !is_idle || (node.state.has_deletion_facts() && !node.state.is_unknown()) || node.state.is_free() {
            return;
        }
        if !node.state.is_unknown() && !node.state.contains(NodeState::ABSENT) {
            let mark = node.state.contains(NodeState::LIST_MARK);
            let at = NamespacedName {
                namespace: self.namespaces.name(node.namespace),
                name: &node.name,
            };
            if let Some(isolated) = self.isolated.get_mut(node.kind.index()) {
                isolated.insert(&self.hasher, node.uid, at, mark);
            }
        }
        let (uid, version, state) = (node.uid, node.version, node.state);
        self.remove(id);
        if state.in_orphan_deletion() {
            self.record_orphaning(uid, version);
        }
    }
}
