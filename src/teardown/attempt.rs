//! One attempt to terminate a pod: what its steps share, and what they have found so far.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use k8s_openapi::api::core::v1::PodStatus;
use tokio::{sync::watch, time::Instant};

use super::{
    context::Context, late::report_if_late, limits::StoppedFirst, period::Period, runtime_state::RuntimeState,
};
use crate::{
    journal::JournalError,
    model::{
        failure::Failure,
        pod::{PodObject, PodRef, PodView},
        termination::{self, Eviction},
        trace::{Stage, Step},
    },
    node::{
        checkpoint::{self, JOURNAL},
        cri::types::RuntimePod,
    },
    trace_recorder::TraceRecorder,
};

/// Longest wait for the status of a stopped container, which has its exit code.
pub(super) const AFTER_STOP: Duration = Duration::from_secs(30);

/// An update of a pod. A newer update replaces an older one that the worker has not read.
#[derive(Debug, Clone)]
pub struct PodUpdate {
    /// The pod as it was last seen.
    pub view: Arc<PodView>,
    /// The eviction that a user requested.
    pub eviction: Option<Arc<Eviction>>,
    /// Number of mismatches of this pod that a user has approved.
    pub approvals: u32,
}

/// One pod's worker: what all attempts share.
pub(super) struct Worker {
    pub context: Arc<Context>,
    pub updates: watch::Receiver<PodUpdate>,
    /// The grace period.
    pub period: Arc<Period>,
    /// The teardown trace.
    pub recorder: Arc<TraceRecorder>,
    /// How often the exit code of a container could not be read.
    pub failed_reads: AtomicU32,
    /// Whether the runtime's state or the kernel's counts.
    pub runtime_state: RuntimeState,
}

/// An attempt, with what its steps have found so far.
pub(super) struct Attempt<'w> {
    pub worker: &'w Worker,
    /// Others wait for the stop of this pod.
    pub stopped_first: Option<StoppedFirst>,
    /// The pod when the attempt began, with what its stop needs of the object.
    pub update: PodUpdate,
    /// The pod before its stop.
    pub observed: Observed,
    /// The pod after its stop; until then, as `observed`.
    pub stopped: Observed,
    /// The object is gone, or there is no API server.
    pub is_gone: bool,
    /// The status that the API shows, once this attempt has sent it.
    pub api_status: Option<Box<PodStatus>>,
    /// The API shows that the pod terminates. A kubelet does not restart it.
    pub is_terminal: bool,
    /// Failures that do not keep the node from being cleaned up.
    pub failures: Vec<Failure>,
}

/// The pod in the runtime.
#[derive(Clone)]
pub(super) struct Observed {
    pub pod: Arc<RuntimePod>,
    /// The runtime reports running containers, and the kernel shows that they have exited: `pod` has them as exited.
    pub is_overruled: bool,
}

/// Whether the next step may run.
pub(super) type StepResult = Result<(), Interrupted>;

/// How an attempt ends before all its steps are done.
#[derive(Debug)]
pub(super) enum Interrupted {
    /// It stopped before its next action; nothing failed.
    Yield(YieldReason),
    /// It failed, and is retried.
    Failed(Vec<Failure>),
}

/// Why an attempt stops before its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum YieldReason {
    /// The agent stops.
    Stopping,
    /// Nothing may begin: a kubelet starts or runs, or the agent is paused.
    NoNewWork,
    /// A kubelet came before the pod had terminated, and only a stop request terminates it.
    Canceled,
    /// The pod has terminated, and nobody has deleted it.
    NotDeleted,
}

// === impl Interrupted ===

impl From<Vec<Failure>> for Interrupted {
    fn from(failures: Vec<Failure>) -> Self {
        Self::Failed(failures)
    }
}

// === impl PodUpdate ===

impl PodUpdate {
    /// The first update.
    pub fn new(view: Arc<PodView>, eviction: Option<Eviction>) -> Self {
        Self {
            view,
            eviction: eviction.map(Arc::new),
            approvals: 0,
        }
    }

    /// Whether the pod terminates without a request of a user of this node.
    pub fn terminates_by_api(&self) -> bool {
        termination::cause(&self.view, false).is_some()
    }
}

// === impl Worker ===

impl Worker {
    /// Queries the runtime for the pod. A failure is one of `step`.
    pub async fn query(&self, view: &PodView, step: Step, query_timeout: Duration) -> Result<RuntimePod, Vec<Failure>> {
        let query = self.context.node.cri.pod(view.pod.uid.as_str(), query_timeout);
        let call_name = "query of the pod in the runtime";
        let observed = report_if_late(&self.recorder, (step, ""), call_name, query).await;
        observed.map_err(|error| vec![Failure::new(step, "", error)])
    }

