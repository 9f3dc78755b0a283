//! One attempt: the steps of a termination in their order, each after the gate that it has to pass.

use std::{collections::HashSet, sync::Arc};

use k8s_openapi::api::core::v1::PodStatus;

use super::{AttemptError, PodUpdate, Worker, WorkerResult, YieldReason, observe::Observed, status::StatusResult};
use crate::{
    model::{
        failure::{Failure, ok_if_empty},
        pod::{ApiObject, PodView},
        trace::{Stage, Step},
    },
    node::cri::types::RuntimePod,
    teardown::{
        boundary::Counted,
        final_delete,
        journal::PodJournalExt as _,
        large_object,
        priority_gate::Priority,
        status::{Phase, StatusStage},
    },
};

impl Worker {
    /// Makes one attempt.
    ///
    /// # Errors
    /// The failures of all steps that failed, or why it yielded. The next attempt may succeed.
    pub(super) async fn attempt(
        &self,
        update: &PodUpdate,
        priority: Option<Priority>,
    ) -> Result<WorkerResult, AttemptError> {
        // Cleanups of other pods wait meanwhile.
        let stopping_pod = self.context.cleanup_throttle.stopping_pod();
        let observed = self.observe(update).await?;
        let update = &self.for_stop(update, &observed.pod).await?;
        let view = &update.view;
        let stopped = self.stop_unless_exited(update, &observed).await?;
        drop(priority);
        self.check_not_canceled()?;
        // The runtime reports all containers as stopped. A kubelet would restart them unless the API shows the termination.
        if !stopped.runs() {
            self.record_safe_point(self.terminates_by_api())?;
        }
        self.context.cleanup_throttle.progressed();
        self.check_nothing_runs(view, &stopped.pod).await?;
        self.unprepare_devices(view, &observed.pod).await?;
        if !view.object.is_absent() {
            self.check_exits_are_read(view, &stopped.pod).await?;
            self.record_exits(view, &observed.pod, &stopped.pod).await;
        }
        let reported = self.send_stopped_status(view, &stopped.pod).await?;
        let StatusResult {
            is_gone,
            api_status,
            mut failures,
        } = reported;
        let is_terminal =
            self.terminates_by_api() || is_gone || api_status.as_deref().is_some_and(Phase::is_terminal_in);
        self.record_safe_point(is_terminal)?;
        self.make_stop_durable(view, &observed, &stopped, &failures).await?;

        // Without an API server that accepts the status, the node's memory and secrets are freed all the same.
        failures.extend(self.clean_node(view).await.err().into_iter().flatten());
        ok_if_empty(failures)?;
        self.check_not_canceled()?;
        self.yield_if_kubelet_starts(is_terminal)?;
        let api_status = api_status.as_deref();
        let terminated = self.send_status(view, is_gone, &stopped.pod, StatusStage::Terminated, api_status);
        match terminated.await? {
            None => {}
            Some(_) if view.deletion.is_none() || !self.updates.borrow().view.is_deletion_shown() => {
                return Ok(self.retain_pod(is_terminal));
            }
            Some(api_status) => self.final_delete(view, &api_status).await?,
        }
        self.enter_stage(view, Stage::Deleted);
        drop(stopping_pod);
        self.clean_up(view).await?;
        Ok(WorkerResult::Finished)
    }

    /// The update with what the stop needs of an unread object. A large one is not kept: the grace period may be long.
    async fn for_stop(&self, update: &PodUpdate, observed: &RuntimePod) -> Result<PodUpdate, Vec<Failure>> {
        let mut update = update.clone();
        if matches!(update.view.object, ApiObject::Unread) {
            let names: HashSet<&str> = observed.containers.iter().map(|it| &*it.name).collect();
            let project = |object| PodView::for_stop(object, |name| names.contains(name));
            let read = Box::pin(large_object::read(&self.context, &update.view, project)).await;
            update.view = Arc::new(read.map_err(|failure| vec![failure])?.0);
        }
        Ok(update)
    }

    /// A kubelet that starts now repeats no work, and does not restart the pod if the API shows that it `terminates`.
    pub(super) fn record_safe_point(&self, terminates: bool) -> Result<(), YieldReason> {
        if terminates {
            self.context.journal.set_safe_point(&self.recorder.pod().uid);
        }
        self.yield_if_kubelet_starts(terminates)
    }

    /// Yields to a kubelet that is about to start if the pod `is_terminal`: no call is in flight. The next attempt continues.
    fn yield_if_kubelet_starts(&self, is_terminal: bool) -> Result<(), YieldReason> {
        if is_terminal && self.context.gate.why_no_new_work().is_some() {
            return Err(YieldReason::NoNewWork);
        }
        Ok(())
    }

    /// A kubelet may have started and exited during the last step.
    pub(super) fn check_not_canceled(&self) -> Result<(), YieldReason> {
        match self.is_canceled() {
            true => Err(YieldReason::Canceled),
            false => Ok(()),
        }
    }

    pub(super) fn is_canceled(&self) -> bool {
        self.context.journal.is_canceled(&self.recorder.pod().uid)
    }

    /// Whether the API shows a reason for the termination. A restored etcd may have removed one since the attempt began.
    pub(super) fn terminates_by_api(&self) -> bool {
        self.updates.borrow().terminates_by_api()
    }

    fn retain_pod(&self, is_terminal: bool) -> WorkerResult {
        if !is_terminal {
            self.context.journal.set_safe_point(&self.recorder.pod().uid);
        }
        WorkerResult::Kept
    }

    pub(super) fn enter_stage(&self, view: &PodView, stage: Stage) {
        self.recorder.set_stage(stage);
        self.context.journal.record_stage(&view.pod.uid, stage);
    }

    async fn final_delete(&self, view: &PodView, api_status: &PodStatus) -> Result<(), Vec<Failure>> {
        let span = self.recorder.span(Step::Delete, "");
        let result = Box::pin(final_delete::send(&self.context, view, api_status)).await;
        span.end(&result);
        let finalizers = result.map_err(|failure| vec![failure])?;
        // A pod with finalizers is deleted again with each retry of its cleanup.
        if !self.recorder.has_finalizers() {
            self.context.events.count(Counted::PodDeleted);
        }
        self.recorder.set_finalizers(finalizers);
        Ok(())
    }

    /// Waits until the disk has the stop: the next steps rely on it.
    async fn make_stop_durable(
        &self,
        view: &PodView,
        observed: &Observed,
        stopped: &Observed,
        failures: &[Failure],
    ) -> Result<(), AttemptError> {
        if stopped.is_overruled {
            // The cgroup shows that the runtime is wrong. After its removal only the journal does.
            self.sync("exits", "that the kernel's state counts").await?;
        }
        if failures.is_empty() {
            self.enter_stage(view, Stage::Terminated);
        } else if let Err(unrecorded) = self.sync_exits(view, &observed.pod, &stopped.pod).await {
            // The API server does not have these exit codes: nothing is removed before the disk has them.
            return Err(AttemptError::Failed([failures, &[unrecorded]].concat()));
        }
        Ok(())
    }
}
