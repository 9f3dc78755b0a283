//! Queries what the runtime and the node show of the pod.

use std::{sync::Arc, time::Duration};

use super::{PodUpdate, Worker};
use crate::{
    model::{
        failure::Failure,
        pod::PodView,
        trace::{Stage, Step},
    },
    node::cri::types::RuntimePod,
    teardown::{
        context::Context,
        evidence,
        journal::PodJournalExt as _,
        late::{LATE, report_if_late},
    },
};

/// Longest wait for a container's status before the stop: other containers must not wait for their stop.
const BEFORE_STOP: Duration = Duration::from_secs(2);

/// The pod in the runtime.
pub(super) struct Observed {
    pub pod: Arc<RuntimePod>,
    /// The runtime reports running containers, and the kernel shows that they have exited: `pod` has them as exited.
    pub is_overruled: bool,
}

// === impl Observed ===

impl Observed {
    pub fn runs(&self) -> bool {
        self.pod.possibly_running().next().is_some()
    }
}

// === impl Worker ===

impl Worker {
    /// The pod before its stop.
    ///
    /// # Errors
    /// If the runtime does not answer, or runtime, cgroups and directories do not agree.
    pub(super) async fn observe(&self, update: &PodUpdate) -> Result<Observed, Vec<Failure>> {
        let view = &update.view;
        // Durable together with the beginning of the grace period, and so before anything is stopped.
        self.context
            .journal
            .record_attempt(&view.pod.uid, self.context.node.clock.now());
        let (step, began) = (self.first_step(), self.context.node.clock.now().since_boot);
        let (observed, ()) = tokio::join!(self.query(view, step, BEFORE_STOP), self.sync_beginning());
        let mut observed = observed?;
        self.runtime_state.record_running(&observed, began);
        let is_overruled = self.is_runtime_state_overruled(view, &observed).await;
        if is_overruled {
            observed = observed.with_all_exited();
        }
        let pod = Arc::new(observed);
        let runtime_pod = Arc::clone(&pod);
        self.on_node(view, step, move |context, view| {
            evidence::check_agreement(context, view, step, &runtime_pod)
        })
        .await?;
        Ok(Observed { pod, is_overruled })
    }

    /// Queries the runtime for the pod. A failure is one of `step`.
    pub(super) async fn query(
        &self,
        view: &PodView,
        step: Step,
        query_timeout: Duration,
    ) -> Result<RuntimePod, Vec<Failure>> {
        let query = self.context.node.cri.pod(view.pod.uid.as_str(), query_timeout);
        let observed = report_if_late(
            &self.recorder,
            (step, ""),
            LATE,
            "query of the pod in the runtime",
            query,
        )
        .await;
        observed.map_err(|error| vec![Failure::new(step, "", error)])
    }

    /// Reads files of the node on a thread, so that a read that hangs delays no other pod. A failure is one of `step`.
    pub(super) async fn on_node<T: Send + 'static>(
        &self,
        view: &Arc<PodView>,
        step: Step,
        read: impl FnOnce(&Context, &PodView) -> Result<T, Vec<Failure>> + Send + 'static,
    ) -> Result<T, Vec<Failure>> {
        let (context, view) = (Arc::clone(&self.context), Arc::clone(view));
        let result = self
            .context
            .node
            .reads
            .run_blocking(move || read(&context, &view))
            .await;
        result.unwrap_or_else(|why| Err(vec![Failure::new(step, "", why)]))
    }

    /// The step that an attempt begins with. The containers of a terminated pod are not stopped again.
    pub(super) fn first_step(&self) -> Step {
        match self.recorder.stage() {
            Stage::Terminating => Step::Term,
            Stage::Terminated => Step::Volumes,
            Stage::Deleted | Stage::Finished => Step::Cleanup,
        }
    }
}
