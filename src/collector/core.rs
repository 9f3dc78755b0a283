//! The collector's state and its decisions. It is synchronous: it returns the next request and never sends one.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    census::Tally,
    counts::Counts,
    decide::{AT_ONCE, Policy, Step, decide},
    discovery::path_of,
    graph::{Answer, Graph, Hint, NodeId, Observed, State},
    kinds::{KindId, Scope},
    limit::Pace,
    misplaced::{Delayed, Misplaced},
    names::{called, clipped, visible},
    queue::Queue,
    refusals::Refusals,
    sight::{Ending, Hold, Sight, UNDISCOVERED},
    uid::Uid,
    work::{Owner, Target, Work},
};
use crate::{api::escape, collector::Unsynced};

/// Retry interval of a finalizer removal while a kind is not synced.
const HELD: Duration = Duration::from_secs(2);
/// Retry interval of a finalizer removal that needs a newer discovery; after [`TRIES`] attempts, [`HELD`].
const DISCOVERY: Duration = Duration::from_millis(100);
const TRIES: u32 = 50;
/// Delay before an object is decided on again, if a request about its owner has to finish first.
const AGAIN: Duration = Duration::from_millis(500);
/// After this many conflicts in a row that leave the decision unchanged, resourceVersion is no longer a precondition.
const CONFLICTS: u32 = 3;
/// Maximum number of owners kept as confirmed.
const REMEMBERED: usize = 4096;
/// Maximum number of decisions in a row before the lock is released.
const IN_A_ROW: usize = 512;

/// The collector's state.
#[derive(Debug)]
pub struct Core {
    /// Objects and their owner references.
    pub graph: Graph,
    /// The work queue.
    pub queue: Queue,
    /// Which kinds are synced.
    pub sight: Sight,
    /// Counters.
    pub counts: Counts,
    /// Requests that the API server refuses.
    pub refusals: Refusals,
    /// Result of the last count of waiting deletions.
    pub tally: Tally,
    /// Current limit of writes in flight; `None` before the first answer.
    pub pace: Option<Pace>,
    /// Owners whose deletion finalizer a GET has confirmed, with the resourceVersion of that answer.
    confirmed: HashMap<NodeId, u64>,
    /// Finalizer removals that wait for synced kinds: the object's UID, and since when.
    ready: HashMap<NodeId, (Uid, Instant)>,
    /// Objects whose last writes met conflicts that leave the decision unchanged: the number of conflicts, and the last
    /// state.
    contested: HashMap<NodeId, (u32, Observed)>,
    /// Owners in foreground deletion, each with its number of DELETE requests in flight for dependents.
    leaning: HashMap<NodeId, u32>,
    /// Kinds that reject strategic merge patches.
    pub plain: HashSet<KindId>,
    /// Owner references to another namespace.
    pub misplaced: Misplaced,
    /// Foreground deletions delayed by an aggregated API that is down.
    pub delayed: Delayed,
}

// === impl Core ===

impl Core {
    /// A collector without any objects.
    pub fn new(unsynced: Unsynced) -> Self {
        Self {
            graph: Graph::default(),
            queue: Queue::default(),
            sight: Sight::new(unsynced),
            counts: Counts::default(),
            refusals: Refusals::default(),
            tally: Tally::default(),
            pace: None,
            confirmed: HashMap::new(),
            ready: HashMap::new(),
            contested: HashMap::new(),
            leaning: HashMap::new(),
            plain: HashSet::new(),
            misplaced: Misplaced::default(),
            delayed: Delayed::default(),
        }
    }

    /// Moves the graph's items to the work queue; `true` if there are any.
    pub fn note(&mut self) -> bool {
        self.sight.unkept.extend(self.graph.unkept());
        let hints = self.graph.hints();
        let now = Instant::now();
        for &hint in &hints {
            match hint {
                Hint::Dependents(id) if self.graph.lives(id) => {
                    self.tell(id);
                    if let Some((_, kind)) = self.peek_dependent(id) {
                        self.queue.push_dependents(id, kind, self.graph.node(id).dependents);
                    }
                }
                Hint::Dependents(_) => {}
                Hint::Decide(id) | Hint::Ask(id) => self.push(hint, id, now),
            }
        }
        !hints.is_empty()
    }

    fn push(&mut self, hint: Hint, of: NodeId, now: Instant) {
        self.queue.push(hint, self.graph.node(of).kind, now);
    }

