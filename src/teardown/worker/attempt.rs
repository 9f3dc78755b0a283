//! One attempt: the steps of a termination in their order, each after the gate that it has to pass.

use k8s_openapi::api::core::v1::PodStatus;

use super::{MAX_LARGE_KIB, Outcome, PodUpdate, Unfinished, Worker, Yielded, observe::Observed, status::Reported};
use crate::{
    cleanup_throttle::StoppingPod,
    model::{
        failure::{Failure, ok_if_empty},
        pod::PodView,
        trace::{Stage, Step},
    },
    teardown::{
        boundary::Counted,
        final_delete,
        journal::PodJournalExt as _,
        priority_gate::Priority,
        status::{Phase, StatusStage},
    },
};

impl Worker {
    /// Makes one attempt. A pod whose object was too large to keep is read first.
    ///
    /// # Errors
    /// The failures of all steps that failed, or why it yielded. The next attempt may succeed.
    pub(super) async fn attempt(
        &self,
        update: &PodUpdate,
        stopping_pod: &mut Option<StoppingPod>,
        priority: Option<Priority>,
    ) -> Result<Outcome, Unfinished> {
        let kib = update.view.abridged.min(MAX_LARGE_KIB);
        if kib == 0 || update.removed {
            return self.steps(update, stopping_pod, priority).await;
        }
        // It does not wait for a permit: meanwhile the pod may be deleted, or a kubelet may come.
        let Ok(_permit) = self.large.try_acquire_many(kib) else {
            let why = format!(
                "its object is large ({} KiB), and other large pods that are terminating use the {MAX_LARGE_KIB} KiB for \
                 these; it is retried",
                update.view.abridged
            );
            return Err(Failure::new(self.first_step(), "", why).into());
        };
        let view = self.read(&update.view).await?;
        let whole = PodUpdate { view, ..update.clone() };
        Box::pin(self.steps(&whole, stopping_pod, priority)).await
    }

    async fn steps(
        &self,
        update: &PodUpdate,
        stopping_pod: &mut Option<StoppingPod>,
        priority: Option<Priority>,
    ) -> Result<Outcome, Unfinished> {
        let (view, removed) = (&update.view, update.removed);
        let observed = self.observe(update).await?;
        let stopped = self.stop_unless_exited(update, &observed).await?;
        drop(priority);
        self.check_not_cancelled()?;
        // All containers are stopped, by the runtime's report. A kubelet would restart them unless the API shows the termination.
        if !stopped.runs() {
            self.safe_point(self.terminates_by_api())?;
        }
        self.context.cleanup_throttle.progressed();
        self.kill_approved_processes(view, &stopped.pod).await?;
        self.check_nothing_runs(view, &stopped.pod).await?;
        self.unprepare_devices(view, &observed.pod).await?;
        if !removed {
            self.check_exits_are_read(view, &stopped.pod)?;
            self.record_exits(view, &observed.pod, &stopped.pod).await;
        }
        let reported = self.report_stopped(view, removed, &stopped.pod).await?;
        let Reported {
            is_deleted,
            shown,
            mut failures,
        } = reported;
        let is_terminal = self.terminates_by_api() || is_deleted || shown.as_deref().is_some_and(Phase::is_terminal_in);
        self.safe_point(is_terminal)?;
        self.make_stop_durable(view, &observed, &stopped, &failures).await?;

        // Without an API server that accepts the status, the node's memory and secrets are freed all the same.
        failures.extend(self.clean_node(view).await.err().into_iter().flatten());
        ok_if_empty(failures)?;
        self.check_not_cancelled()?;
        self.yield_to_kubelet(is_terminal)?;
        let shown = shown.as_deref();
        let terminated = self.status(view, is_deleted, &stopped.pod, StatusStage::Terminated, shown);
        match terminated.await? {
            None => {}
            Some(_) if view.deletion.is_none() || !self.is_deleted() => return Ok(self.keep(is_terminal)),
            Some(shown) => self.final_delete(view, &shown).await?,
        }
        self.enter_stage(view, Stage::Deleted);
        *stopping_pod = None;
        self.clean_up(view).await?;
        Ok(Outcome::Finished)
    }

    /// A kubelet that starts now repeats no work, and does not restart the pod if the API shows that it `terminates`.
    pub(super) fn safe_point(&self, terminates: bool) -> Result<(), Yielded> {
        if terminates {
            self.context.journal.set_safe_point(&self.recorder.pod().uid);
        }
        self.yield_to_kubelet(terminates)
    }

    /// No call is in flight: a pod that `may_be_left` is left to a kubelet that is about to start. The next attempt continues.
    fn yield_to_kubelet(&self, may_be_left: bool) -> Result<(), Yielded> {
        if may_be_left && self.context.gate.why_no_new_work().is_some() {
            return Err(Yielded::NoNewWork);
        }
        Ok(())
    }

    /// A kubelet may have started and exited during the last step.
    pub(super) fn check_not_cancelled(&self) -> Result<(), Yielded> {
        match self.is_cancelled() {
            true => Err(Yielded::Cancelled),
            false => Ok(()),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.context.journal.is_cancelled(&self.recorder.pod().uid)
    }

    /// Whether the API shows a reason for the termination. A restored etcd may have removed one since the attempt began.
    pub(super) fn terminates_by_api(&self) -> bool {
        self.updates.borrow().terminates_by_api()
    }

    /// Whether the API shows the deletion.
    fn is_deleted(&self) -> bool {
        let update = self.updates.borrow();
        update.removed || update.view.deletion.is_some()
    }

    fn keep(&self, is_terminal: bool) -> Outcome {
        if !is_terminal {
            self.context.journal.set_safe_point(&self.recorder.pod().uid);
        }
        Outcome::Kept
    }

    pub(super) fn enter_stage(&self, view: &PodView, stage: Stage) {
        self.recorder.set_stage(stage);
        self.context.journal.record_stage(&view.pod.uid, stage);
    }

    async fn final_delete(&self, view: &PodView, shown: &PodStatus) -> Result<(), Vec<Failure>> {
        let span = self.recorder.span(Step::Delete, "");
        let result = Box::pin(final_delete::send(&self.context, view, shown)).await;
        span.end(&result);
        let finalizers = result.map_err(|failure| vec![failure])?;
        // A pod with finalizers is deleted again with each retry of its cleanup.
        if !self.recorder.has_finalizers() {
            self.context.events.count(Counted::PodDeleted);
        }
        self.recorder.set_finalizers(finalizers);
        Ok(())
    }

    /// What follows may rely on the stop only once the disk has it.
    async fn make_stop_durable(
        &self,
        view: &PodView,
        observed: &Observed,
        stopped: &Observed,
        failures: &[Failure],
    ) -> Result<(), Unfinished> {
        if stopped.is_overruled {
            // The cgroup shows that the runtime is wrong. After its removal only the journal does.
            self.sync("ends", "that the kernel's state counts").await?;
        }
        if failures.is_empty() {
            self.enter_stage(view, Stage::Terminated);
        } else if let Err(unrecorded) = self.sync_exits(view, &observed.pod, &stopped.pod).await {
            // The API server does not have these exit codes: nothing is removed before the disk has them.
            return Err(Unfinished::Failed([failures, &[unrecorded]].concat()));
        }
        Ok(())
    }
}
