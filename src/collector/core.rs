//! What the collector knows and has to do, and what is the next thing to do. Nothing here waits.

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

/// What rests on all kinds is looked at again this often while one of them cannot be seen.
const HELD: Duration = Duration::from_secs(2);
/// Interval at which the end of a deletion checks for a new discovery; after [`TRIES`] checks, [`HELD`].
const DISCOVERY: Duration = Duration::from_millis(100);
const TRIES: u32 = 50;
/// What has to wait for another request about its owner is decided on again after this.
const AGAIN: Duration = Duration::from_millis(500);
/// After this many conflicts in a row that change nothing a decision rests on, the version is no longer a precondition.
const CONFLICTS: u32 = 3;
/// Owners that are remembered as confirmed.
const REMEMBERED: usize = 4096;
/// Decisions in a row before others have their turn.
const IN_A_ROW: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub struct Core {
    /// What is known of objects.
    pub graph: Graph,
    /// What is to be looked at.
    pub queue: Queue,
    /// What can be seen.
    pub sight: Sight,
    /// What was done.
    pub counts: Counts,
    /// What the server refuses.
    pub refusals: Refusals,
    /// What hangs or is kept, as it was last counted.
    pub tally: Tally,
    /// How fast writes may go, once any was answered.
    pub pace: Option<Pace>,
    /// Owners of which a live answer has shown at this version that they wait for their dependents.
    confirmed: HashMap<NodeId, u64>,
    /// Deletions that wait only for all kinds to be seen: the UID, and since when.
    ready: HashMap<NodeId, (Uid, Instant)>,
    /// Objects whose writes met conflicts that change nothing a decision rests on: the number of conflicts, and the last state.
    contested: HashMap<NodeId, (u32, Observed)>,
    /// How many deletions are under way because these owners wait for their dependents.
    leaning: HashMap<NodeId, u32>,
    /// Kinds that refuse strategic merge patches.
    pub plain: HashSet<KindId>,
    /// References to owners of other namespaces.
    pub misplaced: Misplaced,
    /// Foreground deletions that wait for groups whose servers cannot be reached.
    pub delayed: Delayed,
}

// === impl Core ===

impl Core {
    /// Nothing is known.
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

    /// Takes the graph's hints over; `true` if there are any.
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

    /// Whoever looks for what was deleted, and why, begins with the owner.
    fn tell(&self, owner: NodeId) {
        let node = self.graph.node(owner);
        let (state, dependents, uid) = (node.state, node.dependents, self.graph.uid(owner));
        let why = if state.has(State::ABSENT) {
            "it is not there"
        } else if state.waits() {
            "it waits for them to go"
        } else if state.releases() {
            "it leaves them behind"
        } else {
            return;
        };
        if dependents > 0 {
            tracing::info!(
                owner = visible(&called(&self.graph, owner)),
                uid = visible(&clipped(&uid)),
                dependents,
                why,
                "Dependents of an owner are decided on"
            );
        }
    }

    /// The next thing that takes a request; `None` if there is nothing to do now. `false` beside it: there may be more.
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
            // The answer brings them back.
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
            // The whole rest of them waits, rather than each.
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

    /// The next dependent of an owner, which stays the next, and its kind.
    fn peek_dependent(&self, owner: NodeId) -> Option<(NodeId, KindId)> {
        let next = self.graph.peek_dependent(owner)?;
        Some((next, self.graph.node(next).kind))
    }

    /// The watch shows that it deletes or releases its dependents, and no GET has confirmed that for its version.
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
                    // Each answer would have all of them gone through again.
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
            // Without its finalizer it may be there still, for another one: an owner like others.
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
                .retry(hint, "an owner is losing its finalizer", Some(AGAIN), now);
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

    /// Since when the deletion of this object waits for nothing but all kinds to be seen.
    fn ready_since(&mut self, id: NodeId, now: Instant) -> Instant {
        let uid = self.graph.node(id).uid;
        if let Some(&(known, since)) = self.ready.get(&id)
            && known == uid
        {
            return since;
        }
        if self.ready.len() >= REMEMBERED {
            // They wait for one discovery more.
            self.ready.clear();
        }
        self.ready.insert(id, (uid, now));
        now
    }

    /// What the end of this deletion waits for, where `step` is to be its end.
    pub fn holds_end(&self, id: NodeId, step: &Step, now: Instant) -> Option<Hold> {
        let ready = self.ready.get(&id).map(|(_, since)| *since);
        self.sight.holds_end(ending(step), ready, now)
    }

    /// A finalizer of this object is taken off.
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
                "A deletion ends although not every kind can be seen"
            );
        }
    }

    /// Asks for those of these owners that are not confirmed; whether there are any. The answer brings their dependents back.
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

    /// Another of its references names the UID of one that goes out: they cannot be told apart by it.
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
        // Whoever is still being listed for the first time is not asked for one by one.
        // Whether one still waits that was seen already, the list does not tell as surely.
        let watched = self.sight.watched.get(&self.graph.node(id).kind);
        if self.graph.is_in_question(id) && watched.is_some_and(|it| !it.synced && it.trouble.is_none()) {
            return None;
        }
        Some(Work::Ask(self.target(id)?))
    }

    /// Where a request about a node has to go; `None` where its kind is not served, or not there.
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

    /// The object's state, if it had [`CONFLICTS`] conflicts in a row that change nothing a decision rests on.
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

    /// A write is done, or there is nothing to write to.
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

    /// The store may have been put back to an older state, and its versions raised: what was proven is asked for again.
    pub fn doubt(&mut self) {
        self.confirmed.clear();
        self.graph.doubt();
    }

    /// A deletion that was begun because these owners wait has its answer.
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

    /// An answer shows the object as it is.
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

    /// It was deleted, as the answer shows. The event follows; whoever depends on it need not wait for that.
    pub fn deleted(&mut self, target: &Target) {
        self.graph.vanished(target.kind, &target.uid);
    }

    /// An answer shows that it is not there.
    pub fn absent(&mut self, target: &Target) {
        if self.graph.is_it(target.id, target.key, target.at()) {
            self.confirmed.remove(&target.id);
            self.graph.absent(target.id);
        }
    }
}

/// What rests on all kinds by this step.
fn ending(step: &Step) -> Ending {
    match step {
        Step::FinishForeground => Ending::Foreground,
        _ => Ending::Orphan,
    }
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// It is known now.
    Settled,
    /// The watch has told more already; ask again.
    Overtaken,
    /// It is there, and nobody would tell if it went.
    Unwatched,
}