    /// Logs why the dependents of this owner are decided on.
    fn tell(&self, owner: NodeId) {
        let node = self.graph.node(owner);
        let (state, dependents, uid) = (node.state, node.dependents, self.graph.uid(owner));
        let why = if state.has(State::ABSENT) {
            "the owner is absent"
        } else if state.waits() {
            "the owner is in foreground deletion"
        } else if state.releases() {
            "the owner orphans them"
        } else {
            return;
        };
        if dependents > 0 {
            tracing::info!(
                owner = visible(&called(&self.graph, owner)),
                uid = visible(&clipped(&uid)),
                dependents,
                why,
                "Deciding on the dependents of an owner"
            );
        }
    }

    /// The next request, if there is one. `false` says that more items may be ready now.
    pub fn next(&mut self, now: Instant) -> (Option<Work>, bool) {
        for _ in 0..IN_A_ROW {
            let at_once = self.pace.map_or(1, |pace| pace.at_once);
            let Some(hint) = self.queue.pop(now, at_once.div_ceil(2)) else {
                return (None, true);
            };
            let work = match hint {
                Hint::Dependents(owner) => self.next_dependent(owner, now),
                Hint::Ask(id) => self.ask(id),
                Hint::Decide(id) => self.decide(id, now),
            };
            self.note();
            if let Some(work) = work {
                self.queue.began(work.lane(), now);
                return (Some(work), true);
            }
            if !matches!(hint, Hint::Dependents(_)) {
                self.queue.done(hint, now);
            }
        }
        (None, false)
    }

    fn next_dependent(&mut self, owner: NodeId, now: Instant) -> Option<Work> {
        if !self.graph.lives(owner) {
            self.queue.stop(owner);
            return None;
        }
        if self.is_unconfirmed(owner) {
            // The answer to the GET enqueues them again.
            self.queue.stop(owner);
            self.push(Hint::Ask(owner), owner, now);
            return None;
        }
        let Some((dependent, kind)) = self.peek_dependent(owner) else {
            self.queue.stop(owner);
            return None;
        };
        let rests = self.queue.rests(kind, now);
        if rests && self.queue.is_long() {
            // Delays the owner's whole batch, not each dependent.
            self.queue.go_on(owner, kind);
            return None;
        }
        self.graph.next_dependent(owner);
        if self.queue.count_dependent(owner)
            && let Some((_, kind)) = self.peek_dependent(owner)
        {
            self.queue.go_on(owner, kind);
        }
        let hint = Hint::Decide(dependent);
        if rests {
            self.queue.push(hint, kind, now);
            return None;
        }
        if !self.queue.begin(hint, kind, now) {
            return None;
        }
        let work = self.decide(dependent, now);
        if work.is_none() {
            self.queue.done(hint, now);
        }
        work
    }

    /// An owner's next dependent and its kind. It stays the next one.
    fn peek_dependent(&self, owner: NodeId) -> Option<(NodeId, KindId)> {
        let next = self.graph.peek_dependent(owner)?;
        Some((next, self.graph.node(next).kind))
    }

    /// Whether the watch shows a deletion finalizer that no GET has confirmed at this resourceVersion.
    fn is_unconfirmed(&self, owner: NodeId) -> bool {
        let node = self.graph.node(owner);
        node.state.has(State::OBSERVED)
            && node.state.decides_on_dependents()
            && self.confirmed.get(&owner) != Some(&node.version)
    }

    fn decide(&mut self, id: NodeId, now: Instant) -> Option<Work> {
        if !self.graph.lives(id) {
            return None;
        }
        let step = decide(&self.graph, id);
        let hint = Hint::Decide(id);
        if !matches!(step, Step::FinishForeground | Step::FinishOrphan) {
            self.ready.remove(&id);
        }
        match step {
            Step::Nothing | Step::Wait | Step::Unserved(_) => None,
            Step::Impossible(owners) => {
                self.misplaced.note(&self.graph, id, &owners);
                None
            }
            Step::Ask(owners) => {
                if owners.len() == AT_ONCE {
                    // Each answer would have all these owners decided on again.
                    self.queue.put_off(hint, AGAIN, now);
                }
                self.ask_for(owners, now);
                None
            }
            Step::Release(owners) => {
                if self.asks_to_confirm(&owners, now) {
                    return None;
                }
                self.misplaced.note(&self.graph, id, &owners);
                let owners = owners.into_iter().map(|owner| self.owner(owner)).collect();
                let ambiguous = self.is_ambiguous(id);
                let target = self.target(id)?;
                let strategic = !ambiguous && !self.plain.contains(&target.kind);
                Some(Work::Release {
                    target,
                    owners,
                    strategic,
                })
            }
            Step::Delete {
                policy,
                unblock,
                because,
            } => self.delete(id, policy, unblock, because, now),
            // Its other finalizers may keep the object as an owner while these DELETE requests are in flight.
            Step::FinishForeground if self.leaning.contains_key(&id) => None,
            Step::FinishForeground | Step::FinishOrphan => {
                let ready = self.ready_since(id, now);
                match self.sight.holds_end(ending(&step), Some(ready), now) {
                    Some(Hold::Discovery) => {
                        self.sight.needs_discovery = true;
                        let pause = if self.queue.tries(hint) < TRIES {
                            DISCOVERY
                        } else {
                            HELD
                        };
                        self.queue.retry(hint, UNDISCOVERED, Some(pause), now);
                        return None;
                    }
                    Some(Hold::Unsynced { why, is_delay }) => {
                        if is_delay {
                            self.delayed.note(&self.graph, id, &why, self.sight.aggregated_hold);
                        }
                        self.queue.retry(hint, &why, Some(HELD), now);
                        return None;
                    }
                    None => {}
                }
                let finalizer = if step == Step::FinishOrphan {
                    "orphan"
                } else {
                    "foregroundDeletion"
                };
                let target = self.target(id)?;
                Some(Work::Finish { target, finalizer })
            }
        }
    }

