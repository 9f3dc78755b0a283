//! `podSyncStatuses`: the terminating pods, their states and workers. One task owns the map, without locks.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{
    handle::{Request, RequestReceiver},
    stop::PodStop,
};
use crate::{
    clock::rounded,
    counters::Counters,
    handover::guard::Guard,
    journal::Journal,
    memory,
    model::{
        event::Reason,
        pod::{PodUid, PodView},
        termination::{self, Cause},
        trace::{Stage, Step},
    },
    node::checkpoint::{self, JOURNAL},
    otlp::{Outcome, TraceExporter},
    teardown::{
        begin::Termination,
        context::Context,
        exits::Exits,
        grace::{self, RequestedGrace},
        journal::{KnownProcess, PodJournalExt as _},
        priority_gate::PriorityGate,
        worker::{PodUpdate, WorkerResult},
    },
    trace_context::{self, TraceContext},
    trace_recorder::TraceRecorder,
    watch::RuntimePods,
};

mod checked;
mod idle;
mod requests;

use idle::IdlePods;

/// Number of traces of finished pods to keep: enough for a drained node.
const MAX_TRACES: usize = 256;
/// After this number of finished workers, memory is returned to the system.
const MEMORY_BATCH: usize = 16;
/// Delay before a worker that panicked is restarted.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// A terminating pod.
struct PodSyncStatus {
    termination: Termination,
    state: WorkerState,
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
    journal: Journal,
    counters: Arc<Counters>,
    guard: Guard,
    /// Pods that do not terminate.
    active: HashMap<PodUid, Arc<PodView>>,
    pods: HashMap<PodUid, PodSyncStatus>,
    idle_pods: IdlePods,
    /// Finished pods whose objects are deleted, with the time they finished. Later updates are ignored.
    finished: HashMap<PodUid, Instant>,
    /// What was recorded during stops that were canceled since, and stays true: an exited container never runs again, and a process of
    /// the pod stays one.
    canceled: HashMap<PodUid, (Exits, Vec<KnownProcess>)>,
    workers: JoinSet<WorkerResult>,
    priority_gate: PriorityGate,
    /// Requests that wait for the disk before they shorten a grace period.
    shortening: JoinSet<()>,
    tasks: HashMap<Id, PodUid>,
    /// Finished workers since memory was last returned.
    finished_since: usize,
    traces: VecDeque<Arc<TraceRecorder>>,
    exporter: Option<TraceExporter>,
    changes: mpsc::Receiver<Arc<PodView>>,
    runtime: watch::Receiver<Arc<RuntimePods>>,
    requests: mpsc::Receiver<Request>,
}

// === impl PodWorkers ===

impl PodWorkers {
    /// An empty map that gets its updates from `changes`.
    pub fn new(
        context: Arc<Context>,
        guard: Guard,
        (journal, counters): (Journal, Arc<Counters>),
        changes: mpsc::Receiver<Arc<PodView>>,
        runtime: watch::Receiver<Arc<RuntimePods>>,
        requests: RequestReceiver,
    ) -> Self {
        Self {
            context,
            journal,
            counters,
            guard,
            active: HashMap::new(),
            pods: HashMap::new(),
            idle_pods: IdlePods::default(),
            finished: HashMap::new(),
            canceled: HashMap::new(),
            workers: JoinSet::new(),
            priority_gate: PriorityGate::default(),
            shortening: JoinSet::new(),
            tasks: HashMap::new(),
            finished_since: 0,
            traces: VecDeque::new(),
            exporter: None,
            changes,
            runtime,
            requests: requests.0,
        }
    }

    /// Exports traces of pods.
    #[must_use]
    pub fn with_exporter(self, exporter: Option<TraceExporter>) -> Self {
        Self { exporter, ..self }
    }

    /// Runs until `changes` is closed. Then waits for terminating pods for `drain_timeout`.
    pub async fn run(mut self, drain_timeout: Duration) {
        loop {
            tokio::select! {
                // Results of workers are limited by their number and delay updates only briefly. Updates come before requests, which
                // may be unlimited.
                biased;
                Some(result) = self.workers.join_next_with_id() => self.worker_finished(result),
                Some(found) = self.idle_pods.wait_for_check() => self.node_is_checked(found),
                change = self.changes.recv() => match change {
                    Some(change) => self.change(change),
                    // The watch has stopped, because the agent stops.
                    None => break,
                },
                Some(request) = self.requests.recv() => self.handle(request),
                Ok(()) = self.runtime.changed() => self.prune_finished(),
                Some(_) = self.shortening.join_next() => {}
            }
            if self.workers.is_empty() && self.finished_since >= MEMORY_BATCH {
                self.finished_since = 0;
                memory::trim();
            }
        }
        self.context.stopping.cancel();
        let drain = async {
            while !self.workers.is_empty() {
                tokio::select! {
                    biased;
                    Some(result) = self.workers.join_next_with_id() => self.worker_finished(result),
                    Some(request) = self.requests.recv() => self.handle(request),
                    Some(_) = self.shortening.join_next() => {}
                    else => {}
                }
            }
        };
        if timeout(drain_timeout, drain).await.is_err() {
            tracing::warn!(
                pods = self.workers.len(),
                "Terminating pods are left for the next start"
            );
        }
        for status in self.pods.values().filter(|status| status.state == WorkerState::Working) {
            self.export(&status.termination.recorder, Outcome::Unfinished);
        }
    }

