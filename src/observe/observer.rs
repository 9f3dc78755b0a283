//! Observes the terminations of this node's pods, and judges them. It starts no worker.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use jiff::Timestamp;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{
    leftovers::left,
    pods::ObservedPod,
    reads::{NodeRead, PodReader},
    seen::SeenRuntime,
    volumes::volumes_to_unstage,
};
use crate::{
    counters::Counters,
    journal::Journal,
    model::{
        blocked::Blocked,
        mismatch::Mismatch,
        observation::{Observation, Verdict},
        pod::{PodUid, PodView},
        termination::{self, Cause},
        trace::Trace,
    },
    node::cri::types::{Container, RuntimePod},
    object_name::ObjectName,
    teardown::{context::Context, plan::Plan, status::Messages},
    trace_recorder::TraceRecorder,
    why::Why,
    workers::{
        KnownPod, Overview, PodRequests, Request,
        stop::{PodStop, StopAccepted, StopRejected},
    },
};

/// Interval of the lists of the runtime while no pod terminates.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The same while a pod terminates. The kubelet lists it once a second, and may remove a container then.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// Interval of the removal of journal entries of deleted pods.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// Limit of a list.
const LIST_LIMIT: Duration = Duration::from_secs(20);
/// Pods whose object is kept while they run.
const MAX_OBJECTS: usize = 512;
/// Pods that are observed at the same time.
const MAX_OBSERVED: usize = 1000;

/// Observes terminations. Its context refuses every effect and every write.
pub struct Observer {
    reader: PodReader,
    journal: Journal,
    counters: Arc<Counters>,
    changes: mpsc::Receiver<Arc<PodView>>,
    requests: mpsc::Receiver<Request>,
    /// Pods in the API.
    known: HashMap<PodUid, Arc<PodView>>,
    observed: HashMap<PodUid, ObservedPod>,
    /// What was seen of pods in the runtime before their termination: containers that have exited.
    seen: HashMap<PodUid, SeenRuntime>,
    /// Terminal pods in the API whose termination was observed.
    finished: HashSet<PodUid>,
    work: FuturesUnordered<BoxFuture<'static, Found>>,
    is_listing: bool,
    last_list: Instant,
    next_list: Instant,
    next_prune: Instant,
}

/// What a read has found.
enum Found {
    List(Result<BTreeMap<String, RuntimePod>, Why>),
    Exit(PodUid, String, Option<(Container, Messages)>),
    FirstPlan(PodUid, Plan),
    Check(PodUid, Box<NodeRead>),
}

// === impl Observer ===

impl Observer {
    /// An observer of these changes. `context` is one for reads: see [`Context::read_only`].
    pub fn new(
        context: Arc<Context>,
        (journal, counters): (Journal, Arc<Counters>),
        changes: mpsc::Receiver<Arc<PodView>>,
        requests: mpsc::Receiver<Request>,
    ) -> Self {
        Self {
            reader: PodReader::new(context),
            journal,
            counters,
            changes,
            requests,
            known: HashMap::new(),
            observed: HashMap::new(),
            seen: HashMap::new(),
            finished: HashSet::new(),
            work: FuturesUnordered::new(),
            is_listing: false,
            last_list: Instant::now(),
            next_list: Instant::now(),
            next_prune: Instant::now() + PRUNE_INTERVAL,
        }
    }

    /// Observes until `changes` is closed.
    pub async fn run(mut self) {
        self.journal.end_interrupted_observations();
        loop {
            if self.observed.values().any(ObservedPod::is_terminating) {
                self.next_list = self.next_list.min(self.last_list + POLL_INTERVAL);
            }
            let next_check = self.observed.values().filter_map(ObservedPod::next_check).min();
            tokio::select! {
                biased;
                change = self.changes.recv() => match change {
                    Some(change) => self.change(change),
                    None => return,
                },
                Some(found) = self.work.next(), if !self.work.is_empty() => self.found(found),
                Some(request) = self.requests.recv() => request(&mut self),
                () = sleep_until(self.next_list), if !self.is_listing => self.list(),
                Some(()) = OptionFuture::from(next_check.map(sleep_until)) => self.check(),
            }
        }
    }

    fn change(&mut self, view: Arc<PodView>) {
        let uid = view.pod.uid.clone();
        let is_removed = view.object.is_absent();
        let known = if is_removed {
            self.next_list = Instant::now();
            self.known.remove(&uid)
        } else {
            let kept = self.kept(&view);
            self.known.insert(uid.clone(), kept)
        };
        if view.mirror {
            return;
        }
        let now = self.now();
        if let Some(pod) = self.observed.get_mut(&uid) {
            let is_seen = view.object.last_known().is_some();
            if is_seen || !is_removed {
                pod.update(view, now);
            }
            if is_removed {
                pod.removed(is_seen, now);
            } else if pod.is_done() {
                pod.end(false, now);
            }
            return;
        }
        if self.finished.contains(&uid) {
            if is_removed {
                self.finished.remove(&uid);
            }
            return;
        }
        let cause = match is_removed {
            true => Some(Cause::Removed),
            false => termination::cause(&view, false),
        };
        let is_new = known.is_none();
        // Terminal pods of an earlier run, or pods that were deleted before anything of them was seen.
        if is_new && (is_removed || view.terminal_phase) {
            return;
        }
        if let Some(cause) = cause {
            self.begin(&view, cause, known.as_deref(), now);
        }
    }

