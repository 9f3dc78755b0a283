//! A pod that waits until something may be touched, and what becomes of it beside a kubelet.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Outcome, PodUpdate, Worker};
use crate::{
    model::{
        pod::PodView,
        trace::{Blocked, Step},
    },
    node::mounts::MountTable,
    teardown::{
        context::Context, journal::PodJournalExt as _, places, precedence::First, volumes::is_anything_mounted,
    },
};

/// While the guard holds everything back, it is asked so often whether it still does.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// And so often what a kubelet has left of a pod.
const LOOK_AGAIN_AT_NODE: Duration = Duration::from_secs(30);

impl Worker {
    /// Waits until something may be touched: what is held is not tried, so that nobody is told of failures that were
    /// none. How the worker ends if that does not come: the agent stops, or a kubelet has done the work.
    /// A pod whose object is gone comes first then.
    pub(super) async fn let_go(&self, first: &mut Option<First>) -> Option<Outcome> {
        let mut look = Instant::now();
        let mut updates = self.updates.clone();
        while let Some((reason, why)) = self.context.gate.why_no_new_work() {
            let update = updates.borrow_and_update().clone();
            // A handover names a pod whose stop is in progress, unless the API server shows that the pod does not terminate.
            let is_alive = update.view.object.is_some() && !update.ends_anyway();
            if self.is_cancelled() && (is_alive || !self.context.journal.is_midway(&update.view.pod.uid)) {
                return Some(Outcome::Cancelled);
            }
            if update.removed {
                first.get_or_insert_with(|| self.precedence.first());
            }
            self.record.set_blocked(vec![Blocked::pod(reason, why)]);
            let ended = async {
                sleep(LOOK_AGAIN).await;
                let update = self.updates.borrow().clone();
                let is_midway = self.context.journal.is_midway(&update.view.pod.uid);
                if !(is_midway || self.is_the_kubelets(&update)) || Instant::now() < look {
                    return None;
                }
                look = Instant::now() + LOOK_AGAIN_AT_NODE;
                self.was_ended(&update).await
            };
            tokio::select! {
                biased;
                () = self.context.stopping.cancelled() => return Some(Outcome::Stopping),
                () = self.context.gate.unblocked() => {}
                Ok(()) = updates.changed(), if first.is_none() => {}
                ended = ended => if ended.is_some() { return ended },
            }
        }
        // What has held it up holds it up no more.
        self.record.set_blocked(Vec::new());
        None
    }

    /// What others have made of the pod: whether a kubelet has ended it, and whether one that comes now would have to do
    /// anything again.
    async fn was_ended(&self, update: &PodUpdate) -> Option<Outcome> {
        let observed = self.context.cri.pod_brief(update.view.pod.uid.as_str()).await.ok()?;
        if observed.running().next().is_none() && update.ends_anyway() {
            self.context.journal.is_safe(&update.view.pod.uid);
        }
        // It may have gone meanwhile, and left to us what has come since.
        let is_over = self.is_the_kubelets(update)
            && observed.is_empty()
            && self.is_nothing_left(&update.view).await
            && self.is_the_kubelets(update);
        is_over.then_some(Outcome::EndedByKubelet)
    }

    /// Whether the pod's object is gone beside a kubelet.
    fn is_the_kubelets(&self, update: &PodUpdate) -> bool {
        update.removed && self.context.gate.has_kubelet()
    }

    /// Whether cgroups, mount table and the kubelet's directory show nothing of the pod. What is left when the kubelet goes is this agent's to
    /// end, and the runtime does not tell of all of it.
    async fn is_nothing_left(&self, view: &Arc<PodView>) -> bool {
        let nothing_left = |context: &Context, view: &PodView| {
            let nothing_runs = |cgroup| context.cgroups.processes(&cgroup).is_ok_and(|pids| pids.is_empty());
            let dir = places::dir(context, view)?;
            let is_mounted = |table: Arc<MountTable>| is_anything_mounted(&dir, &table);
            Ok(
                places::cgroups(context, view).all(|cgroup| cgroup.is_ok_and(nothing_runs))
                    && matches!(dir.open(), Ok(None))
                    && context.storage.mounts.read().is_ok_and(|table| !is_mounted(table)),
            )
        };
        self.on_node(view, Step::Cleanup, nothing_left).await.unwrap_or(false)
    }
}
