//! Objects and their owner references, and the work items that changes to them cause. It is synchronous and sends
//! nothing.
//!
//! A node stands for a UID *at coordinates*. Two references to one UID at different coordinates lead to two nodes; at
//! most one of them is ever observed. A reference with wrong coordinates leads to an absent node and affects no other
//! reference.

mod deletions;
mod isolated;
mod links;
mod lists;
mod namespaces;
mod node;
mod observed;
mod orphaned;
mod references;
mod served_kinds;
mod state;
mod uids;

use std::{collections::HashMap, ops::Range};

use hashbrown::DefaultHashBuilder;

use self::{
    isolated::{Isolated, NamespacedName},
    links::Links,
    namespaces::Namespaces,
    orphaned::Orphaned,
};
use super::{
    kinds::{KindId, Kinds, Resource},
    uid::{InternedUids, Uid, is_damaged},
};

pub use self::{
    links::Link,
    namespaces::NamespaceId,
    node::{Node, NodeId},
    observed::{Coordinates, Observed, Reference},
    state::NodeState,
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

/// Result of [`Graph::apply_get`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetResult {
    /// The answer is applied.
    Applied,
    /// The answer may be older than the object's deletion. It is ignored.
    Retry,
}

/// Effect of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It is applied.
    Applied,
    /// A later state was known already.
    Stale,
}

/// Marks of a kind's last list.
#[derive(Debug, Clone, Copy, Default)]
struct ListMark {
    /// The mark of objects seen in the current list. It alternates from list to list, so starting one changes no
    /// object. Between lists all observed objects have it.
    mark: bool,
    /// A list has started and is not complete.
    is_open: bool,
}

/// The graph of all observed objects. Each change adds the work items that it causes; `take_items` returns them.
#[derive(Debug, Default)]
pub struct Graph {
    /// All known kinds.
    pub kinds: Kinds,
    interned_uids: InternedUids,
    namespaces: Namespaces,
    links: Links,
    isolated: Vec<Isolated>,
    list_marks: Vec<ListMark>,
    /// Objects that an unfinished list shows in an earlier state than the graph has.
    older_states: Vec<(KindId, Observed)>,
    orphaned: Orphaned,
    /// Kinds with objects whose UID, namespace or name cannot be represented.
    unrepresentable: Vec<KindId>,
    items: Vec<WorkItem>,
    /// Owners in foreground deletion, with the number of dependents that were created since.
    created_since_deletion: HashMap<(NodeId, Uid), u32>,
    hasher: DefaultHashBuilder,
}

// === impl Graph ===

impl Graph {
    /// Takes the collected work items.
    pub fn take_items(&mut self) -> Vec<WorkItem> {
        std::mem::take(&mut self.items)
    }

