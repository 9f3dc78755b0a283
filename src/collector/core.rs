//! The collector's state and its decisions. It is synchronous: it returns the next request and never sends one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    counts::Counts,
    decide::{Deletion, Finalizer, MAX_GETS, Step, decide},
    discovery::path_of,
    graph::{Graph, Link, Node, NodeId, NodeState, Observed, WorkItem},
    kinds::Scope,
    names::{escape_control_chars, object_label, truncate},
    object_events::ObjectEvents,
    outage::backoff,
    queue::Queue,
    request::{Action, Owner, Request, Target},
    sync_state::{FinalizerHold, SyncState},
    uid::Uid,
};
use crate::api::escape;

mod answers;

pub use answers::requested_pause;

/// Retry interval of a finalizer removal while a kind is not synced.
const RETRY_NOT_SYNCED: Duration = Duration::from_secs(2);
/// Backoff, first and maximum, of a finalizer removal that has to be confirmed.
const RETRY_DISCOVERY: (Duration, Duration) = (Duration::from_millis(100), RETRY_NOT_SYNCED);
/// Delay before an object is decided on again, if a request about its owner has to finish first.
const RETRY_BUSY_OWNER: Duration = Duration::from_millis(500);
/// After this many conflicts in a row that leave the decision unchanged, resourceVersion is no longer a precondition.
const CONFLICTS: u32 = 3;
/// Maximum number of entries of each table about single objects.
const MAX_ENTRIES: usize = 4096;
/// Maximum number of decisions in a row before the lock is released.
const MAX_DECISIONS: usize = 512;

#[derive(Debug, Default)]
pub struct Core {
    pub graph: Graph,
    pub queue: Queue,
    /// Which kinds are synced.
    pub sync_state: SyncState,
    pub counts: Counts,
    /// Owners whose deletion finalizer a GET has confirmed, with the resourceVersion of that answer.
    confirmed: HashMap<NodeId, u64>,
    /// Objects with the finalizer of a foreground or orphan deletion, and since when that is seen.
    deleting_since: HashMap<(NodeId, Uid), Instant>,
    /// Finalizer removals that wait for synced kinds: the object's UID, and since when.
    removable_since: HashMap<NodeId, (Uid, Instant)>,
    /// Objects whose last writes met conflicts that leave the decision unchanged: the number of conflicts, and the last
    /// state.
    contested: HashMap<NodeId, (u32, Observed)>,
    /// Owners in foreground deletion, each with its number of DELETE requests in flight for dependents.
    deletes_in_flight: HashMap<NodeId, u32>,
    /// Owner references to another namespace, and foreground deletions delayed by an aggregated API that is down or by objects that
    /// cannot be read.
    pub object_events: ObjectEvents,
}

// === impl Core ===

impl Core {
    /// Moves the graph's items to the work queue; `true` if there are any.
    pub fn enqueue_items(&mut self) -> bool {
        self.sync_state.unrepresentable.append(&mut self.graph.unrepresentable);
        let items = self.graph.take_items();
        let now = Instant::now();
        for &item in &items {
            match item {
                WorkItem::Dependents(id) if self.graph.contains(id) => {
                    self.log_owner(id);
                    for Link { node, .. } in self.graph.dependents(id) {
                        self.queue.add(WorkItem::Decide(node), self.graph.node(node).kind, now);
                    }
                }
                WorkItem::Dependents(_) => {}
                WorkItem::Decide(id) | WorkItem::GetOwner(id) => {
                    let Node { uid, state, .. } = *self.graph.node(id);
                    if state.exists() && state.has_deletion_finalizer() {
                        self.deleting_since.entry((id, uid)).or_insert(now);
                    }
                    self.enqueue(item, id, now);
                }
            }
        }
        !items.is_empty()
    }

    /// Objects in foreground or orphan deletion, and since when each is seen.
    pub fn waiting_deletions(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        let all = self.deleting_since.iter();
        let waiting = all.filter(|&(&(id, uid), _)| is_waiting_deletion(&self.graph, id, uid));
        waiting.map(|(&(id, _), &since)| (id, since))
    }

    /// Forgets when finished deletions began.
    pub fn forget_finished_deletions(&mut self) {
        let graph = &self.graph;
        self.deleting_since
            .retain(|&(id, uid), _| is_waiting_deletion(graph, id, uid));
    }

    fn enqueue(&mut self, item: WorkItem, node: NodeId, now: Instant) {
        self.queue.add(item, self.graph.node(node).kind, now);
    }

    /// Logs why the dependents of this owner are decided on.
    fn log_owner(&self, owner: NodeId) {
        let node = self.graph.node(owner);
        let (state, dependents, uid) = (node.state, node.num_dependents(), self.graph.uid(owner));
        let why = if state.contains(NodeState::ABSENT) {
            "the owner is absent"
        } else if state.in_foreground_deletion() {
            "the owner is in foreground deletion"
        } else if state.orphans_dependents() {
            "the owner orphans them"
        } else {
            return;
        };
        if dependents > 0 {
            tracing::info!(
                owner = escape_control_chars(&object_label(&self.graph, owner)),
                uid = escape_control_chars(&truncate(&uid)),
                dependents,
                why,
                "Deciding on the dependents of an owner"
            );
        }
    }

