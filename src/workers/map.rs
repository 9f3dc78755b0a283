//! `podSyncStatuses`: the terminating pods, their states and workers. One task owns the map, without locks.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{interval, timeout},
};

use super::{Request, stop::PodStop};
use crate::{
    clock::rounded,
    counters::Counters,
    handover::guard::Guard,
    journal::{Exits, KnownProcess},
    model::{
        event::Reason,
        pod::{PodRef, PodUid, PodView},
        termination::{self, Cause},
        trace::{Stage, Step},
    },
    node::{
        checkpoint::{self, JOURNAL},
        effects::Gate as _,
    },
    otlp::{Outcome, TraceExporter},
    teardown::{attempt::PodUpdate, begin::Termination, context::Context, grace, worker::WorkerResult},
    trace_context::{self, TraceContext},
    trace_recorder::TraceRecorder,
    why::Why,
};

mod idle;
mod requests;

/// Number of traces of finished pods to keep: enough for a drained node.
const MAX_TRACES: usize = 256;
/// How often workers are started for queued pods, beside each time that one has finished: those that are blocked do not count.
const QUEUE_INTERVAL: Duration = Duration::from_secs(10);

/// State of a pod. Pods that may have nothing on the node are checked first: there may be thousands of them, as on a node under disk
/// pressure, and none comes before a pod that has something here.
enum PodState {
    /// It does not terminate.
    Active(Arc<PodView>),
    /// It has to terminate, and waits for a check of the node.
    Unchecked {
        view: Arc<PodView>,
        /// The check in progress counts for it.
        in_check: bool,
    },
    /// It is terminal and not deleted, and has nothing on the node.
    Idle(PodRef),
    /// It is deleted and has nothing on the node. It waits for a worker.
    Queued(Arc<PodView>),
    /// It terminates.
    Terminating(Terminating),
    /// Its final delete was accepted, and finalizers keep its object. It had nothing on the node.
    Finalizing(PodRef),
    /// It was finished, and its object is deleted. Later updates are ignored until the node is searched for leftovers.
    Gone,
}

/// A terminating pod.
struct Terminating {
    termination: Termination,
    state: WorkerState,
    /// It was queued, because it has nothing on the node.
    was_queued: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    /// It has a worker.
    Working,
    /// Nothing of it runs, and it is not deleted yet.
    Kept,
    /// Finished. It is kept until its object is deleted, so that a late update cannot revive it.
    Finished,
}

/// Owner of the map.
pub struct PodWorkers {
    context: Arc<Context>,
    counters: Arc<Counters>,
    guard: Guard,
    /// By UID. The order makes runs reproducible.
    pods: BTreeMap<PodUid, PodState>,
    /// The check of the node in progress: the UIDs of everything on it, or why it cannot be checked.
    check: JoinSet<Result<HashSet<PodUid>, Why>>,
    /// What was recorded during stops that were canceled since, and stays true: an exited container never runs again, and a process of
    /// the pod stays one.
    canceled: HashMap<PodUid, (Exits, Vec<KnownProcess>)>,
    workers: JoinSet<(PodUid, WorkerResult)>,
    /// Requests that wait for the disk before they shorten a grace period.
    shortening: JoinSet<()>,
    traces: VecDeque<Arc<TraceRecorder>>,
    exporter: Option<TraceExporter>,
    changes: mpsc::Receiver<Arc<PodView>>,
    requests: mpsc::Receiver<Request>,
}

// === impl PodWorkers ===

impl PodWorkers {
    /// An empty map that gets its updates from `changes`. The exporter gets the traces of pods.
    pub fn new(
        context: Arc<Context>,
        guard: Guard,
        counters: Arc<Counters>,
        exporter: Option<TraceExporter>,
        (changes, requests): (mpsc::Receiver<Arc<PodView>>, mpsc::Receiver<Request>),
    ) -> Self {
        Self {
            context,
            counters,
            guard,
            pods: BTreeMap::new(),
            check: JoinSet::new(),
            canceled: HashMap::new(),
            workers: JoinSet::new(),
            shortening: JoinSet::new(),
            traces: VecDeque::new(),
            exporter,
            changes,
            requests,
        }
    }