    /// Takes the kinds with objects whose UID, namespace or name cannot be represented.
    pub fn take_unrepresentable(&mut self) -> Vec<KindId> {
        std::mem::take(&mut self.unrepresentable)
    }

    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        self.links.node(id)
    }

    /// All nodes, in index order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.links.all()
    }

    /// The nodes at these indexes, out of [`Graph::slots`].
    pub fn nodes_at(&self, indexes: Range<usize>) -> impl Iterator<Item = NodeId> {
        self.links.in_range(indexes)
    }

    /// Number of indexes in use or free.
    pub fn slots(&self) -> usize {
        self.links.slots()
    }

    /// Number of nodes, and of isolated objects.
    pub fn len(&self) -> (usize, usize) {
        (self.links.len(), self.isolated.iter().map(Isolated::len).sum())
    }

    /// Number of existing objects of each kind, by [`KindId::index`]. Its cost does not depend on the number of
    /// objects.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = self.isolated_counts();
        for (count, observed) in counts.iter_mut().zip(self.links.observed()) {
            *count += observed;
        }
        counts
    }

    /// Number of isolated objects of each kind.
    pub(super) fn isolated_counts(&self) -> Vec<u64> {
        self.isolated.iter().map(|isolated| isolated.len() as u64).collect()
    }

    /// The node's owners.
    pub fn owners(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.owners(id)
    }

    /// The node's dependents.
    pub fn dependents(&self, id: NodeId) -> impl Iterator<Item = Link> {
        self.links.dependents(id)
    }

    /// Whether a node has this index. A work item may be older than its node.
    pub fn contains(&self, id: NodeId) -> bool {
        !self.links.node(id).state.is_free()
    }

    /// Whether this index still has the node with this UID and coordinates. An index is reused, also for the same UID
    /// at other coordinates.
    pub fn matches(&self, id: NodeId, uid: Uid, at: Coordinates<'_>) -> bool {
        let node = self.links.node(id);
        self.contains(id) && node.uid == uid && node.coordinates() == at
    }

    /// Whether dependents block its foreground deletion. A reference to itself does not.
    pub fn is_blocked(&self, id: NodeId) -> bool {
        let is_self_reference = |link: Link| link.node == id && link.blocking;
        match self.links.node(id).blocking {
            0 => false,
            1 => !self.links.owners(id).any(is_self_reference),
            _ => true,
        }
    }

    /// Whether it has dependents other than itself.
    pub fn has_dependents(&self, id: NodeId) -> bool {
        match self.links.node(id).dependents {
            0 => false,
            1 => !self.links.owners(id).any(|link| link.node == id),
            _ => true,
        }
    }

    /// Whether an object with its UID and kind exists at other coordinates: the reference has the wrong name or
    /// namespace. Only the first nodes with that UID are checked.
    pub fn exists_elsewhere(&self, id: NodeId) -> bool {
        let Node { uid, kind, .. } = *self.links.node(id);
        let exists_at_other_coordinates = |other: NodeId| {
            let node = self.links.node(other);
            other != id && node.kind == kind && node.state.exists()
        };
        let isolated = self.isolated.get(kind.index());
        isolated.is_some_and(|isolated| isolated.has(&self.hasher, uid))
            || self
                .links
                .same_uid(uid)
                .take(MAX_SAME_UID)
                .any(exists_at_other_coordinates)
    }

    /// Whether the API server can be asked for it: its kind is served and its name is a valid path segment. The API
    /// server does not validate names in owner references. A name with a slash would reach another resource, or a
    /// proxy.
    pub fn can_be_resolved(&self, id: NodeId) -> bool {
        let node = self.links.node(id);
        let is_length_allowed = node.name.len() <= MAX_NAME_LENGTH || node.state.contains(NodeState::OBSERVED);
        self.kinds.resource(node.kind).is_some() && is_path_segment(&node.name) && is_length_allowed
    }

    /// Whether it keeps its dependents because nothing can resolve the reference to it.
    pub fn is_unresolved(&self, id: NodeId) -> bool {
        self.is_unknown(id) && self.links.node(id).dependents > 0 && !self.can_be_resolved(id)
    }

    /// Whether it may exist.
    pub fn is_unknown(&self, id: NodeId) -> bool {
        self.links.node(id).state.is_unknown()
    }

    /// Returns the next dependent and advances. After the last one follows the first.
    pub fn next_dependent(&mut self, id: NodeId) -> Option<NodeId> {
        self.links.next_dependent(id)
    }

    /// Returns the next dependent and does not advance.
    pub fn peek_dependent(&self, id: NodeId) -> Option<NodeId> {
        self.links.dependents(id).next().map(|link| link.node)
    }

    /// All nodes with this UID.
    pub fn with_uid(&self, uid: &str) -> Vec<NodeId> {
        match self.interned_uids.known(uid) {
            Some(uid) => self.links.with_uid(uid),
            None => Vec::new(),
        }
    }

    /// The kind of the isolated object with this UID. Isolated objects have no node.
    pub fn isolated_kind(&self, uid: &str) -> Option<KindId> {
        let uid = self.interned_uids.known(uid)?;
        let has = |(id, _): &(KindId, &Resource)| {
            let isolated = self.isolated.get(id.index());
            isolated.is_some_and(|isolated| isolated.has(&self.hasher, uid))
        };
        self.kinds.served().find(has).map(|(id, _)| id)
    }

    /// The UID of a node as text.
    pub fn uid(&self, id: NodeId) -> String {
        self.interned_uids.text(self.node(id).uid)
    }

    /// Number of known namespaces.
    #[cfg(test)]
    pub fn namespace_count(&self) -> usize {
        self.namespaces.len()
    }

    /// Name of a namespace.
    pub fn namespace(&self, id: NamespaceId) -> &str {
        self.namespaces.name(id)
    }

    /// Applies an object from a list or a watch event.
    pub fn observe(&mut self, kind: KindId, object: &Observed) {
        let ListMark { mark, is_open } = self.list_mark(kind);
        if self.apply(kind, object, mark) == Change::Stale && is_open {
            self.older_states.push((kind, object.clone()));
        }
    }

    /// Applies the answer to a GET. `progress` is the resourceVersion up to which the kind's monitor has reported
    /// everything: that of its last complete list, or of a later event or bookmark; 0 before the first list.
    ///
    /// The answer may be older than `progress`. An object that is not known to exist at that point is deleted already,
    /// and no second event would report that. So the kind needs a monitor, and the caller checks [`Graph::matches`]
    /// first.
    pub fn apply_get(&mut self, id: NodeId, object: &Observed, progress: u64) -> GetResult {
        let Node { kind, state, .. } = *self.links.node(id);
        if !state.exists() && object.version_number() <= progress {
            return GetResult::Retry;
        }
        // A list in progress that is younger has to show the object too.
        let ListMark { mark, is_open } = self.list_mark(kind);
        let mark = if state.contains(NodeState::OBSERVED) {
            state.contains(NodeState::LIST_MARK)
        } else {
            mark != is_open
        };
        self.apply(kind, object, mark);
        if state.exists() && self.links.node(id).dependents > 0 {
            self.items.push(WorkItem::Dependents(id));
        }
        GetResult::Applied
    }

    fn apply(&mut self, kind: KindId, object: &Observed, mark: bool) -> Change {
        let is_readable = !is_damaged(&object.namespace) && !is_damaged(&object.name);
        let Some(uid) = self.interned_uids.intern_observed(&object.uid).filter(|_| is_readable) else {
            // No request can name it, and no reference leads to it.
            self.unrepresentable.push(kind);
            return Change::Applied;
        };
        let name = &*object.name;
        let can_be_isolated = object.owners.is_empty() && !object.deleting && !object.orphan && !object.foreground;
        let known = self.namespaces.known(&object.namespace).and_then(|namespace| {
            let at = Coordinates { kind, namespace, name };
            self.links.find(uid, at)
        });
        if known.is_none() && can_be_isolated {
            let at = NamespacedName {
                namespace: &object.namespace,
                name,
            };
            if self.isolated[kind.index()].insert(&self.hasher, uid, at, mark) {
                self.recheck_same_uid(uid, None);
            }
            return Change::Applied;
        }
        let was_isolated = self.isolated[kind.index()].remove(&self.hasher, uid);
        let version = object.version_number();
        let id = known.unwrap_or_else(|| {
            let namespace = self.namespaces.id(&object.namespace);
            self.add(uid, Coordinates { kind, namespace, name }, self.initial_state(uid))
        });
        let node = self.links.node_mut(id);
        let before = node.state;
        let state = &mut node.state;
        // Even an old state proves that it exists.
        state.set(NodeState::UNCONFIRMED, false);
        state.set(NodeState::LIST_MARK, mark);
        if !before.exists() && node.dependents > 0 {
            // Its dependents were not decided on while it was unknown.
            self.items.push(WorkItem::Dependents(id));
        }
        if before.contains(NodeState::OBSERVED) && version < node.version {
            return Change::Stale;
        }
        node.version = version;
        self.links.set_observed(id, true);
        let state = &mut self.links.node_mut(id).state;
        state.set(NodeState::ABSENT, false);
        state.set(NodeState::DELETING, object.deleting);
        state.set(NodeState::ORPHAN, object.orphan);
        state.set(NodeState::FOREGROUND, object.foreground);
        if before.contains(NodeState::ORPHANED) && !state.in_orphan_deletion() && self.orphaned.remove(uid, version) {
            state.set(NodeState::ORPHANED, false);
        }
        let now = *state;
        if !before.contains(NodeState::OBSERVED) && !was_isolated {
            self.recheck_same_uid(uid, Some(id));
        }
        self.update_owners(id, object);
        if known.is_none() && !self.list_mark(kind).is_open {
            self.count_created(id);
        }
        if (now.in_foreground_deletion() && !before.in_foreground_deletion())
            || (now.in_orphan_deletion() && !before.in_orphan_deletion())
        {
            self.items.push(WorkItem::Dependents(id));
        }
        if now.in_foreground_deletion() || now.in_orphan_deletion() {
            self.items.push(WorkItem::Decide(id));
        }
        self.compact(id);
        Change::Applied
    }

    /// Counts a new object for its owners in foreground deletion.
    fn count_created(&mut self, id: NodeId) {
        for link in self.links.owners(id) {
            let owner = self.links.node(link.node);
            if owner.state.exists() && owner.state.in_foreground_deletion() && link.node != id {
                if self.created_since_deletion.len() >= MAX_COUNTED {
                    self.created_since_deletion.clear();
                }
                *self.created_since_deletion.entry((link.node, owner.uid)).or_default() += 1;
            }
        }
    }

    /// Number of dependents that were created since the foreground deletion of this object was seen.
    pub fn created_since_deletion(&self, id: NodeId) -> u32 {
        let node = self.links.node(id);
        let counted = self.created_since_deletion.get(&(id, node.uid));
        counted
            .copied()
            .filter(|_| node.state.in_foreground_deletion())
            .unwrap_or_default()
    }

    /// Adds a node.
    fn add(&mut self, uid: Uid, at: Coordinates<'_>, state: NodeState) -> NodeId {
        self.namespaces.enter(at.namespace);
        self.links.add(uid, at, state)
    }

    /// Removes a node without owners and dependents.
    fn remove(&mut self, id: NodeId) {
        self.namespaces.leave(self.links.node(id).namespace);
        self.links.remove(id);
    }

    /// Enqueues a GET for the unknown nodes with this UID: it exists at other coordinates.
    fn recheck_same_uid(&mut self, uid: Uid, but: Option<NodeId>) {
        let is_unknown = |id: &NodeId| Some(*id) != but && self.is_unknown(*id);
        let others: Vec<NodeId> = self.links.with_uid(uid).into_iter().filter(is_unknown).collect();
        self.items.extend(others.into_iter().map(WorkItem::GetOwner));
    }
}

/// Maximum number of owners whose new dependents are counted.
const MAX_COUNTED: usize = 1024;

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

    /// Its resourceVersion as a number; 0 if it is none.
    fn version_number(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }
}
