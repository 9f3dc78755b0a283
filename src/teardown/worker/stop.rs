//! Stops the pod's containers and sandboxes, after the pods that need them.

use std::sync::Arc;

use tokio::time::Instant;

use super::{AFTER_STOP, AttemptError, PodUpdate, Worker, observe::Observed};
use crate::{
    model::{
        failure::{Failure, first_message, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    node::{
        checkpoint::{self, JOURNAL},
        cri::types::RuntimePod,
    },
    teardown::{journal::PodJournalExt as _, locate, stop::Stop, volumes},
};

impl Worker {
    /// Stops the pod unless it needs no stop. Returns the pod after that.
    pub(super) async fn stop_unless_exited(
        &self,
        update: &PodUpdate,
        observed: &Observed,
    ) -> Result<Observed, AttemptError> {
        let (pod, is_overruled) = (Arc::clone(&observed.pod), observed.is_overruled);
        if is_overruled || (has_exited_by_itself(update, &pod) && !pod.has_unread_exit()) {
            return Ok(Observed { pod, is_overruled });
        }
        if has_exited_by_itself(update, &pod) {
            let pod = Arc::new(self.query(&update.view, Step::Status, AFTER_STOP).await?);
            return Ok(Observed { pod, is_overruled });
        }
        self.wait_for_dependents(&update.view, &pod).await?;
        self.check_not_canceled()?;
        self.begin_stop(&update.view, &pod);
        self.stop_observed(update, &pod).await
    }

    async fn stop_observed(&self, update: &PodUpdate, runtime_pod: &RuntimePod) -> Result<Observed, AttemptError> {
        let view = &update.view;
        self.runtime_state.begin_stop();
        let stopped = tokio::select! {
            biased;
            stopped = self.stop(update, runtime_pod) => stopped,
            () = self.wait_until_runtime_state_overruled(view) => Ok(()),
        };
        if stopped.is_err() && Instant::now() < self.period.deadline() {
            self.record_named_processes(view).await;
        }
        if let Err(failures) = stopped
            && !(runtime_pod.may_run() && self.overrule_runtime_state_if_exited(view).await)
        {
            let pod = self.stopped_without_network(update, runtime_pod, failures).await?;
            let is_overruled = false;
            return Ok(Observed { pod, is_overruled });
        }
        let stopped = self.query(view, Step::Sandbox, AFTER_STOP).await?;
        let runs = stopped.may_run();
        if !runs {
            self.recorder.set_runtime_state(None, None);
        }
        let is_overruled = runs && self.overrule_runtime_state_if_exited(view).await;
        let pod = Arc::new(if is_overruled {
            stopped.with_all_exited()
        } else {
            stopped.with_exits_from(runtime_pod)
        });
        Ok(Observed { pod, is_overruled })
    }

    /// Sends the pre-stop status at the same time.
    async fn stop(&self, update: &PodUpdate, runtime_pod: &RuntimePod) -> Result<(), Vec<Failure>> {
        let stop = Stop {
            context: &self.context,
            view: &update.view,
            observed: runtime_pod,
            deadline: self.period.subscribe(),
            recorder: &self.recorder,
        };
        // With attached volumes the API keeps the last running container statuses, also in later attempts.
        let has_exited = runtime_pod.possibly_running().next().is_none();
        if update.view.object.is_absent()
            || runtime_pod.is_empty()
            || has_exited && self.may_hold_attached(&update.view).await?
        {
            return ok_if_empty(stop.stop_all().await);
        }
        // The stop does not wait for it. The API server rejects it once it has a newer status.
        let prestop_status = async {
            if let Err(failures) = self.send_prestop_status(&update.view, runtime_pod).await {
                tracing::debug!(failure = %first_message(&failures), "Pre-stop status is not sent");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // No report comes before the stop.
            biased;
            failures = stop.stop_all() => ok_if_empty(failures),
            () = prestop_status => unreachable!("pending never returns"),
        }
    }

    /// Whether attachable volumes of the pod may still be mounted or staged.
    pub(super) async fn may_hold_attached(&self, view: &Arc<PodView>) -> Result<bool, Vec<Failure>> {
        if view.attachable_volumes {
            return Ok(true);
        }
        self.on_node(view, Step::Status, |context, view| {
            let dir = locate::pod_dir(context, view)?;
            Ok(volumes::may_hold_attached(&dir, &context.node.storage.mounts))
        })
        .await
    }

    /// Waits until the disk has the beginning of the grace period: after a crash it must not begin again. The stop goes on even if
    /// the disk is full.
    pub(super) async fn sync_beginning(&self) {
        checkpoint::before(JOURNAL, &"begun");
        let recorded = self.context.journal.durable().await;
        checkpoint::after(JOURNAL, &"begun");
        if let Err(error) = recorded {
            tracing::error!(%error, "Beginning of the grace period is not recorded: after a crash it would begin again");
        }
    }

    /// Begins the grace period. The journal has an earlier time for that, so this does not wait for the disk.
    fn begin_stop(&self, view: &PodView, runtime_pod: &RuntimePod) {
        let grace_from = self.period.begin().then(|| {
            self.recorder.set_grace(self.period.grace(), self.period.end());
            self.context.node.clock.now()
        });
        // If no container runs and the API shows the termination, a kubelet has nothing to do again.
        let is_in_progress = runtime_pod.possibly_running().next().is_some() || !self.terminates_by_api();
        self.context
            .journal
            .record_stop(&view.pod.uid, is_in_progress, grace_from);
    }
}

/// Whether the pod has a terminal phase and nothing of it runs, and so is not stopped.
fn has_exited_by_itself(update: &PodUpdate, runtime_pod: &RuntimePod) -> bool {
    update.view.is_terminal_and_not_deleted() && !update.view.object.is_absent() && !runtime_pod.may_run()
}
