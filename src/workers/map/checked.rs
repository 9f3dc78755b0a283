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
        let checked = std::mem::take(&mut self.absent.in_check);
        let is_large = checked.len() >= MEMORY_BATCH;
        for (uid, view) in checked {
            if found.as_ref().is_ok_and(|found| !found.contains(&uid)) {
                tracing::debug!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, "Pod has nothing on the node");
                if view.deletion.is_some() {
                    self.absent.queued.insert(uid, Arc::new(view.outline()));
                } else {
                    self.absent.idle.insert(uid, view.pod.clone());
                }
            } else {
                self.begin_checked(view);
            }
        }
        self.absent.check_node(&self.context, &self.journal);
        self.begin_queued();
        if is_large {
            memory::trim();
        }
    }

    /// Begins the termination of a pod by its object.
    pub(super) fn begin_checked(&mut self, view: Arc<PodView>) {
        let cause = termination::cause(&view, false, false).unwrap_or(Cause::PhaseTerminal);
        self.begin(view, false, cause, None);
    }

    /// Starts workers for queued pods. A blocked worker does not count.
    pub(super) fn begin_queued(&mut self) {
        let is_active = |uid: &&PodUid| {
            let status = self.pods.get(*uid);
            status.is_some_and(|status| !status.record.is_blocked())
        };
        let busy = self.absent.at_work.iter().filter(is_active).count();
        for _ in busy..MAX_WORKERS {
            let Some((uid, view)) = self.absent.queued.pop_first() else {
                return;
            };
            self.absent.at_work.insert(uid);
            self.begin_checked(view);
        }
    }

    /// A worker has finished a pod. If it had nothing on the node, only its name is kept while finalizers keep its object.
    pub(super) fn absent_is_finished(&mut self, uid: &PodUid) {
        if !self.absent.at_work.remove(uid) {
            return;
        }
        if let Some(status) = self.pods.get(uid)
            && !status.update.borrow().removed
        {
            let pod = status.record.pod().clone();
            self.pods.remove(uid);
            self.absent.finalizing.insert(uid.clone(), pod);
        }
        self.begin_queued();
    }

    /// The object of a pod that had nothing on the node is deleted.
    pub(super) fn absent_is_deleted(&mut self, uid: PodUid) {
        self.absent.finalizing.remove(&uid);
        self.finished.insert(uid, Instant::now());
    }
}
