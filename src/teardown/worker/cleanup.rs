//! Cleans the node when nothing of the pod runs: processes, devices, volumes, cgroups, containers and logs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{AFTER_STOP, AttemptError, PodUpdate, Worker, waits::NETWORK_CONFIGURATION};
use crate::{
    model::{
        failure::{Failure, first_message, names_network, ok_if_empty},
        mismatch::{Mismatch, MismatchApproval, MismatchKind},
        pod::PodView,
        trace::Step,
    },
    node::{
        cri::types::RuntimePod,
        effects::Outcome as EffectResult,
        fault::{Cause, Fault},
    },
    teardown::{
        cleanup, devices, evidence,
        journal::PodJournalExt as _,
        late::{LATE, report_if_late},
        locate, user_namespace, volumes,
    },
    trace_context,
};

/// A cleanup that takes longer returns its permit of the cleanup throttle.
const CLEANUP_PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// So long only the network of a pod has to fail until a user is offered to let the object go.
const NETWORK_OFFER_AFTER: Duration = Duration::from_secs(60);

// === impl Worker ===

impl Worker {
    /// Unprepares the pod's devices before the terminal phase, which allows other pods to reserve the claims. It happens once: the driver
    /// may be deleted after that. A pod that runs again may have prepared them again.
    pub(super) async fn unprepare_devices(&self, view: &PodView, runtime_pod: &RuntimePod) -> Result<(), Vec<Failure>> {
        let entry = self.context.journal.pod(&view.pod.uid);
        if entry.is_some_and(|entry| entry.claims_unprepared)
            && !evidence::runs(&self.context, &view.pod.uid, runtime_pod)
        {
            return Ok(());
        }
        let claims = devices::prepared(&self.context, view).await?;
        if claims.is_empty() {
            return Ok(());
        }
        let span = self.recorder.span(Step::Devices, "");
        let result = Box::pin(devices::unprepare(&self.context, view, &claims)).await;
        span.end(&result.as_ref().map_err(|failures| first_message(failures)));
        result?;
        self.context.journal.record_claims_unprepared(&view.pod.uid);
        Ok(())
    }

    /// Unmounts the pod's volumes although its sandbox cannot be stopped, for example without the network plugin, once no process
    /// of the pod is left. Returns the stopped pod if a user has approved that its network stays.
    ///
    /// # Errors
    /// `failures`, with those of the unmount added: the API object still waits for the sandbox. After [`NETWORK_OFFER_AFTER`], one
    /// of them can be approved.
    pub(super) async fn stopped_without_network(
        &self,
        update: &PodUpdate,
        runtime_pod: &RuntimePod,
        mut failures: Vec<Failure>,
    ) -> Result<Arc<RuntimePod>, Vec<Failure>> {
        // A kubelet restarts a pod that only a request has stopped, and that still has its volumes.
        if !self.terminates_by_api() || failures.iter().any(|failure| failure.step != Step::Sandbox) {
            return Err(failures);
        }
        match self.unmount_if_no_process_is_left(update, runtime_pod).await {
            Ok(Some(stopped)) => self.approved_without_network(&update.view, stopped, failures),
            Ok(None) | Err(AttemptError::Yielded(_)) => Err(failures),
            Err(AttemptError::Failed(more)) => {
                failures.extend(more);
                Err(failures)
            }
        }
    }

    /// Nothing of the pod runs, and no volume is left: only its network may be.
    fn approved_without_network(
        &self,
        view: &PodView,
        stopped: Arc<RuntimePod>,
        mut failures: Vec<Failure>,
    ) -> Result<Arc<RuntimePod>, Vec<Failure>> {
        if !failures.iter().all(|failure| names_network(&failure.cause)) {
            return Err(failures);
        }
        let since = self.runtime_state.network_failed_since();
        let sandboxes = stopped
            .sandboxes
            .iter()
            .map(|sandbox| format!("sandbox {}", sandbox.id));
        let mismatch = Mismatch::new(MismatchKind::NetworkNotRemoved, sandboxes);
        let (approvals, boot) = (
            self.context.journal.approvals(&view.pod.uid),
            self.context.node.clock.boot_id(),
        );
        if mismatch.is_approved_by(&approvals, boot) {
            tracing::warn!("Network of the pod is not taken down; the teardown continues, as a user has approved");
            return Ok(stopped);
        }
        if since.elapsed() >= NETWORK_OFFER_AFTER
            && let Some(failure) = failures.first_mut()
        {
            failure.cause += &format!(
                ". Nothing of the pod runs, and no volume is left. Restore the network plugin and its configuration \
                 ({NETWORK_CONFIGURATION}), or approve that the object is deleted without it: pod-teardown approve pod/{}",
                view.pod
            );
            failure.mismatch = Some(mismatch);
        }
        Err(failures)
    }

    async fn unmount_if_no_process_is_left(
        &self,
        PodUpdate { view, .. }: &PodUpdate,
        runtime_pod: &RuntimePod,
    ) -> Result<Option<Arc<RuntimePod>>, AttemptError> {
        let stopped = Arc::new(self.query(view, Step::Volumes, AFTER_STOP).await?);
        self.check_not_canceled()?;
        // For a virtual machine, the runtime shows a ready sandbox.
        if stopped.may_run() {
            return Ok(None);
        }
        self.check_nothing_runs(view, &stopped).await?;
        self.record_safe_point(true)?;
        if !view.object.is_absent() {
            self.record_exits(view, runtime_pod, &stopped).await;
            let durable = self.sync_exits(view, runtime_pod, &stopped).await;
            durable.map_err(|failure| vec![failure])?;
        }
        self.tear_down_volumes(view).await?;
        Ok(Some(stopped))
    }

