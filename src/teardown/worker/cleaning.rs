//! What is taken off the node once nothing runs: processes that were left, devices, volumes, cgroups, and what the runtime has.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{AFTER_STOP, PodUpdate, Unfinished, Worker};
use crate::{
    model::{
        failure::{Failure, collected, first},
        mismatch::{Mismatch, MismatchKind, Release},
        pod::PodView,
        trace::Step,
    },
    node::{
        cri::types::RuntimePod,
        effects::Outcome as Effect,
        fault::{Cause, Fault},
    },
    teardown::{
        cleanup, devices, evidence,
        journal::PodJournalExt as _,
        late::{LATE, shown_when_late},
        places, user_namespace, volumes,
    },
};

/// A clean-up that takes longer keeps its place no more.
const LONG: Duration = Duration::from_secs(5);

// === impl Worker ===

impl Worker {
    /// Nothing rests on these processes having ended before they have.
    pub(super) async fn kill_released(
        &self,
        view: &Arc<PodView>,
        stopped: &Arc<RuntimePod>,
    ) -> Result<(), Vec<Failure>> {
        let shown = Arc::clone(stopped);
        let released = self.on_node(view, Step::Cgroup, move |context, view| {
            evidence::released(context, view, &shown)
        });
        for cgroup in released.await? {
            tracing::warn!(cgroup = %cgroup.path().display(), "Killing processes of which the runtime knows no container, as somebody has decided");
            let killed = self.context.cgroups.destroy(&cgroup, &self.context.effects).await;
            killed.map(drop).map_err(faults(Step::Cgroup))?;
        }
        Ok(())
    }

    /// A terminal phase lets the claims be given to others. Once released they are nobody's to release again, whose driver
    /// may have ended since; unless somebody has started the pod anew.
    pub(super) async fn release_devices(&self, view: &PodView, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        let entry = self.context.journal.pod(&view.pod.uid);
        if entry.is_some_and(|entry| entry.released) && !evidence::lives(&self.context, &view.pod.uid, observed) {
            return Ok(());
        }
        let claims = devices::prepared(&self.context, view).await?;
        if claims.is_empty() {
            return Ok(());
        }
        let span = self.record.span(Step::Devices, "");
        let result = Box::pin(devices::release(&self.context, view, &claims)).await;
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result?;
        self.context.journal.released(&view.pod.uid);
        Ok(())
    }

    /// Unmounts the pod's volumes although its sandbox cannot be stopped, for example without the network plugin, once no process
    /// of the pod is left. Returns `failures`, with those of the unmount added: the API object still waits for the sandbox.
    pub(super) async fn unmount_without_network_teardown(
        &self,
        update: &PodUpdate,
        observed: &RuntimePod,
        mut failures: Vec<Failure>,
    ) -> Vec<Failure> {
        // A kubelet starts again what only a request has stopped, and that has its volumes still.
        if self.ends_anyway()
            && failures.iter().all(|failure| failure.step == Step::Sandbox)
            && let Err(Unfinished::Failed(more)) = self.unmount_if_no_process_is_left(update, observed).await
        {
            failures.extend(more);
        }
        failures
    }

    async fn unmount_if_no_process_is_left(
        &self,
        PodUpdate { view, removed, .. }: &PodUpdate,
        observed: &RuntimePod,
    ) -> Result<(), Unfinished> {
        let stopped = Arc::new(self.look(view, Step::Volumes, AFTER_STOP).await?);
        self.goes_on()?;
        let shown = Arc::clone(&stopped);
        let is_left = self.on_node(view, Step::Volumes, move |context, view| {
            evidence::is_any_process_left(context, view, &shown)
        });
        if is_left.await? {
            return Ok(());
        }
        self.safe_point(true)?;
        if !removed {
            self.remember_ends(view, observed, &stopped).await;
            let durable = self.ends_are_durable(view, observed, &stopped).await;
            durable.map_err(|failure| vec![failure])?;
        }
        Ok(self.tear_down_volumes(view).await?)
    }