    /// The view to keep of a pod that runs: with its object, unless there are too many.
    fn kept(&self, view: &Arc<PodView>) -> Arc<PodView> {
        if view.object.last_known().is_none() || self.known.len() < MAX_OBJECTS {
            Arc::clone(view)
        } else {
            Arc::new(view.without_object())
        }
    }

    fn begin(&mut self, view: &Arc<PodView>, cause: Cause, known: Option<&PodView>, now: Timestamp) {
        let uid = view.pod.uid.clone();
        let mut pod = ObservedPod::begin(Arc::clone(view), cause, known, now);
        if self.observed.len() >= MAX_OBSERVED {
            let reason = Some("too many pods terminate at once".to_owned());
            self.conclude(Observation {
                reason,
                ..pod.unfinished(now)
            });
            return;
        }
        tracing::info!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, ?cause, "Observing a termination");
        self.journal.record_observation(pod.unfinished(now), true);
        if cause == Cause::Removed {
            pod.end(true, now);
        } else if pod.is_done() {
            pod.end(false, now);
        } else {
            let (reader, key, view) = (self.reader.clone(), uid.clone(), Arc::clone(view));
            let plan = async move { Found::FirstPlan(key, reader.first_plan(view).await) };
            self.work.push(plan.boxed());
        }
        pod.seen = self.seen.remove(&uid).unwrap_or_default();
        self.observed.insert(uid, pod);
        self.next_list = Instant::now();
    }

    /// Lists the pods of the runtime.
    fn list(&mut self) {
        self.is_listing = true;
        let runtime = self.reader.context().node.cri.clone();
        let list = async move {
            let listed = timeout(LIST_LIMIT, runtime.all_brief()).await;
            let listed = listed.map_err(|_| Why::new(format_args!("no answer within {LIST_LIMIT:?}")));
            Found::List(listed.and_then(|listed| listed.map_err(Why::new)))
        };
        self.work.push(list.boxed());
    }

    /// Checks the pods that are due.
    fn check(&mut self) {
        let now = Instant::now();
        for (uid, pod) in &mut self.observed {
            if pod.next_check().is_none_or(|at| at > now) {
                continue;
            }
            pod.check_begins();
            let (reader, uid, view) = (self.reader.clone(), uid.clone(), Arc::clone(&pod.view));
            let staged = pod.staged.clone();
            let check = async move {
                let read = reader.node(view, staged).await;
                Found::Check(uid, Box::new(read))
            };
            self.work.push(check.boxed());
        }
    }

    fn found(&mut self, found: Found) {
        match found {
            Found::List(listed) => {
                self.is_listing = false;
                self.last_list = Instant::now();
                self.next_list = self.last_list + IDLE_INTERVAL;
                match listed {
                    Ok(listed) => {
                        self.prune_journal(&listed);
                        self.compare(listed);
                    }
                    Err(why) => tracing::debug!(%why, "Runtime does not list its pods; exits may be missed"),
                }
            }
            Found::Exit(uid, id, exit) => {
                let seen = self.observed.get_mut(&uid).map(|pod| &mut pod.seen);
                if let Some(seen) = seen.or_else(|| self.seen.get_mut(&uid)) {
                    seen.add_exit(&id, exit);
                }
            }
            Found::FirstPlan(uid, plan) => {
                if let Some(pod) = self.observed.get_mut(&uid).filter(|pod| pod.is_terminating()) {
                    pod.staged = volumes_to_unstage(&plan);
                    pod.holds = plan.blocked;
                }
            }
            Found::Check(uid, read) => self.checked(&uid, *read),
        }
    }

    /// Adds what the list shows, and reads the exits that are new. Exits before a termination count, too: a kubelet that evicts a
    /// pod shows its terminal phase only after they have happened.
    fn compare(&mut self, mut listed: BTreeMap<String, RuntimePod>) {
        let mut unread = Vec::new();
        for (uid, pod) in &mut self.observed {
            let listed = listed.remove(uid.as_str()).unwrap_or_default();
            let exits = pod.seen.add_listed(listed).into_iter();
            unread.extend(exits.map(|exit| (Arc::clone(&pod.view), exit)));
        }
        self.seen.retain(|uid, _| self.known.contains_key(uid));
        // The termination of other terminal pods was before this run of the agent, or was observed.
        let running = self
            .known
            .iter()
            .filter(|(_, view)| !view.mirror && !view.terminal_phase);
        for (uid, view) in running {
            let Some(listed) = listed.remove(uid.as_str()) else {
                continue;
            };
            let mut seen = self.seen.remove(uid).unwrap_or_default();
            let exits = seen.add_listed(listed).into_iter();
            unread.extend(exits.map(|exit| (Arc::clone(view), exit)));
            if seen.has_exits() {
                self.seen.insert(uid.clone(), seen);
            }
        }
        for (view, exit) in unread {
            let (reader, uid, id) = (self.reader.clone(), view.pod.uid.clone(), exit.id.clone());
            let read = async move { Found::Exit(uid, id, reader.exit(view, exit).await) };
            self.work.push(read.boxed());
        }
    }

    /// Forgets pods of which nothing is left: no housekeeping does it here. A pod with leftovers stays proven to be one of the API
    /// server, for a later run that may remove them.
    fn prune_journal(&mut self, listed: &BTreeMap<String, RuntimePod>) {
        if Instant::now() < self.next_prune {
            return;
        }
        self.next_prune = Instant::now() + PRUNE_INTERVAL;
        let is_left = |uid: &PodUid| {
            let observation = self.journal.observation(uid);
            observation.is_some_and(|it| it.verdict == Verdict::Leftovers)
        };
        for (uid, seen) in self.journal.all_seen() {
            let is_present =
                self.known.contains_key(&uid) || self.observed.contains_key(&uid) || listed.contains_key(uid.as_str());
            if seen.terminates && !is_present && !is_left(&uid) {
                self.journal.forget_seen(&uid);
            }
        }
    }

    fn checked(&mut self, uid: &PodUid, read: NodeRead) {
        let NodeRead {
            runtime,
            plan,
            mounts,
            volumes,
        } = read;
        let now = self.now();
        let Some(pod) = self.observed.get_mut(uid) else { return };
        let mut running = BTreeSet::new();
        if let Ok(read) = runtime {
            running.extend(read.possibly_running().map(|it| it.id.clone()));
            running.extend(read.sandboxes.iter().filter(|it| it.is_ready).map(|it| it.id.clone()));
            pod.seen.add(read);
        }
        let left = left(&plan, &mounts, volumes, pod.is_deleted(), |id| running.contains(id));
        let Some(observation) = pod.conclude(left, &self.reader.context().node.runtime_name, now) else {
            return;
        };
        let is_deleted = pod.is_deleted();
        self.observed.remove(uid);
        if !is_deleted {
            self.finished.insert(uid.clone());
        }
        self.conclude(observation);
    }

    fn conclude(&self, observation: Observation) {
        let Observation {
            uid,
            namespace,
            name,
            verdict,
            ..
        } = &observation;
        self.counters
            .count(|counts| *counts.observations.entry(*verdict).or_default() += 1);
        match verdict {
            Verdict::Same => {
                tracing::info!(pod.uid = uid, pod.namespace = namespace, pod.name = name, %verdict, "Termination observed");
            }
            Verdict::Different | Verdict::Leftovers | Verdict::Unknown => tracing::warn!(
                pod.uid = uid,
                pod.namespace = namespace,
                pod.name = name,
                %verdict,
                differences = ?observation.differences,
                leftovers = ?observation.leftovers,
                reason = observation.reason,
                "Termination observed"
            ),
        }
        self.journal.record_observation(observation, false);
    }

    fn now(&self) -> Timestamp {
        self.reader.context().node.clock.wall.now()
    }
}

