//! Begins terminations of pods that have nothing on the node, after a check of the node.

use std::{collections::HashSet, sync::Arc};

use tokio::{task::JoinError, time::Instant};

use super::{MEMORY_BATCH, PodWorkers};
use crate::{
    memory,
    model::{
        pod::{PodUid, PodView},
        termination::{self, Cause},
    },
};

/// Maximum number of workers of such pods. Each only sends a status and the final delete.
const MAX_WORKERS: usize = 16;

// === impl PodWorkers ===

impl PodWorkers {
    /// Begins the termination of pods that have something on the node, and of all if the check failed. Of the others, deleted
    /// ones are queued, and the rest is idle.
    pub(super) fn node_is_checked(&mut self, found: Result<Result<HashSet<PodUid>, String>, JoinError>) {
        let found = found.unwrap_or_else(|error| Err(error.to_string()));
        let found = found.inspect_err(|error| tracing::warn!(error, "Node cannot be checked for pods that do not run"));
        let checked = std::mem::take(&mut self.idle_pods.being_checked);
        let is_large = checked.len() >= MEMORY_BATCH;
        for (uid, view) in checked {
            if found.as_ref().is_ok_and(|found| !found.contains(&uid)) {
                tracing::debug!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, "Pod has nothing on the node");
                if view.deletion.is_some() {
                    self.idle_pods.queued.insert(uid, Arc::new(view.outline()));
                } else {
                    self.idle_pods.idle.insert(uid, view.pod.clone());
                }
            } else {
                self.begin_checked(&view);
            }
        }
        self.idle_pods.check_node(&self.context, &self.journal);
        self.begin_queued();
        if is_large {
            memory::trim();
        }
    }

    /// Begins the termination of a pod by its object.
    pub(super) fn begin_checked(&mut self, view: &Arc<PodView>) {
        let cause = termination::cause(view, false).unwrap_or(Cause::PhaseTerminal);
        self.begin(view, cause, None);
    }

    /// Starts workers for queued pods.
    pub(super) fn begin_queued(&mut self) {
        for _ in 0..self.free_workers() {
            let Some((uid, view)) = self.idle_pods.queued.pop_first() else {
                return;
            };
            self.idle_pods.with_worker.insert(uid);
            self.begin_checked(&view);
        }
    }

    /// Begins the termination of a pod that waits for a check or a worker, because a user has requested it.
    ///
    /// # Errors
    /// Why it has to wait: it has nothing on the node, and the maximum number of workers is busy.
    pub(super) fn begin_waiting(&mut self, uid: &PodUid) -> Result<(), String> {
        if let Some(view) = self.idle_pods.take_unchecked(uid) {
            self.begin_checked(&view);
        } else if self.idle_pods.queued.contains_key(uid) {
            if self.free_workers() == 0 {
                return Err(
                    "it has nothing on this node, and other such pods are finished first; ask again".to_owned(),
                );
            }
            if let Some(view) = self.idle_pods.queued.remove(uid) {
                self.idle_pods.with_worker.insert(uid.clone());
                self.begin_checked(&view);
            }
        }
        Ok(())
    }

    /// How many workers may start for queued pods. A blocked worker does not count.
    fn free_workers(&self) -> usize {
        let is_busy = |uid: &&PodUid| {
            let status = self.pods.get(*uid);
            status.is_some_and(|status| !status.termination.recorder.is_blocked())
        };
        MAX_WORKERS.saturating_sub(self.idle_pods.with_worker.iter().filter(is_busy).count())
    }

    /// A worker has finished a pod. If it had nothing on the node, only its name is kept while finalizers keep its object.
    pub(super) fn record_idle_pod_finished(&mut self, uid: &PodUid) {
        if !self.idle_pods.with_worker.remove(uid) {
            return;
        }
        if let Some(status) = self.pods.get(uid)
            && !status.termination.updates.borrow().view.object.is_absent()
        {
            let pod = status.termination.recorder.pod().clone();
            self.pods.remove(uid);
            self.idle_pods.finalizing.insert(uid.clone(), pod);
        }
        self.begin_queued();
    }

    /// The object of a pod that had nothing on the node is deleted.
    pub(super) fn record_idle_pod_deleted(&mut self, uid: PodUid) {
        self.idle_pods.finalizing.remove(&uid);
        self.finished.insert(uid, Instant::now());
    }
}
