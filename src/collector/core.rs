//! The collector's state and its decisions. It is synchronous: it returns the next request and never sends one.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    census::Tally,
    counts::Counts,
    decide::{MAX_GETS, Policy, Step, decide},
    discovery::path_of,
    graph::{Graph, NodeId, NodeState, Observed, WorkItem},
    kinds::{KindId, Scope},
    names::{escape_control_chars, object_label, truncate},
    queue::Queue,
    refusals::Refusals,
    request::{Owner, Request, Target},
    sync_state::{FinalizerHold, GcFinalizer, SyncState},
    uid::Uid,
    wrong_namespace::{DelayedDeletions, WrongNamespaceOwners},
};
use crate::api::escape;

mod answers;

pub use answers::GetEffect;

/// Retry interval of a finalizer removal while a kind is not synced.
const RETRY_NOT_SYNCED: Duration = Duration::from_secs(2);
/// Retry interval of a finalizer removal that has to be confirmed; after [`DISCOVERY_RETRIES`] attempts, [`RETRY_NOT_SYNCED`].
const RETRY_DISCOVERY: Duration = Duration::from_millis(100);
const DISCOVERY_RETRIES: u32 = 50;
/// Delay before an object is decided on again, if a request about its owner has to finish first.
const RETRY_BUSY_OWNER: Duration = Duration::from_millis(500);
/// After this many conflicts in a row that leave the decision unchanged, resourceVersion is no longer a precondition.
const CONFLICTS: u32 = 3;
/// Maximum number of owners kept as confirmed.
const MAX_ENTRIES: usize = 4096;
/// Maximum number of decisions in a row before the lock is released.
const MAX_DECISIONS: usize = 512;

/// The collector's state.
#[derive(Debug, Default)]
pub struct Core {
    /// Objects and their owner references.
    pub graph: Graph,
    /// The work queue.
    pub queue: Queue,
    /// Which kinds are synced.
    pub sync_state: SyncState,
    /// Counters.
    pub counts: Counts,
    /// Requests that the API server refuses.
    pub refusals: Refusals,
    /// Result of the last count of waiting deletions.
    pub tally: Tally,
    /// Current limit of writes in flight; `None` before the first answer.
    pub max_in_flight: Option<usize>,
    /// Requests get no answer, and no watch has had one since.
    pub has_outage: bool,
    /// Owners whose deletion finalizer a GET has confirmed, with the resourceVersion of that answer.
    confirmed: HashMap<NodeId, u64>,
    /// Finalizer removals that wait for synced kinds: the object's UID, and since when.
    removable_since: HashMap<NodeId, (Uid, Instant)>,
    /// Objects whose last writes met conflicts that leave the decision unchanged: the number of conflicts, and the last
    /// state.
    contested: HashMap<NodeId, (u32, Observed)>,
    /// Owners in foreground deletion, each with its number of DELETE requests in flight for dependents.
    deletes_in_flight: HashMap<NodeId, u32>,
    /// Kinds that reject strategic merge patches.
    pub no_strategic_patch: HashSet<KindId>,
    /// Owner references to another namespace.
    pub wrong_namespace: WrongNamespaceOwners,
    /// Foreground deletions delayed by an aggregated API that is down, or by objects that cannot be read.
    pub delayed_deletions: DelayedDeletions,
}

// === impl Core ===

impl Core {
    /// Moves the graph's items to the work queue; `true` if there are any.
    pub fn enqueue_items(&mut self) -> bool {
        self.sync_state
            .unrepresentable
            .extend(self.graph.take_unrepresentable());
        let items = self.graph.take_items();
        let now = Instant::now();
        for &item in &items {
            match item {
                WorkItem::Dependents(id) if self.graph.contains(id) => {
                    self.log_owner(id);
                    if let Some((_, kind)) = self.peek_dependent(id) {
                        self.queue.add_batch(id, kind, self.graph.node(id).dependents);
                    }
                }
                WorkItem::Dependents(_) => {}
                WorkItem::Decide(id) | WorkItem::GetOwner(id) => self.enqueue(item, id, now),
            }
        }
        !items.is_empty()
    }

    fn enqueue(&mut self, item: WorkItem, node: NodeId, now: Instant) {
        self.queue.add(item, self.graph.node(node).kind, now);
    }