    fn delete(
        &mut self,
        id: NodeId,
        policy: Policy,
        unblock: bool,
        because: Vec<NodeId>,
        now: Instant,
    ) -> Option<Work> {
        if self.asks_to_confirm(&because, now) {
            return None;
        }
        let owners: Vec<NodeId> = self.graph.owners(id).map(|link| link.node).collect();
        self.misplaced.note(&self.graph, id, &owners);
        let target = self.target(id)?;
        if because.iter().any(|&owner| self.queue.is_busy(Hint::Decide(owner))) {
            let hint = Hint::Decide(id);
            self.queue
                .retry(hint, "an owner's finalizer is being removed", Some(AGAIN), now);
            return None;
        }
        for &owner in &because {
            *self.leaning.entry(owner).or_default() += 1;
        }
        Some(Work::Delete {
            target,
            policy,
            unblock,
            because,
        })
    }

    /// Since when only synced kinds are missing for the removal of this object's finalizer.
    fn ready_since(&mut self, id: NodeId, now: Instant) -> Instant {
        let uid = self.graph.node(id).uid;
        if let Some(&(known, since)) = self.ready.get(&id)
            && known == uid
        {
            return since;
        }
        if self.ready.len() >= REMEMBERED {
            // The others wait for one more discovery.
            self.ready.clear();
        }
        self.ready.insert(id, (uid, now));
        now
    }

    /// Why the finalizer that `step` removes has to stay for now; `None` if it can be removed.
    pub fn holds_end(&self, id: NodeId, step: &Step, now: Instant) -> Option<Hold> {
        let ready = self.ready.get(&id).map(|(_, since)| *since);
        self.sight.holds_end(ending(step), ready, now)
    }

    /// Records that a finalizer of this object is removed.
    pub fn finished(&mut self, target: &Target, finalizer: &str, now: Instant) {
        self.ready.remove(&target.id);
        // The watch may still show the finalizer.
        self.confirmed.remove(&target.id);
        if let Some(why) = self.sight.unsynced_because(now) {
            self.counts.unseen += 1;
            tracing::warn!(
                object = visible(&called(&self.graph, target.id)),
                uid = visible(&clipped(&target.uid)),
                finalizer,
                why,
                "Finalizer removed while a kind is not synced"
            );
        }
    }

    /// Enqueues a GET for each of these owners that is not confirmed; `true` if there are any. The answers enqueue
    /// their dependents again.
    fn asks_to_confirm(&mut self, owners: &[NodeId], now: Instant) -> bool {
        let unconfirmed = owners.iter().filter(|&&owner| self.is_unconfirmed(owner));
        let unconfirmed: Vec<NodeId> = unconfirmed.copied().collect();
        let asks = !unconfirmed.is_empty();
        self.ask_for(unconfirmed, now);
        asks
    }

    fn ask_for(&mut self, owners: Vec<NodeId>, now: Instant) {
        for owner in owners {
            self.push(Hint::Ask(owner), owner, now);
        }
    }

