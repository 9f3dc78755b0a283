//! A node's owner references, and what their changes cause.

use std::sync::Arc;

use super::{
    Coordinates, Graph, Link, NodeId, NodeState, Observed, Reference, WorkItem,
    nodes::{Owners, distinct},
};
use crate::collector::{
    kinds::{KindId, Scope},
    uid::Uid,
};

impl Graph {
    pub(super) fn update_owners(&mut self, id: NodeId, object: &Observed) {
        let links = object.owners.iter().map(|reference| Link {
            node: self.reference_node(id, reference),
            blocking: reference.blocking,
        });
        let owners = distinct(links);
        self.set_owners(id, owners);
    }

    pub(super) fn set_owners(&mut self, id: NodeId, owners: Owners) {
        // Also without a change: the dependent may have dropped the reference and set it again.
        let needs_decision = owners.keys().any(|&owner| {
            let state = self.nodes.node(owner).state;
            state.contains(NodeState::ABSENT)
                || state.in_foreground_deletion()
                || state.orphans_dependents()
                || self.lacks_namespace(owner)
        });
        let changes = self.nodes.set_owners(id, owners);
        // Only for the first reference: the GET is retried until it is answered.
        let is_new = |id: &NodeId| {
            let node = self.nodes.node(*id);
            node.state.is_unknown() && !node.state.orphans_dependents() && node.num_dependents() == 1
        };
        let unknown = changes.added.into_iter().filter(is_new);
        self.items.extend(unknown.map(WorkItem::GetOwner));
        if needs_decision {
            self.items.push(WorkItem::Decide(id));
        }
        self.recheck_owners(changes.removed_or_unblocked);
    }

    /// Decides again on owners that a dependent no longer names or no longer blocks.
    pub(super) fn recheck_owners(&mut self, owners: Vec<NodeId>) {
        for owner in owners {
            let state = self.nodes.node(owner).state;
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
        let node = self.nodes.node(id);
        let scope = self.kinds.resource(node.kind).map(|resource| resource.scope);
        node.namespace.is_empty() && scope == Some(Scope::Namespaced)
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
            Some(Scope::Cluster) => Arc::default(),
            None if kind == KindId::UNKNOWN => Arc::default(),
            Some(Scope::Namespaced) | None => Arc::clone(&self.nodes.node(dependent).namespace),
        };
        let at = Coordinates {
            kind,
            namespace: &namespace,
            name,
        };
        if let Some(id) = self.nodes.find(uid, at) {
            return id;
        }
        let mut state = self.initial_state(uid);
        let isolated = self.isolated.get_mut(kind.index());
        if let Some(mark) = isolated.and_then(|isolated| isolated.take(uid, at)) {
            state.set(NodeState::OBSERVED, true);
            state.set(NodeState::LIST_MARK, mark);
        }
        self.nodes.add(uid, at, state)
    }

    /// State of a new node that is only named.
    pub(super) fn initial_state(&self, uid: Uid) -> NodeState {
        let mut state = NodeState::default();
        state.set(NodeState::ORPHANED, self.orphaned.contains(uid));
        state
    }

    /// Removes a node without owners and dependents. An existing object becomes isolated.
    pub(super) fn compact(&mut self, id: NodeId) {
        let node = self.nodes.node(id);
        let is_idle = node.num_dependents() == 0 && node.owners().next().is_none();
        if !is_idle || (node.state.has_deletion_facts() && !node.state.is_unknown()) || node.state.is_free() {
            return;
        }
        if !node.state.is_unknown() && !node.state.contains(NodeState::ABSENT) {
            let mark = node.state.contains(NodeState::LIST_MARK);
            if let Some(isolated) = self.isolated.get_mut(node.kind.index()) {
                isolated.insert(node.uid, node.coordinates(), mark);
            }
        }
        let (uid, version, state) = (node.uid, node.version, node.state);
        self.nodes.remove(id);
        if state.in_orphan_deletion() {
            self.record_orphaning(uid, version);
        }
    }
}