impl PodRequests for Observer {
    fn overview(&self) -> Overview {
        let mut terminating = self.traces(None);
        terminating.sort_by_key(|trace| std::cmp::Reverse(trace.elapsed_ms));
        let is_deleted = |uid: &&PodUid| self.known.get(*uid).is_some_and(|view| view.deletion.is_some());
        let awaiting_finalizers = self.finished.iter().filter(is_deleted).count();
        Overview {
            terminating,
            awaiting_deletion: self.finished.len() - awaiting_finalizers,
            awaiting_finalizers,
        }
    }

    fn traces(&self, name: Option<&ObjectName>) -> Vec<Trace> {
        let terminating = self.observed.values().filter(|pod| pod.is_terminating());
        let terminating = terminating.filter(|pod| name.is_none_or(|name| name.names(&pod.view.pod)));
        terminating.map(|pod| pod.recorder.trace()).collect()
    }

    fn stop_pod(&mut self, stop: PodStop) -> Result<StopAccepted, StopRejected> {
        Err(StopRejected::Blocked(stop.pod(), Blocked::OnlyObserves.to_string()))
    }

    fn trace_recorder(&self, uid: &PodUid) -> Option<Arc<TraceRecorder>> {
        self.observed.get(uid).map(|pod| Arc::clone(&pod.recorder))
    }

    fn find_pod(&self, name: &ObjectName) -> Option<KnownPod> {
        let view = self.known.values().find(|view| name.names(&view.pod))?;
        Some((Arc::clone(view), self.trace_recorder(&view.pod.uid)))
    }

    fn terminating_uids(&self) -> BTreeSet<PodUid> {
        self.observed.keys().cloned().collect()
    }

    fn terminating(&self) -> BTreeMap<PodUid, Arc<PodView>> {
        let pods = self.observed.iter().filter(|(_, pod)| pod.is_terminating());
        pods.map(|(uid, pod)| (uid.clone(), Arc::clone(&pod.view))).collect()
    }

    fn approve(&mut self, _uid: &PodUid, _mismatch: Mismatch) -> bool {
        false
    }
}