    /// Whether two of its references name the same UID, so that a strategic merge patch cannot tell them apart.
    fn is_ambiguous(&self, id: NodeId) -> bool {
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

    fn ask(&mut self, id: NodeId) -> Option<Work> {
        if !self.graph.lives(id) || !(self.graph.is_in_question(id) || self.is_unconfirmed(id)) {
            return None;
        }
        // Owners of an unlisted kind are left to its first list. An unconfirmed owner needs a GET: a list may show an
        // old state.
        let watched = self.sight.watched.get(&self.graph.node(id).kind);
        if self.graph.is_in_question(id) && watched.is_some_and(|it| !it.synced && it.trouble.is_none()) {
            return None;
        }
        Some(Work::Ask(self.target(id)?))
    }

    /// The request target of a node; `None` if its kind is not served or its scope does not fit.
    pub fn target(&self, id: NodeId) -> Option<Target> {
        if !self.graph.can_be_asked_for(id) {
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
            space: namespace.to_owned(),
            path,
            group: group.to_owned(),
            plural: plural.clone(),
            name: node.name.to_string(),
            uid: self.graph.uid(id),
            key: node.uid,
            version: node.version,
            contested: self.contested(id),
        })
    }

    /// The object's state, if it had [`CONFLICTS`] conflicts in a row that leave the decision unchanged.
    fn contested(&self, id: NodeId) -> Option<Box<Observed>> {
        let (times, seen) = self.contested.get(&id)?;
        (*times >= CONFLICTS && seen.uid == self.graph.uid(id)).then(|| Box::new(seen.clone()))
    }

    /// Records that a write met a conflict; `object` is the current state.
    pub fn conflicted(&mut self, target: &Target, object: &Observed) {
        self.counts.conflicts += 1;
        if let Some((times, seen)) = self.contested.get_mut(&target.id)
            && seen.decides_like(object)
        {
            *times += 1;
            return;
        }
        if self.contested.len() >= REMEMBERED {
            self.contested.clear();
        }
        self.contested.insert(target.id, (1, object.clone()));
    }

    /// Records that a write succeeded, or that the object is absent.
    pub fn written(&mut self, target: &Target) {
        self.contested.remove(&target.id);
    }

    fn owner(&self, id: NodeId) -> Owner {
        let node = self.graph.node(id);
        Owner {
            group: self.graph.kinds.group(node.kind).to_owned(),
            kind: self.graph.kinds.kind(node.kind).to_owned(),
            name: node.name.to_string(),
            uid: self.graph.uid(id),
        }
    }

    /// Drops what was confirmed or found absent: the store may have been restored from a backup.
    pub fn doubt(&mut self) {
        self.confirmed.clear();
        self.graph.doubt();
    }

    /// Records that a DELETE has its answer that was sent because these owners are in foreground deletion.
    pub fn leans_no_more(&mut self, because: &[NodeId], now: Instant) {
        for &owner in because {
            let Some(left) = self.leaning.get_mut(&owner) else {
                continue;
            };
            *left -= 1;
            if *left == 0 {
                self.leaning.remove(&owner);
                self.push(Hint::Decide(owner), owner, now);
            }
        }
    }

    /// Applies the answer to a GET.
    pub fn answered(&mut self, target: &Target, object: &Observed) -> Shown {
        if !self.graph.is_it(target.id, target.key, target.at()) {
            return Shown::Settled;
        }
        if object.uid != target.uid {
            self.absent(target);
            return Shown::Settled;
        }
        let Some(progress) = self
            .sight
            .watched
            .get(&target.kind)
            .filter(|it| it.synced)
            .map(|it| it.progress)
        else {
            return Shown::Unwatched;
        };
        match self.graph.answered(target.id, object, progress) {
            Answer::AskAgain => Shown::Overtaken,
            Answer::Taken => {
                let node = self.graph.node(target.id);
                if node.state.decides_on_dependents() && object.version.parse() == Ok(node.version) {
                    let version = node.version;
                    if self.confirmed.len() >= REMEMBERED {
                        self.confirmed.clear();
                    }
                    self.confirmed.insert(target.id, version);
                }
                Shown::Settled
            }
        }
    }

    /// Records a completed deletion before its watch event arrives.
    pub fn deleted(&mut self, target: &Target) {
        self.graph.vanished(target.kind, &target.uid);
    }

    /// Records that a GET did not find the object.
    pub fn absent(&mut self, target: &Target) {
        if self.graph.is_it(target.id, target.key, target.at()) {
            self.confirmed.remove(&target.id);
            self.graph.absent(target.id);
        }
    }
}

/// The finalizer that this step removes.
fn ending(step: &Step) -> Ending {
    match step {
        Step::FinishForeground => Ending::Foreground,
        _ => Ending::Orphan,
    }
}

/// Effect of a GET answer on the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The graph is up to date.
    Settled,
    /// The watch has shown a later state. GET it again.
    Overtaken,
    /// The object exists, but no watch would report its deletion.
    Unwatched,
}
