//! What the collector knows and has to do, shared by those who watch and those who act. Nothing here waits.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    counts::Counts,
    decide::{Step, decide},
    discovery::path_of,
    graph::{Answer, Graph, Hint, NodeId, Observed, State},
    kinds::{KindId, Resource, Scope},
    limit::Pace,
    queue::Queue,
    wire::WatchEvent,
    work::{Owner, Target, Work},
};
use crate::{
    api::{ApiError, escape},
    cli::UnsyncedFlag,
    events::{Events, Involved, Reason},
    standby::Canary,
};

/// A kind whose watch is broken for so long may hold objects that nobody has heard of.
const STALE: Duration = Duration::from_secs(30);
/// For so long nothing that rests on all kinds is done while one of them cannot be seen; then the operator's word counts.
const UNSYNCED: Duration = Duration::from_secs(300);
/// What rests on all kinds is looked at again this often while one of them cannot be seen.
const HELD: Duration = Duration::from_secs(2);
/// An owner that is there, but of a kind that cannot be watched, is asked for again: first, and at most.
const UNWATCHED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// What has to wait for another request about its owner is decided on again after this.
const AGAIN: Duration = Duration::from_millis(500);
/// References to owners of other namespaces that are remembered as told of, and owners as confirmed.
const REMEMBERED: usize = 4096;
/// Decisions in a row before others have their turn.
const IN_A_ROW: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub struct Shared {
    core: Mutex<Core>,
    /// Something may be to do.
    pub wake: Notify,
    /// Why all that is known has to be forgotten, once it has.
    pub lost: watch::Sender<Option<String>>,
    events: Option<Events>,
    nap: Option<Duration>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Core {
    /// What is known of objects.
    pub graph: Graph,
    /// What is to be looked at.
    pub queue: Queue,
    /// The kinds that are watched.
    pub watched: BTreeMap<KindId, Watched>,
    /// Why there may be kinds that nobody knows of, and since when; nothing if discovery told all.
    undiscovered: Option<(String, Instant)>,
    /// What was done.
    pub counts: Counts,
    /// How fast writes may go, once any was answered.
    pub pace: Option<Pace>,
    unsynced: UnsyncedFlag,
    /// Owners of which a live answer has shown at this version that they wait for their dependents.
    confirmed: HashMap<NodeId, u64>,
    /// How many deletions are under way because these owners wait for their dependents.
    leaning: HashMap<NodeId, u32>,
    /// Kinds that refuse strategic merge patches.
    pub plain: HashSet<KindId>,
    /// References to owners of other namespaces, to be told of.
    pub misplaced: Vec<(Involved, String)>,
    canary: Option<Canary>,
    /// UIDs of dependents and owners that were told of.
    reported: HashSet<(String, String)>,
}

/// Where the watch of a kind stands.
#[derive(Debug)]
pub struct Watched {
    /// Where it is served.
    pub resource: Resource,
    /// Since when it is to be watched there.
    pub begun: Instant,
    /// Its first list is complete.
    pub synced: bool,
    /// The highest resourceVersion that it told.
    pub progress: u64,
    /// When it last told anything.
    pub told: Option<Instant>,
    /// What it fails by, and since when.
    pub trouble: Option<(String, Instant)>,
}

/// The server said something that makes no sense here.
#[derive(Debug, thiserror::Error)]
pub enum Nonsense {
    /// Versions have to be numbers, or nothing can be told of their order.
    #[error("the resourceVersion {0:?} is no number")]
    Version(String),
}

// === impl Shared ===

impl Shared {
    /// Nothing is known.
    pub fn new(unsynced: UnsyncedFlag) -> Self {
        Self {
            core: Mutex::new(Core {
                graph: Graph::default(),
                queue: Queue::default(),
                watched: BTreeMap::new(),
                undiscovered: Some(("discovery has not been answered yet".to_owned(), Instant::now())),
                counts: Counts::default(),
                pace: None,
                unsynced,
                confirmed: HashMap::new(),
                leaning: HashMap::new(),
                plain: HashSet::new(),
                misplaced: Vec::new(),
                canary: None,
                reported: HashSet::new(),
            }),
            wake: Notify::new(),
            lost: watch::Sender::new(None),
            events: None,
            nap: None,
        }
    }

    /// The thread is the collector's own, and may sleep so long while many requests are under way.
    pub fn with_naps(self, nap: Duration) -> Self {
        Self { nap: Some(nap), ..self }
    }

    /// How long the thread may sleep while many requests are under way.
    pub fn nap(&self) -> Option<Duration> {
        self.nap
    }

    /// Tells of references to owners of other namespaces in events.
    pub fn with_events(self, events: Events) -> Self {
        Self {
            events: Some(events),
            ..self
        }
    }

    /// Leaves the objects alone that tell by their end that another collector works.
    pub fn with_canary(self, canary: Canary) -> Self {
        self.lock().canary = Some(canary);
        self
    }

    /// The next thing that takes a request; `false` beside it: there may be more.
    pub fn next(&self, now: Instant) -> (Option<Work>, bool) {
        let mut core = self.lock();
        let next = core.next(now);
        for (dependent, message) in core.misplaced.drain(..) {
            tracing::warn!(
                uid = dependent.uid,
                message,
                "An owner reference names an object of another namespace"
            );
            if let Some(events) = &self.events {
                events.object(&dependent, Reason::OwnerRefInvalidNamespace, &message);
            }
        }
        next
    }

    /// All of it, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to it, and wakes those who act if that leaves something to do.
    pub fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let done = act(&mut core);
        if core.note() {
            self.wake.notify_one();
        }
        done
    }

    /// A list of a kind begins.
    pub fn begin_list(&self, kind: KindId) {
        self.with(|core| core.graph.begin_list(kind));
    }

    /// Takes the objects that `read` tells of a list.
    pub fn list_piece<T>(&self, kind: KindId, read: impl FnOnce(&mut dyn FnMut(Observed)) -> T) -> T {
        self.with(|core| {
            let graph = &mut core.graph;
            read(&mut |object| graph.observe(kind, &object))
        })
    }

    /// The list is complete.
    pub fn end_list(&self, kind: KindId, version: &str) -> Result<(), Nonsense> {
        let number = number(version)?;
        self.with(|core| {
            let Some(watched) = core.watched.get_mut(&kind) else {
                return;
            };
            if self.went_back(watched, number) {
                return;
            }
            watched.progress = number;
            watched.told = Some(Instant::now());
            watched.trouble = None;
            core.graph.end_list(kind);
            if !watched.synced {
                watched.synced = true;
                core.graph.ask_all(kind);
            }
        });
        Ok(())
    }

    /// Takes events of a watch.
    pub fn events(&self, kind: KindId, events: &[WatchEvent]) -> Result<(), Nonsense> {
        self.with(|core| {
            let Some(watched) = core.watched.get_mut(&kind) else {
                return Ok(());
            };
            watched.told = Some(Instant::now());
            for event in events {
                let version = match event {
                    WatchEvent::Seen(object) | WatchEvent::Gone(object) => &object.version,
                    WatchEvent::Bookmark { version, .. } => version,
                    WatchEvent::Error(..) => continue,
                };
                let version = number(version)?;
                if self.went_back(watched, version) {
                    return Ok(());
                }
                watched.progress = version;
                match event {
                    WatchEvent::Seen(object) => core.graph.observe(kind, object),
                    WatchEvent::Gone(object) => core.graph.vanished(kind, &object.uid),
                    WatchEvent::Bookmark { .. } | WatchEvent::Error(..) => continue,
                }
                core.counts.events += 1;
            }
            Ok(())
        })
    }

    /// The highest version that was told of this resource of the core group.
    pub fn told_of(&self, plural: &str) -> u64 {
        let core = self.lock();
        let is_it = |(id, watched): &(&KindId, &Watched)| {
            watched.resource.plural == plural && core.graph.kinds.group(**id).is_empty()
        };
        core.watched
            .iter()
            .find(is_it)
            .map_or(0, |(_, watched)| watched.progress)
    }

    /// A consistent list of this resource shows the store at this version, where it was at `before` when it was asked.
    pub fn store_is_at(&self, plural: &str, version: u64, before: u64) {
        if version < before {
            self.put_back(plural, version, before);
        }
    }

    /// All that is known may be wrong where the store was put back to an older state.
    fn went_back(&self, watched: &Watched, version: u64) -> bool {
        let goes_back = version < watched.progress;
        if goes_back {
            self.put_back(&watched.resource.plural, version, watched.progress);
        }
        goes_back
    }

    fn put_back(&self, plural: &str, version: u64, before: u64) {
        let why = format!(
            "the store is at version {version}, as {plural} tell, where it was at {before} before: it was put back"
        );
        self.lost.send_replace(Some(why));
    }

    /// The watch of a kind goes on.
    pub fn watching(&self, kind: KindId) {
        if let Some(watched) = self.lock().watched.get_mut(&kind)
            && watched.trouble.take().is_some()
        {
            tracing::info!(resource = watched.resource.plural, "A kind is watched again");
        }
    }

    /// The list or watch of a kind failed.
    pub fn troubled(&self, kind: KindId, error: &ApiError) {
        self.with(|core| {
            core.counts.failed("watch", error);
            let Some(watched) = core.watched.get_mut(&kind) else {
                return;
            };
            let is_new = watched.trouble.is_none();
            let since = watched.trouble.take().map_or_else(Instant::now, |(_, since)| since);
            watched.trouble = Some((error.to_string(), since));
            if is_new {
                tracing::warn!(resource = watched.resource.plural, %error, "A kind cannot be watched");
                // Its owners were waited for; now they are asked for one by one.
                core.graph.ask_all(kind);
            }
        });
    }

    /// How far the watch of a kind has come.
    pub fn version(&self, kind: KindId) -> Option<String> {
        let core = self.lock();
        let progress = core.watched.get(&kind)?.progress;
        (progress > 0).then(|| progress.to_string())
    }
}