    /// The next request, if an item is ready that needs one.
    pub fn next_request(&mut self, now: Instant) -> NextRequest {
        for _ in 0..MAX_DECISIONS {
            let Some(item) = self.queue.pop(now) else {
                return NextRequest::NoneReady;
            };
            let request = match item {
                WorkItem::GetOwner(id) => self.get_owner(id, now),
                WorkItem::Decide(id) | WorkItem::Dependents(id) => self.decide(id, now),
            };
            self.enqueue_items();
            if let Some(request) = request {
                self.queue.outage.record_start();
                self.queue.ready.request_started(request.lane(), now);
                return NextRequest::Send(Box::new(request));
            }
            self.queue.done(item, now);
        }
        NextRequest::Yield
    }

    /// Whether the watch shows a deletion finalizer that no GET has confirmed at this resourceVersion.
    fn is_unconfirmed(&self, owner: NodeId) -> bool {
        let node = self.graph.node(owner);
        node.state.contains(NodeState::OBSERVED)
            && node.state.has_deletion_finalizer()
            && self.confirmed.get(&owner) != Some(&node.version)
    }

    fn decide(&mut self, id: NodeId, now: Instant) -> Option<Request> {
        if !self.graph.contains(id) {
            return None;
        }
        let step = decide(&self.graph, id);
        let item = WorkItem::Decide(id);
        if !matches!(step, Step::RemoveFinalizer(_)) {
            self.removable_since.remove(&id);
        }
        let action = match step {
            Step::Nothing | Step::Wait | Step::Unresolved(_) => return None,
            Step::NamespacedOwner(owners) => {
                self.object_events.report_owners(&self.graph, id, &owners);
                return None;
            }
            Step::GetOwners(owners) => {
                if owners.len() == MAX_GETS {
                    // Each answer would have all these owners decided on again.
                    self.queue.add_after(item, RETRY_BUSY_OWNER, now);
                }
                self.enqueue_gets(owners, now);
                return None;
            }
            Step::DropReferences(owners) => {
                if self.needs_confirmation(&owners, now) {
                    return None;
                }
                self.object_events.report_owners(&self.graph, id, &owners);
                let owners = owners.into_iter().map(|owner| {
                    let node = self.graph.node(owner);
                    Owner {
                        group: self.graph.kinds.group(node.kind).to_owned(),
                        kind: self.graph.kinds.kind(node.kind).to_owned(),
                        name: node.name.to_string(),
                        uid: self.graph.uid(owner),
                    }
                });
                Action::DropReferences(owners.collect())
            }
            Step::Delete(deletion) => self.delete(id, deletion, now)?,
            // Its other finalizers may keep the object as an owner while these DELETE requests are in flight.
            Step::RemoveFinalizer(Finalizer::Foreground) if self.deletes_in_flight.contains_key(&id) => return None,
            Step::RemoveFinalizer(finalizer) => self.remove_finalizer(id, finalizer, now)?,
        };
        let target = self.target(id)?;
        if let Action::Delete(Deletion { waiting_owners, .. }) = &action {
            for &owner in waiting_owners {
                *self.deletes_in_flight.entry(owner).or_default() += 1;
            }
        }
        Some(Request { target, action })
    }

    fn remove_finalizer(&mut self, id: NodeId, finalizer: Finalizer, now: Instant) -> Option<Action> {
        let item = WorkItem::Decide(id);
        let removable_since = self.removable_since(id, now);
        match self.sync_state.finalizer_hold(finalizer, Some(removable_since), now) {
            Some(FinalizerHold::Unconfirmed { why }) => {
                self.sync_state.needs_discovery = true;
                let pause = backoff(RETRY_DISCOVERY, self.queue.num_requeues(item));
                self.queue.add_rate_limited(item, &why, Some(pause), now);
                return None;
            }
            Some(FinalizerHold::NotSynced { why, is_limited }) => {
                if is_limited {
                    self.object_events.report_delayed_deletion(&self.graph, id, &why);
                }
                self.queue.add_rate_limited(item, &why, Some(RETRY_NOT_SYNCED), now);
                return None;
            }
            None => {}
        }
        Some(Action::RemoveFinalizer {
            finalizer,
            unsynced: self.sync_state.unsynced_reason(now),
        })
    }