    /// Volumes first: the content of a memory volume is charged to the cgroup. User IDs last, when no file or process has them.
    pub(super) async fn clean_node(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        self.tear_down_volumes(view).await?;
        let span = self.recorder.span(Step::Cgroup, "");
        let mut failures = Vec::new();
        for cgroup in locate::find_cgroups(&self.context, view).await? {
            let result = self
                .context
                .node
                .cgroups
                .destroy(&cgroup, &self.context.node.effects)
                .await;
            failures.extend(result.err().map(to_failures(Step::Cgroup)).into_iter().flatten());
        }
        let result = ok_if_empty(failures);
        span.end(&result.as_ref().map_err(|failures| first_message(failures)));
        result?;
        let dir = locate::pod_dir(&self.context, view)?;
        user_namespace::release(&dir, view, &self.context.node.effects).await
    }

    async fn tear_down_volumes(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let dir = locate::pod_dir(&self.context, view)?;
        let span = self.recorder.span(Step::Volumes, "");
        let volumes = async || {
            let approved = self.approved_volumes(view);
            let done = volumes::tear_down_approved(&dir, &self.context.node.storage, Arc::clone(&approved)).await;
            done.map(drop)
                .map_err(|faults| volume_failures(view, &faults, &approved))
        };
        let mut result = volumes().await;
        // A process that survived its container may hold a volume.
        if let Err(failures) = &mut result {
            match self.kill_survivors(view).await {
                Ok(EffectResult::Done) => result = volumes().await,
                Ok(EffectResult::Nothing) => {}
                Err(more) => failures.extend(more),
            }
        }
        span.end(&result.as_ref().map_err(|failures| first_message(failures)));
        result
    }

    /// Volumes that count as unpublished without their drivers, by approval.
    fn approved_volumes(&self, view: &PodView) -> volumes::Approved {
        let approvals = self.context.journal.approvals(&view.pod.uid).into_iter();
        let of_volumes = approvals.filter(|MismatchApproval { mismatch, at }| {
            mismatch.kind == MismatchKind::VolumeNotUnpublished && at.boot_id == self.context.node.clock.boot_id()
        });
        Arc::new(of_volumes.flat_map(|approval| approval.mismatch.facts).collect())
    }

    /// Kills all processes in the pod's cgroups.
    pub(super) async fn kill_survivors(&self, view: &PodView) -> Result<EffectResult, Vec<Failure>> {
        let mut killed = EffectResult::Nothing;
        for cgroup in locate::find_cgroups(&self.context, view).await? {
            let result = self
                .context
                .node
                .cgroups
                .kill(&cgroup, &self.context.node.effects)
                .await;
            killed = killed.and(result.map_err(to_failures(Step::Cgroup))?);
        }
        Ok(killed)
    }

    /// Removes containers, sandboxes, logs and the pod's directory, with a permit of the cleanup throttle.
    pub(super) async fn clean_up(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let permit = self.context.cleanup_throttle.permit().await;
        let dir = locate::pod_dir(&self.context, view)?;
        let span = self.recorder.span(Step::Cleanup, "");
        let mut removed = Box::pin(trace_context::scope(
            span.context(),
            cleanup::remove(&self.context, view, &dir),
        ));
        let result = match timeout(CLEANUP_PERMIT_TIMEOUT, &mut removed).await {
            Ok(result) => result,
            Err(_) => {
                // It hangs; another pod may use its permit.
                drop(permit);
                let call_name = "the removal of containers, sandboxes and logs";
                report_if_late(&self.recorder, (Step::Cleanup, ""), LATE, call_name, removed).await
            }
        };
        span.end(&result.as_ref().map_err(|failures| first_message(failures)));
        result
    }
}

/// A volume may wait only for its driver: a user may approve to continue without the driver. One approval is for all such volumes
/// of the pod. It counts once they are unmounted.
fn volume_failures(view: &PodView, faults: &[Fault], approved: &volumes::Approved) -> Vec<Failure> {
    let without_driver = |fault: &Fault| match &fault.cause {
        Cause::DriverFailed { volume, .. } => Some(volume.clone()),
        _ => None,
    };
    let all: BTreeSet<_> = faults.iter().filter_map(without_driver).collect();
    let is_approved = all.is_subset(approved);
    let failure = |fault: &Fault| {
        let failure = fault.failure(Step::Volumes);
        let Cause::DriverFailed { mounted, .. } = &fault.cause else {
            return failure;
        };
        let when = match mounted.is_empty() {
            true => "If the volume is no longer on this node, or its driver never returns, approve",
            false => "Approve, before or after that,",
        };
        let approve = match is_approved {
            true => "It is approved that the agent then continues without the driver".to_owned(),
            false => format!(
                "{when} that the agent continues without the driver: pod-teardown approve pod/{}",
                view.pod
            ),
        };
        let mismatch = Mismatch::new(MismatchKind::VolumeNotUnpublished, all.iter().cloned());
        Failure {
            cause: format!("{}. {approve}", failure.cause),
            mismatch: Some(mismatch).filter(|_| !is_approved),
            ..failure
        }
    };
    faults.iter().map(failure).collect()
}

fn to_failures(step: Step) -> impl Fn(Vec<Fault>) -> Vec<Failure> {
    move |faults| faults.iter().map(|fault| fault.failure(step)).collect()
}
