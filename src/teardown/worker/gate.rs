//! Waits while the gate blocks, and detects whether a kubelet finishes the pod meanwhile.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::WorkerResult;
use crate::{
    model::{
        pod::PodView,
        trace::{Obstacle, Step},
    },
    node::{cgroups::PodCgroup, mounts::MountTable},
    teardown::{
        attempt::{PodUpdate, Worker},
        context::Context,
        limits::StoppedFirst,
        locate,
        volumes::is_anything_mounted,
    },
};

/// How often the gate is checked while it blocks.
const GATE_INTERVAL: Duration = Duration::from_secs(1);
/// How often the leftovers of a kubelet are checked meanwhile.
const NODE_INTERVAL: Duration = Duration::from_secs(30);

impl Worker {
    /// Waits until the gate opens: an attempt would only report failures. Returns the worker's outcome if the agent stops, a kubelet has
    /// finished the pod, or its stop request is canceled. Others wait for the stop of a pod whose object is gone: `stopped_first`.
    pub(super) async fn wait_for_gate(&self, stopped_first: &mut Option<StoppedFirst>) -> Option<WorkerResult> {
        let limits = &self.context.limits;
        let mut next_check = Instant::now();
        let mut updates = self.updates.clone();
        while let Err(blocked) = self.context.node.effects.check_new() {
            self.pause_runtime_state();
            let update = updates.borrow_and_update().clone();
            // A handover must still report a pod whose stop is in progress, unless the API shows that the pod does not terminate.
            let is_alive = update.view.object.last_known().is_some() && !update.terminates_by_api();
            if self.is_canceled() && (is_alive || !self.context.journal.is_in_progress(&update.view.pod.uid)) {
                return Some(WorkerResult::Canceled);
            }
            // Once: a kubelet that starts again and again would restart the wait of all other pods.
            if update.view.object.is_absent() && !self.period.has_begun() {
                stopped_first.get_or_insert_with(|| limits.gone_first.token());
            }
            self.recorder.set_blocked(vec![Obstacle::from(&blocked)]);
            let finished = async {
                sleep(GATE_INTERVAL).await;
                let update = self.updates.borrow().clone();
                let is_in_progress = self.context.journal.is_in_progress(&update.view.pod.uid);
                if !(is_in_progress || self.belongs_to_kubelet(&update)) || Instant::now() < next_check {
                    return None;
                }
                next_check = Instant::now() + NODE_INTERVAL;
                self.check_finished_by_kubelet(&update).await
            };
            tokio::select! {
                biased;
                () = self.context.stopping.cancelled() => return Some(WorkerResult::Stopping),
                () = self.context.node.effects.wait_until_open() => {}
                Ok(()) = updates.changed() => {}
                finished = finished => if finished.is_some() { return finished },
            }
        }
        self.recorder.set_blocked(Vec::new());
        if stopped_first.is_none() {
            limits.wait_for_gone().await;
        }
        None
    }

    /// `FinishedByKubelet` if nothing of the pod is left. Records a safe point if a kubelet has nothing to do for the pod again.
    async fn check_finished_by_kubelet(&self, update: &PodUpdate) -> Option<WorkerResult> {
        let (cri, uid) = (&self.context.node.cri, &update.view.pod.uid);
        let runtime_pod = cri.pod_brief(uid.as_str()).await.ok()?;
        if runtime_pod.possibly_running().next().is_none() && update.terminates_by_api() {
            self.context.journal.set_safe_point(uid);
        }
        // The kubelet may have exited meanwhile, with leftovers for this agent.
        let is_finished = self.belongs_to_kubelet(update)
            && runtime_pod.is_empty()
            && self.is_nothing_left(&update.view).await
            && self.belongs_to_kubelet(update);
        is_finished.then_some(WorkerResult::FinishedByKubelet)
    }

    /// Whether a kubelet runs and the pod's object is deleted.
    fn belongs_to_kubelet(&self, update: &PodUpdate) -> bool {
        update.view.object.is_absent()
            && matches!(self.context.node.effects.check(), Err(blocked) if blocked.is_kubelet())
    }

    /// Whether cgroups, mount table and the kubelet's directory show nothing of the pod. The runtime does not show all leftovers.
    async fn is_nothing_left(&self, view: &Arc<PodView>) -> bool {
        let nothing_left = |context: &Context, view: &PodView| {
            let nothing_runs =
                |cgroup: &PodCgroup| context.node.cgroups.processes(cgroup).is_ok_and(|pids| pids.is_empty());
            let dir = locate::pod_dir(context, view)?;
            let is_mounted = |table: Arc<MountTable>| is_anything_mounted(&dir, &table);
            Ok(locate::cgroups(context, view)?.iter().all(nothing_runs)
                && matches!(dir.open(), Ok(None))
                && context.node.storage.mounts.read().is_ok_and(|table| !is_mounted(table)))
        };
        self.on_node(view, Step::Cleanup, nothing_left).await.unwrap_or(false)
    }
}