    fn change(&mut self, view: Arc<PodView>) {
        let uid = view.pod.uid.clone();
        let is_gone = view.object.is_absent();
        if self.finished.contains_key(&uid) {
            tracing::debug!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, is_gone, "Update of a finished pod ignored");
        } else if self.pods.contains_key(&uid) {
            self.update(&uid, &view);
        } else if self.idle_pods.is_finalizing(&uid) {
            // Its final delete was accepted: only the deletion of its object is a change.
            if is_gone {
                self.record_idle_pod_deleted(uid);
            }
        } else {
            let was_idle = self.idle_pods.take(&uid);
            let begun = self.context.journal.knows(&uid);
            match (termination::cause(&view, begun), was_idle) {
                (_, true) if is_gone => self.record_idle_pod_deleted(uid),
                // Nothing of it is on the node, and its containers never start again.
                (Some(Cause::PhaseTerminal), true) => self.idle_pods.keep_idle(view.pod.clone()),
                (Some(Cause::PhaseTerminal | Cause::Deleted), _) if !is_gone && !begun && view.may_be_absent() => {
                    self.active.remove(&uid);
                    self.idle_pods.check_later(view);
                    self.idle_pods.check_node(&self.context, &self.journal);
                }
                (Some(cause), _) => self.begin(&view, cause, None),
                (None, _) if is_gone => drop(self.active.remove(&uid)),
                (None, _) => drop(self.active.insert(uid, view)),
            }
        }
    }

    /// Begins a termination, or resumes that of an earlier run of the agent.
    fn begin(&mut self, view: &Arc<PodView>, cause: Cause, stop: Option<PodStop>) {
        let pod = view.pod.clone();
        self.active.remove(&pod.uid);
        let (grace, eviction) = stop.map(|stop| (stop.grace, stop.eviction)).unwrap_or_default();
        let update = PodUpdate::new(Arc::clone(view), eviction);
        let termination = Termination::begin(Arc::clone(&self.context), update, cause, grace);
        if let Some((exits, processes)) = self.canceled.remove(&pod.uid) {
            self.context.journal.record_exits(&pod.uid, exits);
            self.context.journal.record_processes(&pod.uid, processes);
        }
        if cause == Cause::PhaseTerminal {
            self.journal.record_seen(view, true);
        }
        self.counters.teardown_started();
        termination.recorder.set_terminal_state(view);
        let status = PodSyncStatus {
            termination,
            state: WorkerState::Working,
        };
        self.pods.insert(pod.uid.clone(), status);
        self.start(&pod.uid, Duration::ZERO);
    }

    /// Passes an update of a terminating pod to its worker. It never reverts the deletion.
    fn update(&mut self, uid: &PodUid, view: &Arc<PodView>) {
        let Some(status) = self.pods.get_mut(uid) else { return };
        let is_gone = view.object.is_absent();
        if is_gone {
            status.termination.recorder.set_finalizers(Vec::new());
        }
        if is_gone && status.state == WorkerState::Finished {
            self.pods.remove(uid);
            self.finished.insert(uid.clone(), Instant::now());
            return;
        }
        if view.is_deletion_shown() {
            let grace_override = is_gone.then(|| Cause::Removed.required_grace()).flatten();
            status.shorten(RequestedGrace::for_pod(view, grace_override));
        }
        status.termination.recorder.set_terminal_state(view);
        let terminated_by_api = status.termination.updates.borrow().terminates_by_api();
        status.termination.updates.send_modify(|update| {
            update.view = match update.view.object.is_absent() && !is_gone {
                true => Arc::new(view.gone()),
                false => Arc::clone(view),
            };
        });
        let terminates_by_api = status.termination.updates.borrow().terminates_by_api();
        if terminated_by_api && !terminates_by_api {
            // After a restore of etcd, the API may no longer show the reason for the termination.
            self.context.journal.record_request(uid);
        } else if terminates_by_api && self.guard.why_no_new_work().is_none() {
            self.context.journal.clear_stop_request(uid);
        }
        if status.state == WorkerState::Kept {
            status.state = WorkerState::Working;
            self.start(uid, Duration::ZERO);
        }
    }

    /// Removes pods that were finished before the last list of the runtime began: it shows nothing of them, or something new.
    fn prune_finished(&mut self) {
        let began = self.runtime.borrow_and_update().began;
        self.finished.retain(|_, finished_at| *finished_at >= began);
        self.begin_queued();
    }

    fn start(&mut self, uid: &PodUid, after: Duration) {
        let Some(status) = self.pods.get(uid) else { return };
        let worker = status.termination.run(self.priority_gate.clone());
        let context = self.exporter.as_ref().map(|_| TraceContext::for_pod(uid.as_str()));
        let run = trace_context::scope(context, async move {
            sleep(after).await;
            worker.await
        });
        let id = self.workers.spawn(run).id();
        self.tasks.insert(id, uid.clone());
    }

    fn worker_finished(&mut self, result: Result<(Id, WorkerResult), JoinError>) {
        let (id, outcome) = match result {
            Ok((id, outcome)) => (id, Some(outcome)),
            Err(error) => (error.id(), None),
        };
        self.finished_since += 1;
        let Some(uid) = self.tasks.remove(&id) else { return };
        let Some(status) = self.pods.get_mut(&uid) else { return };
        let pod = status.termination.recorder.pod().clone();
        if !matches!(outcome, Some(WorkerResult::Finished) | None) {
            self.idle_pods.remove_worker(&uid);
        }
        match outcome {
            Some(WorkerResult::Stopping) => {}
            Some(WorkerResult::Kept) => {
                status.state = WorkerState::Kept;
                status.termination.recorder.set_kept();
                // A deletion may have come during the worker's last steps.
                let update = status.termination.updates.borrow().clone();
                let more = update.view.is_deletion_shown();
                if more && !self.context.stopping.is_cancelled() {
                    status.state = WorkerState::Working;
                    self.start(&uid, Duration::ZERO);
                }
            }
            Some(WorkerResult::Finished) => {
                checkpoint::before(JOURNAL, &"forget");
                self.context.journal.forget(&uid);
                // It is durable later. After a crash, the next start finds the pod finished.
                checkpoint::after(JOURNAL, &"forget");
                status.state = WorkerState::Finished;
                self.counters.teardown_finished(&status.termination.recorder);
                tracing::info!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, took = ?rounded(status.termination.recorder.elapsed()), "Teardown finished");
                let is_gone = status.termination.updates.borrow().view.object.is_absent();
                let record = Arc::clone(&status.termination.recorder);
                self.export(&record, Outcome::Finished);
                self.keep_trace(record);
                if is_gone {
                    self.pods.remove(&uid);
                    self.finished.insert(uid.clone(), Instant::now());
                }
                self.record_idle_pod_finished(&uid);
            }
            Some(WorkerResult::FinishedByKubelet) => {
                tracing::info!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "Kubelet has finished the pod");
                self.context.journal.forget(&uid);
                if let Some(status) = self.pods.remove(&uid) {
                    self.export(&status.termination.recorder, Outcome::Finished);
                }
                self.finished.insert(uid, Instant::now());
            }
            Some(WorkerResult::Canceled) => {
                let update = status.termination.updates.borrow().clone();
                let entry = self.context.journal.pod(&uid);
                let why = canceled(&status.termination.recorder, entry.as_ref().map(|entry| entry.stage));
                tracing::warn!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, why = why.as_str(), "Stop request is canceled");
                self.counters.stop_request_canceled();
                if !update.terminates_by_api() {
                    self.context
                        .events
                        .event(&update.view, None, Reason::StopRequestCanceled, &why);
                }
                status.termination.recorder.set_canceled(why);
                let record = Arc::clone(&status.termination.recorder);
                self.export(&record, Outcome::Canceled);
                self.keep_trace(record);
                self.context.journal.forget(&uid);
                self.pods.remove(&uid);
                if let Some(entry) = entry.filter(|entry| !entry.exits.is_empty() || !entry.processes.is_empty()) {
                    self.canceled.insert(uid, (entry.exits, entry.processes));
                }
                // If the API shows that it terminates, that is a new termination with its whole grace period.
                let view = match update.terminates_by_api() {
                    true => update.view,
                    false => Arc::new(update.view.without_object()),
                };
                self.change(view);
            }
            None => {
                self.counters.worker_panicked();
                tracing::error!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "Worker panicked; it is restarted");
                self.start(&uid, AFTER_PANIC);
            }
        }
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

// === impl PodSyncStatus ===

impl PodSyncStatus {
    /// Shortens the grace period at once. Ignores a longer one, and any after the containers stopped: this agent's final delete
    /// sets it to 0.
    fn shorten(&self, asked: RequestedGrace) {
        let grace = grace::effective(Some(self.termination.period.grace()), asked);
        if self.termination.shorten(grace) {
            self.termination.record_grace(grace, None);
        }
    }
}

/// Why the stop request of a pod is canceled. `reached` is its stage.
fn canceled(record: &TraceRecorder, reached: Option<Stage>) -> String {
    let spans = record.trace().spans;
    let volumes = if reached >= Some(Stage::Terminated) || spans.iter().any(|span| span.step == Step::Volumes) {
        "; its emptyDir volumes may have been removed"
    } else {
        ""
    };
    format!(
        "a kubelet came before the pod had terminated, or may have, and restarts it{volumes}: delete it with kubectl"
    )
}
