//! Objects and their owner references, and the work items that changes to them cause. It is synchronous and sends
//! nothing.
//!
//! A node stands for a UID *at coordinates*. Two references to one UID at different coordinates lead to two nodes; at
//! most one of them is ever observed. A reference with wrong coordinates leads to an absent node and affects no other
//! reference.

use std::collections::BTreeSet;

mod absence;
mod isolated;
mod nodes;
mod observed;
mod orphaned;
mod references;

use self::{isolated::Isolated, nodes::Nodes, orphaned::Orphaned};
use super::{
    kinds::{KindId, Kinds, Resource},
    uid::{InternedUids, Uid, is_damaged},
};

pub use self::{
    nodes::{Link, Node, NodeId, NodeState},
    observed::{Coordinates, Observed, Reference},
};

/// An item of the work queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkItem {
    /// Decide on this object. kube-controller-manager: `attemptToDelete`.
    Decide(NodeId),
    /// Decide on all dependents of this owner.
    Dependents(NodeId),
    /// GET this object.
    GetOwner(NodeId),
}

/// Marks of a kind's last list.
#[derive(Debug, Clone, Copy, Default)]
struct ListMark {
    /// The mark of objects seen in the current list. It alternates from list to list, so starting one changes no
    /// object. Between lists all observed objects have it.
    mark: bool,
    /// A list has started and is not complete.
    is_open: bool,
    /// The lowest resourceVersion of an object that the open list shows in an earlier state.
    contradicted: Option<u64>,
}

/// The graph of all observed objects. Each change adds the work items that it causes; `take_items` returns them.
#[derive(Debug, Default)]
pub struct Graph {
    pub kinds: Kinds,
    interned_uids: InternedUids,
    nodes: Nodes,
    isolated: Vec<Isolated>,
    list_marks: Vec<ListMark>,
    orphaned: Orphaned,
    /// Kinds with objects whose UID, namespace or name cannot be represented.
    pub unrepresentable: BTreeSet<KindId>,
    items: Vec<WorkItem>,
}

// === impl Graph ===

