//! Workers for pods that have nothing on the node, after a check of the node.

use std::{collections::HashSet, sync::Arc};

use tokio::{task::JoinError, time::Instant};

use super::{MANY, PodWorkers};
use crate::{
    memory,
    model::{
        pod::{PodUid, PodView},
        termination::{self, Cause},
    },
};

/// Workers of such pods at a time. Each only sends a status and the final delete.
const AT_ONCE: usize = 16;

// === impl PodWorkers ===

impl PodWorkers {
    /// Pods that have something here get a worker, and so do all if the check has failed. Of the others, deleted ones are
    /// queued, and the rest is idle.
    pub(super) fn node_is_checked(&mut self, found: Result<Result<HashSet<PodUid>, String>, JoinError>) {
        let found = found.unwrap_or_else(|error| Err(error.to_string()));
        let found = found.inspect_err(|error| tracing::warn!(error, "Node cannot be checked for pods that do not run"));
        let checked = std::mem::take(&mut self.absent.in_check);
        let many = checked.len() >= MANY;
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
        if many {
            memory::trim();
        }
    }

    /// Begins the termination of a pod for the reason that its object shows.
    pub(super) fn begin_checked(&mut self, view: Arc<PodView>) {
        let cause = termination::cause(&view, false, false).unwrap_or(Cause::PhaseTerminal);
        self.begin(view, false, cause, None);
    }

    /// Gives workers to queued pods. A worker that was refused something leaves its place to another.
    pub(super) fn begin_queued(&mut self) {
        let goes_on = |uid: &&PodUid| {
            let status = self.pods.get(*uid);
            status.is_some_and(|status| !status.record.is_blocked())
        };
        let busy = self.absent.at_work.iter().filter(goes_on).count();
        for _ in busy..AT_ONCE {
            let Some((uid, view)) = self.absent.queued.pop_first() else {
                return;
            };
            self.absent.at_work.insert(uid);
            self.begin_checked(view);
        }
    }

    /// A worker has done all for a pod. Of one that had nothing on the node only the name is kept while finalizers hold its
    /// object.
    pub(super) fn absent_is_finished(&mut self, uid: &PodUid) {
        if !self.absent.at_work.remove(uid) {
            return;
        }
        if let Some(status) = self.pods.get(uid)
            && !status.update.borrow().removed
        {
            let pod = status.record.pod().clone();
            self.pods.remove(uid);
            self.absent.held.insert(uid.clone(), pod);
        }
        self.begin_queued();
    }

    /// The object of a pod that had nothing on the node is gone.
    pub(super) fn absent_is_gone(&mut self, uid: PodUid) {
        self.absent.held.remove(&uid);
        self.ended.insert(uid, Instant::now());
    }
}