    /// Volumes first: what a memory volume holds is charged to the cgroup. The user ids last, when nothing has them.
    pub(super) async fn clean_node(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        self.tear_down_volumes(view).await?;
        let span = self.record.span(Step::Cgroup, "");
        let mut failures = Vec::new();
        for cgroup in places::find_cgroups(&self.context, view).await? {
            let result = self.context.cgroups.destroy(&cgroup, &self.context.effects).await;
            failures.extend(result.err().map(faults(Step::Cgroup)).into_iter().flatten());
        }
        let result = collected(failures);
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result?;
        let dir = places::dir(&self.context, view)?;
        user_namespace::release(&dir, view, &self.context.effects).await
    }

    async fn tear_down_volumes(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let dir = places::dir(&self.context, view)?;
        let span = self.record.span(Step::Volumes, "");
        let volumes = async || {
            let approved = self.approved_volumes(view);
            let done = volumes::tear_down_approved(&dir, &self.context.storage, approved).await;
            done.map(drop).map_err(|faults| of_volumes(view, &faults))
        };
        let mut result = volumes().await;
        // Who has outlived the containers may be who holds a volume, and is not to live on because of another one.
        if let Err(failures) = &mut result {
            match self.kill_left(view).await {
                Ok(Effect::Done) => result = volumes().await,
                Ok(Effect::Nothing | Effect::Withheld) => {}
                Err(more) => failures.extend(more),
            }
        }
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result
    }

    /// Volumes that somebody has released: they count as taken away without their drivers.
    fn approved_volumes(&self, view: &PodView) -> volumes::Approved {
        let releases = self.context.journal.releases(&view.pod.uid).into_iter();
        let of_volumes = releases.filter(|Release { mismatch, at }| {
            mismatch.kind == MismatchKind::VolumeNotTakenAway && at.boot_id == self.context.clock.boot_id()
        });
        Arc::new(of_volumes.flat_map(|release| release.mismatch.facts).collect())
    }

    /// Kills whatever the containers have left in the pod's cgroup.
    async fn kill_left(&self, view: &PodView) -> Result<Effect, Vec<Failure>> {
        let mut killed = Effect::Nothing;
        for cgroup in places::find_cgroups(&self.context, view).await? {
            let result = self.context.cgroups.kill(&cgroup, &self.context.effects).await;
            killed = killed.and(result.map_err(faults(Step::Cgroup))?);
        }
        Ok(killed)
    }

    /// When nobody waits any more: containers, sandboxes, logs, directory.
    pub(super) async fn clean_up(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let place = self.context.cleanup_throttle.permit().await;
        let dir = places::dir(&self.context, view)?;
        let span = self.record.span(Step::Cleanup, "");
        let mut removed = Box::pin(cleanup::remove(&self.context, view, &dir));
        let result = match timeout(LONG, &mut removed).await {
            Ok(result) => result,
            Err(_) => {
                // It hangs somewhere, and others can be cleaned up in its place.
                drop(place);
                let doing = "the removal of containers, sandboxes and logs";
                shown_when_late(&self.record, (Step::Cleanup, ""), LATE, doing, removed).await
            }
        };
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result
    }
}

/// Where nothing of a volume is mounted, only its driver keeps the pod: that can be settled by a person.
fn of_volumes(view: &PodView, faults: &[Fault]) -> Vec<Failure> {
    let failure = |fault: &Fault| {
        let failure = fault.failure(Step::Volumes);
        let Cause::DriverFailed { volume, .. } = &fault.cause else {
            return failure;
        };
        Failure {
            cause: format!(
                "{}. If the volume is gone from this node, or its driver never comes back, have the pod go on without: \
                 pod-teardown release pod/{}",
                failure.cause, view.pod
            ),
            mismatch: Some(Mismatch::new(MismatchKind::VolumeNotTakenAway, [volume.clone()])),
            ..failure
        }
    };
    faults.iter().map(failure).collect()
}

fn faults(step: Step) -> impl Fn(Vec<Fault>) -> Vec<Failure> {
    move |faults| faults.iter().map(|fault| fault.failure(step)).collect()
}