    /// Runs until `changes` is closed. Then waits for terminating pods for `drain_timeout`.
    pub async fn run(mut self, drain_timeout: Duration) {
        let mut ticks = interval(QUEUE_INTERVAL);
        loop {
            tokio::select! {
                // Results of workers are limited by their number and delay updates only briefly. Updates come before requests, which
                // may be unlimited.
                biased;
                Some(result) = self.workers.join_next() => self.worker_finished(result),
                Some(found) = self.check.join_next() => self.node_is_checked(found),
                change = self.changes.recv() => match change {
                    Some(change) => self.change(change),
                    // The watch has stopped, because the agent stops.
                    None => break,
                },
                Some(request) = self.requests.recv() => request(&mut self),
                _ = ticks.tick() => self.begin_queued(),
                Some(_) = self.shortening.join_next() => {}
            }
        }
        self.context.stopping.cancel();
        let drain = async {
            while !self.workers.is_empty() {
                tokio::select! {
                    biased;
                    Some(result) = self.workers.join_next() => self.worker_finished(result),
                    Some(request) = self.requests.recv() => request(&mut self),
                    Some(_) = self.shortening.join_next() => {}
                    else => {}
                }
            }
        };
        if timeout(drain_timeout, drain).await.is_err() {
            let pods = self.workers.len();
            tracing::warn!(pods, "Terminating pods are left for the next start");
        }
        for pod in self.terminating_pods().filter(|pod| pod.state == WorkerState::Working) {
            self.export(&pod.termination.recorder, Outcome::Unfinished);
        }
    }