    /// Reads files of the node on a thread, so that a read that hangs delays no other pod. A failure is one of `step`.
    pub async fn on_node<T: Send + 'static>(
        &self,
        view: &Arc<PodView>,
        step: Step,
        read: impl FnOnce(&Context, &PodView) -> Result<T, Vec<Failure>> + Send + 'static,
    ) -> Result<T, Vec<Failure>> {
        let (context, view) = (Arc::clone(&self.context), Arc::clone(view));
        let read = move || read(&context, &view);
        let result = self.context.node.reads.run_blocking(read).await;
        result.unwrap_or_else(|why| Err(vec![Failure::new(step, "", why)]))
    }

    /// The pod's object as the API server has it now. A failure does not show that it is deleted: the watch does.
    pub async fn read_object(&self, pod: &PodRef) -> Result<PodObject, Vec<Failure>> {
        let object = self.context.api.pod(pod).await;
        let object = object.map_err(|error| error.failure(Step::Status))?;
        let not_shown = || Failure::new(Step::Status, "", "a list by the pod's name does not show it");
        Ok(object.ok_or_else(not_shown)?)
    }

    /// Waits until the disk has all changes of the journal. `checkpoint` names them for tests.
    pub async fn sync_journal(&self, checkpoint: &str) -> Result<(), JournalError> {
        checkpoint::before(JOURNAL, &checkpoint);
        let recorded = self.context.journal.durable().await;
        checkpoint::after(JOURNAL, &checkpoint);
        recorded
    }

    /// Waits until the disk has the beginning of the grace period: after a crash it must not begin again. The stop goes on even if
    /// the disk is full.
    pub async fn sync_beginning(&self) {
        if let Err(error) = self.sync_journal("begun").await {
            tracing::error!(%error, "Beginning of the grace period is not recorded: after a crash it would begin again");
        }
    }

    pub fn is_canceled(&self) -> bool {
        self.context.journal.is_canceled(&self.recorder.pod().uid)
    }

    /// Whether the API shows a reason for the termination. A restored etcd may have removed one since the attempt began.
    pub fn terminates_by_api(&self) -> bool {
        self.updates.borrow().terminates_by_api()
    }

    /// Records a safe point if the API shows that the pod `terminates`: a kubelet that starts now repeats no work, and does not
    /// restart the pod. Then the attempt yields to one.
    pub fn record_safe_point(&self, terminates: bool) -> StepResult {
        if terminates {
            self.context.journal.set_safe_point(&self.recorder.pod().uid);
        }
        self.yield_to_kubelet(terminates)
    }

    /// Yields to a kubelet that is about to start if the pod `is_terminal`: no call is in flight. The next attempt continues.
    pub fn yield_to_kubelet(&self, is_terminal: bool) -> StepResult {
        match self.context.node.effects.check_new() {
            Err(_) if is_terminal => Err(Interrupted::Yield(YieldReason::NoNewWork)),
            _ => Ok(()),
        }
    }

    /// A kubelet may have started and exited during the last step.
    pub fn check_not_canceled(&self) -> StepResult {
        match self.is_canceled() {
            true => Err(Interrupted::Yield(YieldReason::Canceled)),
            false => Ok(()),
        }
    }

    /// Stops the clocks that need the gate to be open.
    pub fn pause_runtime_state(&self) {
        self.runtime_state.lock().pause(self.period.deadline(), Instant::now());
        self.recorder.set_runtime_state(None, None);
    }
}

// === impl Attempt ===

impl Attempt<'_> {
    pub fn view(&self) -> &Arc<PodView> {
        &self.update.view
    }

    /// The pod as it was last seen, with its object. It is read from the API if neither has one, such as after a stop request.
    pub async fn latest(&self) -> Result<Arc<PodView>, Vec<Failure>> {
        let latest = Arc::clone(&self.worker.updates.borrow().view);
        for view in [&latest, self.view()] {
            if view.object.last_known().is_some() {
                return Ok(Arc::clone(view));
            }
        }
        let object = self.worker.read_object(&self.view().pod).await?;
        Ok(Arc::new(PodView::whole(object, true)))
    }

    /// Enters a stage, in the trace and the journal.
    pub fn enter_stage(&self, stage: Stage) {
        self.worker.recorder.set_stage(stage);
        let uid = &self.update.view.pod.uid;
        let journal = &self.worker.context.journal;
        journal.update(uid, |entry| entry.stage = entry.stage.max(stage));
    }
}

// === impl Observed ===

impl Observed {
    /// Whether a container may run.
    pub fn runs(&self) -> bool {
        self.pod.possibly_running().next().is_some()
    }
}