impl Graph {
    /// Takes the collected work items.
    pub fn take_items(&mut self) -> Vec<WorkItem> {
        std::mem::take(&mut self.items)
    }

    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes.node(id)
    }

    /// All nodes, in index order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.all()
    }

    /// Number of nodes, and of isolated objects.
    pub fn len(&self) -> (usize, usize) {
        (self.nodes.len(), self.isolated.iter().map(Isolated::len).sum())
    }

    /// Number of isolated objects of each kind, by [`KindId::index`].
    pub(super) fn isolated_counts(&self) -> Vec<u64> {
        self.isolated.iter().map(|isolated| isolated.len() as u64).collect()
    }

    pub fn owners(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.nodes.node(id).owners()
    }

    pub fn dependents(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.nodes.node(id).dependents()
    }

    /// Whether a node has this index. A work item may be older than its node.
    pub fn contains(&self, id: NodeId) -> bool {
        !self.nodes.node(id).state.is_free()
    }

    /// Whether this index still has the node with this UID and coordinates. An index is reused, also for the same UID
    /// at other coordinates.
    pub fn matches(&self, id: NodeId, uid: Uid, at: Coordinates<'_>) -> bool {
        let node = self.nodes.node(id);
        self.contains(id) && node.uid == uid && node.coordinates() == at
    }

    /// Whether dependents block its foreground deletion. A reference to itself does not.
    pub fn is_blocked(&self, id: NodeId) -> bool {
        let node = self.nodes.node(id);
        let blocks_itself = || node.owners().any(|link| link.node == id && link.blocking);
        node.blocking > 1 || (node.blocking == 1 && !blocks_itself())
    }

    /// Whether it has dependents other than itself.
    pub fn has_dependents(&self, id: NodeId) -> bool {
        self.nodes.node(id).dependents().any(|link| link.node != id)
    }

    /// Whether an object with its UID and kind exists at other coordinates: the reference has the wrong name or
    /// namespace. Only the first nodes with that UID are checked.
    pub fn exists_elsewhere(&self, id: NodeId) -> bool {
        let Node { uid, kind, .. } = *self.nodes.node(id);
        let exists_at_other_coordinates = |other: NodeId| {
            let node = self.nodes.node(other);
            other != id && node.kind == kind && node.state.exists()
        };
        let isolated = self.isolated.get(kind.index());
        isolated.is_some_and(|isolated| isolated.has(uid))
            || self
                .nodes
                .with_uid(uid)
                .take(MAX_SAME_UID)
                .any(exists_at_other_coordinates)
    }

    /// Whether the API server can be asked for it: its kind is served and its name is a valid path segment. The API
    /// server does not validate names in owner references. A name with a slash would reach another resource, or a
    /// proxy.
    pub fn can_be_resolved(&self, id: NodeId) -> bool {
        let node = self.nodes.node(id);
        let is_length_allowed = node.name.len() <= MAX_NAME_LENGTH || node.state.contains(NodeState::OBSERVED);
        self.kinds.resource(node.kind).is_some() && is_path_segment(&node.name) && is_length_allowed
    }

    /// Whether it keeps its dependents because nothing can resolve the reference to it.
    pub fn is_unresolved(&self, id: NodeId) -> bool {
        self.is_unknown(id) && self.nodes.node(id).num_dependents() > 0 && !self.can_be_resolved(id)
    }

    pub fn is_unknown(&self, id: NodeId) -> bool {
        self.nodes.node(id).state.is_unknown()
    }

    pub fn with_uid(&self, uid: &str) -> Vec<NodeId> {
        match self.interned_uids.known(uid) {
            Some(uid) => self.nodes_with_uid(uid),
            None => Vec::new(),
        }
    }

    /// The kind of the isolated object with this UID. Isolated objects have no node.
    pub fn isolated_kind(&self, uid: &str) -> Option<KindId> {
        let uid = self.interned_uids.known(uid)?;
        let has = |(id, _): &(KindId, &Resource)| {
            let isolated = self.isolated.get(id.index());
            isolated.is_some_and(|isolated| isolated.has(uid))
        };
        self.kinds.served().find(has).map(|(id, _)| id)
    }

    pub fn uid(&self, id: NodeId) -> String {
        self.interned_uids.text(self.node(id).uid)
    }

    /// Applies an object from a list or a watch event.
    pub fn observe(&mut self, kind: KindId, object: &Observed) {
        let ListMark { mark, is_open, .. } = self.list_mark(kind);
        if let Some(known) = self.apply(kind, object, mark)
            && is_open
        {
            let contradicted = &mut self.list_marks[kind.index()].contradicted;
            *contradicted = Some(contradicted.map_or(known, |it| it.min(known)));
        }
    }

    /// Applies the answer to a GET; `false` if it may be older than the object's deletion, and is ignored.
    /// `progress` is the resourceVersion up to which the kind's monitor has reported everything: that of its last complete list,
    /// or of a later event or bookmark; 0 before the first list.
    ///
    /// The answer may be older than `progress`. An object that is not known to exist at that point is deleted already,
    /// and no second event would report that. So the kind needs a monitor, and the caller checks [`Graph::matches`]
    /// first.
    pub fn apply_get(&mut self, id: NodeId, object: &Observed, progress: u64) -> bool {
        let Node { kind, state, .. } = *self.nodes.node(id);
        if !state.exists() && object.version <= progress {
            return false;
        }
        // A list in progress that is younger has to show the object too.
        let ListMark { mark, is_open, .. } = self.list_mark(kind);
        let mark = if state.contains(NodeState::OBSERVED) {
            state.contains(NodeState::LIST_MARK)
        } else {
            mark != is_open
        };
        self.apply(kind, object, mark);
        if state.exists() && self.nodes.node(id).num_dependents() > 0 {
            self.items.push(WorkItem::Dependents(id));
        }
        true
    }

    /// Applies a state of an object. Returns the resourceVersion of the known state, if that is later.
    fn apply(&mut self, kind: KindId, object: &Observed, mark: bool) -> Option<u64> {
        let is_readable = !is_damaged(&object.namespace) && !is_damaged(&object.name);
        let Some(uid) = self.interned_uids.intern_observed(&object.uid).filter(|_| is_readable) else {
            // No request can name it, and no reference leads to it.
            self.unrepresentable.insert(kind);
            return None;
        };
        let can_be_isolated = object.owners.is_empty() && !object.deleting && !object.orphan && !object.foreground;
        let at = Coordinates {
            kind,
            namespace: &object.namespace,
            name: &object.name,
        };
        let known = self.nodes.find(uid, at);
        if known.is_none() && can_be_isolated {
            if self.isolated[kind.index()].insert(uid, at, mark) {
                self.recheck_same_uid(uid, None);
            }
            return None;
        }
        let was_isolated = self.isolated[kind.index()].remove(uid);
        let version = object.version;
        let id = known.unwrap_or_else(|| self.nodes.add(uid, at, self.initial_state(uid)));
        let node = self.nodes.node_mut(id);
        let before = node.state;
        // Even an old state proves that it exists.
        node.state.set(NodeState::UNCONFIRMED, false);
        node.state.set(NodeState::LIST_MARK, mark);
        if !before.exists() && node.num_dependents() > 0 {
            // Its dependents were not decided on while it was unknown.
            self.items.push(WorkItem::Dependents(id));
        }
        if before.contains(NodeState::OBSERVED) && version < node.version {
            return Some(node.version);
        }
        node.version = version;
        let state = &mut node.state;
        state.set_observed(object);
        if before.contains(NodeState::ORPHANED) && !state.in_orphan_deletion() && self.orphaned.remove(uid, version) {
            state.set(NodeState::ORPHANED, false);
        }
        let now = *state;
        if !before.contains(NodeState::OBSERVED) && !was_isolated {
            self.recheck_same_uid(uid, Some(id));
        }
        self.update_owners(id, object);
        if (now.in_foreground_deletion() && !before.in_foreground_deletion())
            || (now.in_orphan_deletion() && !before.in_orphan_deletion())
        {
            self.items.push(WorkItem::Dependents(id));
        }
        if now.in_foreground_deletion() || now.in_orphan_deletion() {
            self.items.push(WorkItem::Decide(id));
        }
        self.compact(id);
        None
    }

    /// All nodes with this UID, in index order.
    fn nodes_with_uid(&self, uid: Uid) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.nodes.with_uid(uid).collect();
        nodes.sort_unstable();
        nodes
    }

    /// Enqueues a GET for the unknown nodes with this UID: it exists at other coordinates.
    fn recheck_same_uid(&mut self, uid: Uid, but: Option<NodeId>) {
        let is_unknown = |id: &NodeId| Some(*id) != but && self.is_unknown(*id);
        let others: Vec<NodeId> = self.nodes_with_uid(uid).into_iter().filter(is_unknown).collect();
        self.items.extend(others.into_iter().map(WorkItem::GetOwner));
    }
}

/// Maximum number of nodes with one UID that are checked.
const MAX_SAME_UID: usize = 256;

/// Nearly all names have at most 253 characters. Some kinds, such as roles, have no limit of their own.
const MAX_NAME_LENGTH: usize = 1024;

/// Whether client-go accepts this name as a path segment. apimachinery: pkg/api/validation/path/name.go
/// `IsValidPathSegmentName`.
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

// === impl Reference ===

impl Reference {
    /// Whether all its strings are valid UTF-8.
    fn is_readable(&self) -> bool {
        let texts = [&self.api_version, &self.kind, &self.name, &self.uid];
        !texts.into_iter().any(|text| is_damaged(text))
    }
}

// === impl Observed ===

impl Observed {
    /// Whether another state of the object leads to the same decision.
    pub fn leads_to_same_decision(&self, other: &Self) -> bool {
        let facts = |it: &Self| (it.deleting, it.orphan, it.foreground);
        self.uid == other.uid && facts(self) == facts(other) && self.owners == other.owners
    }
}