fn number(version: &str) -> Result<u64, Nonsense> {
    version.parse().map_err(|_| Nonsense::Version(version.to_owned()))
}

// === impl Core ===

impl Core {
    /// Takes the graph's hints over; `true` if there are any.
    pub fn note(&mut self) -> bool {
        let hints = self.graph.hints();
        let now = Instant::now();
        for &hint in &hints {
            let dependents = match hint {
                Hint::Dependents(id) if self.graph.lives(id) => self.graph.node(id).dependents,
                Hint::Dependents(_) | Hint::Decide(_) | Hint::Ask(_) => 0,
            };
            self.queue.push(hint, dependents, now);
        }
        !hints.is_empty()
    }

    /// The next thing that takes a request; `None` if there is nothing to do now. `false` beside it: there may be more.
    fn next(&mut self, now: Instant) -> (Option<Work>, bool) {
        for _ in 0..IN_A_ROW {
            let Some(hint) = self.queue.pop(now) else {
                return (None, true);
            };
            let work = match hint {
                Hint::Dependents(owner) => self.next_dependent(owner, now),
                Hint::Ask(id) => self.ask(id),
                Hint::Decide(id) => self.decide(id, now),
            };
            self.note();
            if work.is_some() {
                return (work, true);
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
            self.queue.push(Hint::Ask(owner), 0, now);
            return None;
        }
        let dependent = self.graph.next_dependent(owner)?;
        let hint = Hint::Decide(dependent);
        if !self.queue.begin(hint, now) {
            return None;
        }
        let work = self.decide(dependent, now);
        if work.is_none() {
            self.queue.done(hint, now);
        }
        work
    }

    /// It is said to wait for its dependents, and whether it still does was not asked at its version.
    fn is_unconfirmed(&self, owner: NodeId) -> bool {
        let node = self.graph.node(owner);
        node.state.has(State::OBSERVED) && node.state.waits() && self.confirmed.get(&owner) != Some(&node.version)
    }

    fn decide(&mut self, id: NodeId, now: Instant) -> Option<Work> {
        if !self.graph.lives(id) {
            return None;
        }
        let step = decide(&self.graph, id);
        let hint = Hint::Decide(id);
        match step {
            Step::Nothing | Step::Wait | Step::Unserved(_) => None,
            Step::Impossible(owners) => {
                self.report(id, &owners);
                None
            }
            Step::Ask(owners) => {
                for owner in owners {
                    self.queue.push(Hint::Ask(owner), 0, now);
                }
                None
            }
            Step::Release(owners) => {
                self.report(id, &owners);
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
            } => {
                let why = if because.is_empty() {
                    "none of its owners is there"
                } else {
                    "an owner waits for its end"
                };
                let unconfirmed: Vec<NodeId> = because
                    .iter()
                    .copied()
                    .filter(|&owner| self.is_unconfirmed(owner))
                    .collect();
                if !unconfirmed.is_empty() {
                    for owner in unconfirmed {
                        self.queue.push(Hint::Ask(owner), 0, now);
                    }
                    return None;
                }
                let owners: Vec<NodeId> = self.graph.owners(id).map(|link| link.node).collect();
                self.report(id, &owners);
                let target = self.target(id)?;
                if self.is_canary(&target, &owners) {
                    return None;
                }
                if because.iter().any(|&owner| self.queue.is_busy(Hint::Decide(owner))) {
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
                    why,
                })
            }
            // Without its finalizer it may be there still, for another one: an owner like others.
            Step::FinishForeground if self.leaning.contains_key(&id) => None,
            Step::FinishForeground | Step::FinishOrphan => {
                if let Some(why) = self.held(now) {
                    self.queue.retry(hint, &why, Some(HELD), now);
                    return None;
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

    /// It is there to see whether another collector deletes it. Before its own UID is known, that of its owner is.
    fn is_canary(&self, target: &Target, owners: &[NodeId]) -> bool {
        let Some(canary) = &self.canary else {
            return false;
        };
        canary.is_canary(&target.uid) || owners.iter().any(|&owner| canary.is_canary(&self.graph.uid(owner)))
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
        let kind = self.graph.node(id).kind;
        if self
            .watched
            .get(&kind)
            .is_some_and(|it| !it.synced && it.trouble.is_none())
        {
            return None;
        }
        Some(Work::Ask(self.target(id)?))
    }

    /// Why what rests on all kinds cannot be done now.
    pub fn held(&self, now: Instant) -> Option<String> {
        let why = self.unsynced_because(now)?;
        let unseen = self.watched.values().filter_map(|it| it.unseen_since(now));
        let undiscovered = self.undiscovered.as_ref().map(|(_, since)| *since);
        // Of each kind it is waited for: the last one counts.
        let last = unseen.chain(undiscovered).max();
        let is_over = last.is_some_and(|last| now >= last + UNSYNCED);
        (self.unsynced == UnsyncedFlag::Hold || !is_over).then_some(why)
    }

    /// There may be kinds that nobody knows of, because of this; nothing if discovery told all.
    pub fn set_undiscovered(&mut self, why: Option<String>) {
        let since = self.undiscovered.take().map_or_else(Instant::now, |(_, since)| since);
        self.undiscovered = why.map(|why| (why, since));
    }

    /// Whether there may be kinds that nobody knows of.
    pub fn is_undiscovered(&self) -> bool {
        self.undiscovered.is_some()
    }

    /// Which kinds may hold objects that nobody has heard of.
    pub fn unsynced_because(&self, now: Instant) -> Option<String> {
        let unseen = self.watched.values().filter(|it| it.unseen_since(now).is_some());
        let names: Vec<String> = unseen
            .map(|it| match &it.trouble {
                Some((trouble, _)) => format!("{} ({trouble})", it.resource.plural),
                None => it.resource.plural.clone(),
            })
            .collect();
        match (&self.undiscovered, names.is_empty()) {
            (None, true) => None,
            (Some((why, _)), true) => Some(why.clone()),
            (_, false) => Some(format!("not every kind can be seen: {}", names.join(", "))),
        }
    }

    /// Where a request about a node has to go; `None` where its kind is not served, or not there.
    pub fn target(&self, id: NodeId) -> Option<Target> {
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
            path,
            group: group.to_owned(),
            plural: plural.clone(),
            name: node.name.to_string(),
            uid: self.graph.uid(id),
            key: node.uid,
            version: node.version,
        })
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

    /// A deletion that was begun because these owners wait has its answer.
    pub fn leans_no_more(&mut self, because: &[NodeId], now: Instant) {
        for &owner in because {
            let Some(left) = self.leaning.get_mut(&owner) else {
                continue;
            };
            *left -= 1;
            if *left == 0 {
                self.leaning.remove(&owner);
                self.queue.push(Hint::Decide(owner), 0, now);
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
                if node.state.waits() && object.version.parse() == Ok(node.version) {
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

    /// How long to wait before an owner is asked for again whose kind cannot be watched.
    pub fn unwatched_pause(tries: u32) -> Duration {
        let (first, most) = UNWATCHED;
        first.saturating_mul(1 << tries.min(8)).min(most)
    }

    /// Owners that are there, but not where the reference says, are told of: somebody meant them.
    fn report(&mut self, dependent: NodeId, owners: &[NodeId]) {
        for &owner in owners {
            if self.graph.node(owner).state.has(State::OBSERVED) || !self.graph.is_elsewhere(owner) {
                continue;
            }
            let (by, to) = (self.graph.uid(dependent), self.graph.uid(owner));
            if self.reported.len() >= REMEMBERED {
                self.reported.clear();
            }
            if self.reported.insert((by, to)) {
                self.misplaced
                    .push((self.involved(dependent), self.message(dependent, owner)));
            }
        }
    }

    /// The words of kube-controller-manager.
    fn message(&self, dependent: NodeId, owner: NodeId) -> String {
        let Involved {
            api_version,
            kind,
            name,
            uid,
            ..
        } = self.involved(owner);
        let namespace = self.graph.namespace(self.graph.node(dependent).namespace);
        format!(
            r#"ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace "{namespace}""#
        )
    }

    fn involved(&self, id: NodeId) -> Involved {
        let node = self.graph.node(id);
        let (group, resource) = (self.graph.kinds.group(node.kind), self.graph.kinds.resource(node.kind));
        let version = resource.map_or("", |resource| &resource.version);
        Involved {
            api_version: if group.is_empty() {
                version.to_owned()
            } else {
                format!("{group}/{version}")
            },
            kind: self.graph.kinds.kind(node.kind).to_owned(),
            namespace: self.graph.namespace(node.namespace).to_owned(),
            name: node.name.to_string(),
            uid: self.graph.uid(id),
        }
    }
}

// === impl Watched ===

impl Watched {
    /// Since when it may hold objects that nobody has heard of; nothing if it does not.
    fn unseen_since(&self, now: Instant) -> Option<Instant> {
        if !self.synced {
            return Some(self.begun);
        }
        let (_, since) = self.trouble.as_ref()?;
        (now >= *since + STALE).then_some(*since)
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