    /// Logs why the dependents of this owner are decided on.
    fn log_owner(&self, owner: NodeId) {
        let node = self.graph.node(owner);
        let (state, dependents, uid) = (node.state, node.dependents, self.graph.uid(owner));
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
            let max_in_flight = self.max_in_flight.unwrap_or(1);
            let Some(item) = self.queue.pop(now, max_in_flight.div_ceil(2)) else {
                return NextRequest::NoneReady;
            };
            let request = match item {
                WorkItem::Dependents(owner) => self.next_dependent(owner, now),
                WorkItem::GetOwner(id) => self.get_owner(id, now),
                WorkItem::Decide(id) => self.decide(id, now),
            };
            self.enqueue_items();
            if let Some(request) = request {
                self.queue.request_started(request.lane(), now);
                return NextRequest::Send(Box::new(request));
            }
            if !matches!(item, WorkItem::Dependents(_)) {
                self.queue.done(item, now);
            }
        }
        NextRequest::Yield
    }

    fn next_dependent(&mut self, owner: NodeId, now: Instant) -> Option<Request> {
        if !self.graph.contains(owner) {
            self.queue.stop_batch(owner);
            return None;
        }
        if self.is_unconfirmed(owner) {
            // The answer to the GET enqueues them again.
            self.queue.stop_batch(owner);
            self.enqueue(WorkItem::GetOwner(owner), owner, now);
            return None;
        }
        let Some((dependent, kind)) = self.peek_dependent(owner) else {
            self.queue.stop_batch(owner);
            return None;
        };
        let is_paused = self.queue.is_paused(kind, now);
        if is_paused && self.queue.has_many() {
            // Delays the owner's whole batch, not each dependent.
            self.queue.continue_batch(owner, kind);
            return None;
        }
        self.graph.next_dependent(owner);
        if self.queue.count_dependent(owner)
            && let Some((_, kind)) = self.peek_dependent(owner)
        {
            self.queue.continue_batch(owner, kind);
        }
        let item = WorkItem::Decide(dependent);
        if is_paused {
            self.queue.add(item, kind, now);
            return None;
        }
        if !self.queue.start(item, kind, now) {
            return None;
        }
        let request = self.decide(dependent, now);
        if request.is_none() {
            self.queue.done(item, now);
        }
        request
    }

    /// An owner's next dependent and its kind. It stays the next one.
    fn peek_dependent(&self, owner: NodeId) -> Option<(NodeId, KindId)> {
        let next = self.graph.peek_dependent(owner)?;
        Some((next, self.graph.node(next).kind))
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
        if !matches!(step, Step::RemoveForegroundFinalizer | Step::RemoveOrphanFinalizer) {
            self.removable_since.remove(&id);
        }
        match step {
            Step::Nothing | Step::Wait | Step::Unresolved(_) => None,
            Step::NamespacedOwner(owners) => {
                self.wrong_namespace.report(&self.graph, id, &owners);
                None
            }
            Step::GetOwners(owners) => {
                if owners.len() == MAX_GETS {
                    // Each answer would have all these owners decided on again.
                    self.queue.add_after(item, RETRY_BUSY_OWNER, now);
                }
                self.enqueue_gets(owners, now);
                None
            }
            Step::DropReferences(owners) => {
                if self.needs_confirmation(&owners, now) {
                    return None;
                }
                self.wrong_namespace.report(&self.graph, id, &owners);
                let owners = owners.into_iter().map(|owner| self.owner_reference(owner)).collect();
                let ambiguous = self.has_ambiguous_uids(id);
                let target = self.target(id)?;
                let by_uid = !ambiguous && !self.no_strategic_patch.contains(&target.kind);
                Some(Request::DropReferences { target, owners, by_uid })
            }
            Step::Delete {
                policy,
                clear_blocking,
                waiting_owners,
            } => self.delete(id, policy, clear_blocking, waiting_owners, now),
            // Its other finalizers may keep the object as an owner while these DELETE requests are in flight.
            Step::RemoveForegroundFinalizer if self.deletes_in_flight.contains_key(&id) => None,
            Step::RemoveForegroundFinalizer | Step::RemoveOrphanFinalizer => {
                let removable_since = self.removable_since(id, now);
                match self
                    .sync_state
                    .finalizer_hold(finalizer_of(&step), Some(removable_since), now)
                {
                    Some(FinalizerHold::Unconfirmed { why }) => {
                        self.sync_state.needs_discovery = true;
                        let pause = if self.queue.num_requeues(item) < DISCOVERY_RETRIES {
                            RETRY_DISCOVERY
                        } else {
                            RETRY_NOT_SYNCED
                        };
                        self.queue.add_rate_limited(item, &why, Some(pause), now);
                        return None;
                    }
                    Some(FinalizerHold::NotSynced { why, is_limited }) => {
                        if is_limited {
                            self.delayed_deletions.report(&self.graph, id, &why);
                        }
                        self.queue.add_rate_limited(item, &why, Some(RETRY_NOT_SYNCED), now);
                        return None;
                    }
                    None => {}
                }
                let finalizer = if step == Step::RemoveOrphanFinalizer {
                    "orphan"
                } else {
                    "foregroundDeletion"
                };
                let target = self.target(id)?;
                let unsynced = self.sync_state.unsynced_reason(now);
                Some(Request::RemoveFinalizer {
                    target,
                    finalizer,
                    unsynced,
                })
            }
        }
    }

    fn delete(
        &mut self,
        id: NodeId,
        policy: Policy,
        clear_blocking: bool,
        waiting_owners: Vec<NodeId>,
        now: Instant,
    ) -> Option<Request> {
        if self.needs_confirmation(&waiting_owners, now) {
            return None;
        }
        let owners: Vec<NodeId> = self.graph.owners(id).map(|link| link.node).collect();
        self.wrong_namespace.report(&self.graph, id, &owners);
        let target = self.target(id)?;
        if waiting_owners
            .iter()
            .any(|&owner| self.queue.is_processing(WorkItem::Decide(owner)))
        {
            let item = WorkItem::Decide(id);
            self.queue.add_rate_limited(
                item,
                "an owner's finalizer is being removed",
                Some(RETRY_BUSY_OWNER),
                now,
            );
            return None;
        }
        for &owner in &waiting_owners {
            *self.deletes_in_flight.entry(owner).or_default() += 1;
        }
        Some(Request::Delete {
            target,
            policy,
            clear_blocking,
            waiting_owners,
        })
    }

    /// When everything but the sync of all kinds first allowed the removal of this object's finalizer.
    fn removable_since(&mut self, id: NodeId, now: Instant) -> Instant {
        let uid = self.graph.node(id).uid;
        if let Some(&(known, since)) = self.removable_since.get(&id)
            && known == uid
        {
            return since;
        }
        if self.removable_since.len() >= MAX_ENTRIES {
            // The others wait for one more discovery.
            self.removable_since.clear();
        }
        self.removable_since.insert(id, (uid, now));
        now
    }

    /// Why the finalizer that `step` removes has to stay for now; `None` if it can be removed.
    pub fn finalizer_hold(&self, id: NodeId, step: &Step, now: Instant) -> Option<FinalizerHold> {
        let removable_since = self.removable_since.get(&id).map(|(_, since)| *since);
        self.sync_state.finalizer_hold(finalizer_of(step), removable_since, now)
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

    /// Whether two of its references name the same UID, so that a strategic merge patch cannot tell them apart.
    fn has_ambiguous_uids(&self, id: NodeId) -> bool {
        let mut uids: Vec<_> = self
            .graph
            .owners(id)
            .map(|link| self.graph.node(link.node).uid)
            .collect();
        let all = uids.len();
        uids.sort_unstable();
        uids.dedup();
        uids.len() < all
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
        Some(Request::GetOwner(self.target(id)?))
    }

    /// The request target of a node; `None` if its kind is not served or its scope does not fit.
    pub fn target(&self, id: NodeId) -> Option<Target> {
        if !self.graph.can_be_resolved(id) {
            return None;
        }
        let node = self.graph.node(id);
        let resource = self.graph.kinds.resource(node.kind)?;
        let namespace = self.graph.namespace(node.namespace);
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
            namespace: node.namespace,
            namespace_name: namespace.to_owned(),
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

    fn owner_reference(&self, id: NodeId) -> Owner {
        let node = self.graph.node(id);
        Owner {
            group: self.graph.kinds.group(node.kind).to_owned(),
            kind: self.graph.kinds.kind(node.kind).to_owned(),
            name: node.name.to_string(),
            uid: self.graph.uid(id),
        }
    }
}

/// The finalizer that this step removes.
fn finalizer_of(step: &Step) -> GcFinalizer {
    match step {
        Step::RemoveForegroundFinalizer => GcFinalizer::Foreground,
        _ => GcFinalizer::Orphan,
    }
}

/// Result of [`Core::next_request`].
#[derive(Debug)]
pub enum NextRequest {
    /// Send it.
    Send(Box<Request>),
    /// No item is ready.
    NoneReady,
    /// More items may be ready; other tasks get the lock first.
    Yield,
}