    fn change(&mut self, view: Arc<PodView>) {
        let uid = view.pod.uid.clone();
        let is_gone = view.object.is_absent();
        let has_nothing_here = match self.pods.get(&uid) {
            Some(PodState::Gone) => {
                tracing::debug!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, is_gone, "Update of a finished pod ignored");
                return;
            }
            Some(PodState::Terminating(_)) => return self.update(&uid, &view),
            // Its final delete was accepted: only the deletion of its object is a change.
            Some(PodState::Finalizing(_)) if !is_gone => return,
            Some(PodState::Finalizing(_) | PodState::Idle(_) | PodState::Queued(_)) => true,
            Some(PodState::Active(_) | PodState::Unchecked { .. }) | None => false,
        };
        let begun = self.context.journal.knows(&uid);
        let state = match termination::cause(&view, begun) {
            _ if has_nothing_here && is_gone => PodState::Gone,
            // Its containers never start again.
            Some(Cause::PhaseTerminal) if has_nothing_here => PodState::Idle(view.pod.clone()),
            Some(Cause::PhaseTerminal | Cause::Deleted) if !is_gone && !begun && view.may_be_absent() => {
                return self.check_later(view);
            }
            Some(cause) => return self.begin(&view, cause, None),
            None if is_gone => {
                self.pods.remove(&uid);
                return;
            }
            None => PodState::Active(view),
        };
        self.pods.insert(uid, state);
    }

    /// Begins a termination, or resumes that of an earlier run of the agent.
    fn begin(&mut self, view: &Arc<PodView>, cause: Cause, stop: Option<PodStop>) {
        let uid = &view.pod.uid;
        let (grace, eviction) = stop.map(|stop| (stop.grace, stop.eviction)).unwrap_or_default();
        let update = PodUpdate::new(Arc::clone(view), eviction);
        let termination = Termination::begin(Arc::clone(&self.context), update, cause, grace);
        if let Some((exits, processes)) = self.canceled.remove(uid) {
            self.context.journal.record_exits(uid, exits);
            self.context.journal.record_processes(uid, processes);
        }
        if cause == Cause::PhaseTerminal {
            self.guard.journal.record_seen(view, true);
        }
        self.counters.count(|counts| counts.started += 1);
        termination.recorder.set_terminal_state(view);
        let pod = Terminating {
            termination,
            state: WorkerState::Working,
            was_queued: matches!(self.pods.get(uid), Some(PodState::Queued(_))),
        };
        self.pods.insert(uid.clone(), PodState::Terminating(pod));
        self.start(uid);
    }

    /// Passes an update of a terminating pod to its worker. It never reverts the deletion.
    fn update(&mut self, uid: &PodUid, view: &Arc<PodView>) {
        let Some(PodState::Terminating(pod)) = self.pods.get_mut(uid) else {
            return;
        };
        let termination = &pod.termination;
        let is_gone = view.object.is_absent();
        if is_gone {
            termination.recorder.change(|trace| trace.finalizers.clear());
        }
        if is_gone && pod.state == WorkerState::Finished {
            self.pods.insert(uid.clone(), PodState::Gone);
            return;
        }
        if view.is_deletion_shown() {
            let grace_override = is_gone.then(|| Cause::Removed.required_grace()).flatten();
            // A longer one is ignored, and any after the containers stopped: this agent's final delete sets it to 0.
            let grace = grace::of_pod(Some(termination.period.grace()), view, grace_override);
            if termination.shorten(grace) {
                termination.record_grace(grace, None);
            }
        }
        termination.recorder.set_terminal_state(view);
        let terminated_by_api = termination.updates.borrow().terminates_by_api();
        termination.updates.send_modify(|update| {
            update.view = match update.view.object.is_absent() && !is_gone {
                true => Arc::new(view.gone()),
                false => Arc::clone(view),
            };
        });
        let terminates_by_api = termination.updates.borrow().terminates_by_api();
        if terminated_by_api && !terminates_by_api {
            // After a restore of etcd, the API may no longer show the reason for the termination.
            self.context.journal.record_request(uid);
        } else if terminates_by_api && self.guard.check_new().is_ok() {
            self.context.journal.clear_stop_request(uid);
        }
        if pod.state == WorkerState::Kept {
            self.start(uid);
        }
    }

    fn start(&mut self, uid: &PodUid) {
        let Some(PodState::Terminating(pod)) = self.pods.get_mut(uid) else {
            return;
        };
        pod.state = WorkerState::Working;
        let worker = pod.termination.run();
        let context = self.exporter.as_ref().map(|_| TraceContext::for_pod(uid.as_str()));
        let uid = uid.clone();
        let run = async move { (uid, worker.await) };
        self.workers.spawn(trace_context::scope(context, run));
    }

    fn worker_finished(&mut self, result: Result<(PodUid, WorkerResult), JoinError>) {
        let (uid, outcome) = match result {
            Ok(ended) => ended,
            Err(error) => return tracing::error!(%error, "A worker has no result"),
        };
        let Some(PodState::Terminating(pod)) = self.pods.get_mut(&uid) else {
            return;
        };
        // A pod that is not finished may have something on the node.
        pod.was_queued &= outcome == WorkerResult::Finished;
        match outcome {
            WorkerResult::Stopping => {}
            WorkerResult::Kept => {
                pod.state = WorkerState::Kept;
                pod.termination.recorder.set_kept();
                // A deletion may have come during the worker's last steps.
                let is_deleted = pod.termination.updates.borrow().view.is_deletion_shown();
                if is_deleted && !self.context.stopping.is_cancelled() {
                    self.start(&uid);
                }
            }
            WorkerResult::Finished => {
                self.record_finished(&uid);
                self.begin_queued();
            }
            WorkerResult::FinishedByKubelet => {
                let recorder = Arc::clone(&pod.termination.recorder);
                let PodRef { namespace, name, .. } = recorder.pod();
                tracing::info!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, "Kubelet has finished the pod");
                self.context.journal.forget(&uid);
                self.export(&recorder, Outcome::Finished);
                self.pods.insert(uid, PodState::Gone);
            }
            WorkerResult::Canceled => self.record_canceled(uid),
        }
    }

    /// Nothing of the pod is left on the node.
    fn record_finished(&mut self, uid: &PodUid) {
        let Some(PodState::Terminating(pod)) = self.pods.get_mut(uid) else {
            return;
        };
        checkpoint::before(JOURNAL, &"forget");
        self.context.journal.forget(uid);
        // It is durable later. After a crash, the next start finds the pod finished.
        checkpoint::after(JOURNAL, &"forget");
        pod.state = WorkerState::Finished;
        let recorder = Arc::clone(&pod.termination.recorder);
        let is_gone = pod.termination.updates.borrow().view.object.is_absent();
        let was_queued = pod.was_queued;
        self.counters.teardown_finished(&recorder);
        let pod = recorder.pod().clone();
        tracing::info!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, took = ?rounded(recorder.elapsed()), "Teardown finished");
        self.export(&recorder, Outcome::Finished);
        self.keep_trace(recorder);
        if is_gone {
            self.pods.insert(uid.clone(), PodState::Gone);
        } else if was_queued {
            self.pods.insert(uid.clone(), PodState::Finalizing(pod));
        }
    }

    /// A kubelet came before a pod had terminated that only a stop request terminates.
    fn record_canceled(&mut self, uid: PodUid) {
        let Some(PodState::Terminating(pod)) = self.pods.remove(&uid) else {
            return;
        };
        let Termination { recorder, updates, .. } = pod.termination;
        let update = updates.borrow().clone();
        let entry = self.context.journal.pod(&uid);
        let why = canceled(&recorder, entry.as_ref().map(|entry| entry.stage));
        let PodRef { namespace, name, .. } = recorder.pod();
        tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, why = why.as_str(), "Stop request is canceled");
        self.counters.count(|counts| counts.stop_requests_canceled += 1);
        if !update.terminates_by_api() {
            let events = &self.context.events;
            events.event(&update.view, None, Reason::StopRequestCanceled, &why);
        }
        recorder.change(|trace| trace.canceled_because = Some(why));
        self.export(&recorder, Outcome::Canceled);
        self.keep_trace(recorder);
        self.context.journal.forget(&uid);
        if let Some(entry) = entry.filter(|entry| !entry.exits.is_empty() || !entry.processes.is_empty()) {
            self.canceled.insert(uid, (entry.exits, entry.processes));
        }
        // If the API shows that it terminates, that is a new termination with its whole grace period.
        self.change(match update.terminates_by_api() {
            true => update.view,
            false => Arc::new(update.view.without_object()),
        });
    }

    fn terminating_pods(&self) -> impl Iterator<Item = &Terminating> {
        self.pods.values().filter_map(PodState::terminating)
    }

    fn export(&self, record: &TraceRecorder, outcome: Outcome) {
        if let Some(exporter) = &self.exporter {
            exporter.export(record.trace(), outcome);
        }
    }

    /// Keeps the trace of a finished pod.
    fn keep_trace(&mut self, record: Arc<TraceRecorder>) {
        self.traces.push_back(record);
        if self.traces.len() > MAX_TRACES {
            self.traces.pop_front();
        }
    }
}

// === impl PodState ===

impl PodState {
    fn terminating(&self) -> Option<&Terminating> {
        match self {
            Self::Terminating(pod) => Some(pod),
            _ => None,
        }
    }
}

/// Why the stop request of a pod is canceled. `reached` is its stage.
fn canceled(record: &TraceRecorder, reached: Option<Stage>) -> String {
    let spans = record.trace().spans;
    let volumes = match reached >= Some(Stage::Terminated) || spans.iter().any(|span| span.step == Step::Volumes) {
        true => "; its emptyDir volumes may have been removed",
        false => "",
    };
    format!(
        "a kubelet came before the pod had terminated, or may have, and restarts it{volumes}: delete it with kubectl"
    )
}