    fn delete(&mut self, id: NodeId, deletion: Deletion, now: Instant) -> Option<Action> {
        if self.needs_confirmation(&deletion.waiting_owners, now) {
            return None;
        }
        let owners: Vec<NodeId> = self.graph.owners(id).map(|link| link.node).collect();
        self.object_events.report_owners(&self.graph, id, &owners);
        let is_busy = |&owner: &NodeId| self.queue.is_processing(WorkItem::Decide(owner));
        if deletion.waiting_owners.iter().any(is_busy) {
            let (item, why) = (WorkItem::Decide(id), "an owner's finalizer is being removed");
            self.queue.add_rate_limited(item, why, Some(RETRY_BUSY_OWNER), now);
            return None;
        }
        Some(Action::Delete(deletion))
    }

    /// When everything but the sync of all kinds first allowed the removal of this object's finalizer.
    fn removable_since(&mut self, id: NodeId, now: Instant) -> Instant {
        let uid = self.graph.node(id).uid;
        if let Some(&(known, since)) = self.removable_since.get(&id)
            && known == uid
        {
            return since;
        }
        // If others are removed for it, they wait for one more discovery.
        insert_limited(&mut self.removable_since, id, (uid, now));
        now
    }

    /// Why this finalizer, which could be removed otherwise, has to stay for now; `None` if it can be removed.
    pub fn finalizer_hold(&self, id: NodeId, finalizer: Finalizer, now: Instant) -> Option<FinalizerHold> {
        let removable_since = self.removable_since.get(&id).map(|(_, since)| *since);
        self.sync_state.finalizer_hold(finalizer, removable_since, now)
    }

    /// Enqueues a GET for each of these owners that is not confirmed; `true` if there are any. The answers enqueue
    /// their dependents again.
    fn needs_confirmation(&mut self, owners: &[NodeId], now: Instant) -> bool {
        let unconfirmed = owners.iter().filter(|&&owner| self.is_unconfirmed(owner));
        let unconfirmed: Vec<NodeId> = unconfirmed.copied().collect();
        let is_needed = !unconfirmed.is_empty();
        self.enqueue_gets(unconfirmed, now);
        is_needed
    }

    fn enqueue_gets(&mut self, owners: Vec<NodeId>, now: Instant) {
        for owner in owners {
            self.enqueue(WorkItem::GetOwner(owner), owner, now);
        }
    }

    fn get_owner(&mut self, id: NodeId, now: Instant) -> Option<Request> {
        if !self.graph.contains(id) || !(self.graph.is_unknown(id) || self.is_unconfirmed(id)) {
            return None;
        }
        // Owners of an unlisted kind are left to its first list. An unconfirmed owner needs a GET: a list may show an
        // old state.
        let watched = self.sync_state.watched.get(&self.graph.node(id).kind);
        if self.graph.is_unknown(id) && watched.is_some_and(|watched| !watched.synced && watched.failure(now).is_none())
        {
            return None;
        }
        let (target, action) = (self.target(id)?, Action::GetOwner);
        Some(Request { target, action })
    }

    /// The request target of a node; `None` if its kind is not served or its scope does not fit.
    pub fn target(&self, id: NodeId) -> Option<Target> {
        if !self.graph.can_be_resolved(id) {
            return None;
        }
        let node = self.graph.node(id);
        let resource = self.graph.kinds.resource(node.kind)?;
        let namespace = &*node.namespace;
        let group = self.graph.kinds.group(node.kind);
        let root = path_of(group, &resource.version);
        let (plural, name) = (&resource.plural, escape(&node.name));
        let path = match (resource.scope, namespace) {
            (Scope::Cluster, "") => format!("{root}/{plural}/{name}"),
            (Scope::Namespaced, namespace) if !namespace.is_empty() => {
                format!("{root}/namespaces/{}/{plural}/{name}", escape(namespace))
            }
            (Scope::Cluster | Scope::Namespaced, _) => return None,
        };
        Some(Target {
            id,
            kind: node.kind,
            namespace: Arc::clone(&node.namespace),
            path,
            group: group.to_owned(),
            plural: plural.clone(),
            name: node.name.to_string(),
            uid: self.graph.uid(id),
            node_uid: node.uid,
            version: node.version,
            contested: self.contested(id),
        })
    }

    /// The object's state, if it had [`CONFLICTS`] conflicts in a row that leave the decision unchanged.
    fn contested(&self, id: NodeId) -> Option<Box<Observed>> {
        let (times, seen) = self.contested.get(&id)?;
        (*times >= CONFLICTS && seen.uid == self.graph.uid(id)).then(|| Box::new(seen.clone()))
    }
}

fn is_waiting_deletion(graph: &Graph, id: NodeId, uid: Uid) -> bool {
    let node = graph.node(id);
    node.uid == uid && node.state.exists() && node.state.has_deletion_finalizer()
}

/// Adds an entry. If there are too many, the others are removed.
fn insert_limited<T>(entries: &mut HashMap<NodeId, T>, id: NodeId, entry: T) {
    if entries.len() >= MAX_ENTRIES {
        entries.clear();
    }
    entries.insert(id, entry);
}

#[derive(Debug)]
pub enum NextRequest {
    Send(Box<Request>),
    NoneReady,
    /// More items may be ready; other tasks get the lock first.
    Yield,
}
