//! Pods that may have nothing on the node: they are checked together, and the few workers of those without anything only send a
//! status and the final delete.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{task::JoinError, time::timeout};

use super::{PodState, PodWorkers, Terminating};
use crate::{
    model::{
        pod::{FULL_NODE, PodUid, PodView},
        termination::{self, Cause},
    },
    why::Why,
    workers::{
        artifacts,
        stop::{PodStop, StopRejected},
    },
};

/// Longest check of the node: terminating pods wait for it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of workers of pods that have nothing on the node.
const MAX_WORKERS: usize = 16;

// === impl PodWorkers ===

impl PodWorkers {
    /// Adds the pod to the next check of the node. On an overfull node only its outline is kept.
    pub(super) fn check_later(&mut self, view: Arc<PodView>) {
        let is_unchecked = |pod: &&PodState| matches!(pod, PodState::Unchecked { .. });
        let view = match self.pods.values().filter(is_unchecked).count() < FULL_NODE {
            true => view,
            false => Arc::new(view.outline()),
        };
        let (uid, in_check) = (view.pod.uid.clone(), false);
        self.pods.insert(uid, PodState::Unchecked { view, in_check });
        self.check_node();
    }

    /// Begins a check of the node for all waiting pods, unless one is in progress.
    fn check_node(&mut self) {
        if !self.check.is_empty() {
            return;
        }
        let mut has_pods = false;
        for pod in self.pods.values_mut() {
            if let PodState::Unchecked { in_check, .. } = pod {
                (*in_check, has_pods) = (true, true);
            }
        }
        if !has_pods {
            return;
        }
        let context = Arc::clone(&self.context);
        self.check.spawn(async move {
            let names = timeout(CHECK_TIMEOUT, artifacts::names_on_node(&context)).await;
            names.unwrap_or_else(|_| Err(format!("it takes longer than {CHECK_TIMEOUT:?}").into()))
        });
    }

    /// Begins the termination of pods that have something on the node, and of all if the check failed. Of the others, deleted
    /// ones are queued, and the rest is idle.
    pub(super) fn node_is_checked(&mut self, found: Result<Result<HashSet<PodUid>, Why>, JoinError>) {
        let found = found.unwrap_or_else(|error| Err(Why::new(error)));
        let found =
            found.inspect_err(|error| tracing::warn!(%error, "Node cannot be checked for pods that do not run"));
        let checked = self.pods.values().filter_map(|pod| match pod {
            PodState::Unchecked { view, in_check: true } => Some(Arc::clone(view)),
            _ => None,
        });
        let checked: Vec<_> = checked.collect();
        for view in checked {
            let uid = view.pod.uid.clone();
            if found.as_ref().is_ok_and(|found| !found.contains(&uid)) {
                tracing::debug!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, "Pod has nothing on the node");
                let state = match view.deletion {
                    Some(_) => PodState::Queued(Arc::new(view.outline())),
                    None => PodState::Idle(view.pod.clone()),
                };
                self.pods.insert(uid, state);
            } else {
                self.begin_by_object(&view);
            }
        }
        self.check_node();
        self.begin_queued();
    }

    /// Starts workers for queued pods.
    pub(super) fn begin_queued(&mut self) {
        let queued = self.pods.values().filter_map(|pod| match pod {
            PodState::Queued(view) => Some(Arc::clone(view)),
            _ => None,
        });
        let queued: Vec<_> = queued.take(self.free_workers()).collect();
        for view in queued {
            self.begin_by_object(&view);
        }
    }

    /// Begins the termination of a pod that waits for a check or a worker, because a user has requested it.
    ///
    /// # Errors
    /// If it has to wait: it has nothing on the node, and the maximum number of workers is busy.
    pub(super) fn begin_waiting(&mut self, uid: &PodUid, stop: &PodStop) -> Result<(), StopRejected> {
        let view = match self.pods.get(uid) {
            Some(PodState::Queued(_)) if self.free_workers() == 0 => {
                let why = "it has nothing on this node, and other such pods are finished first; ask again";
                return Err(stop.rejected(why.to_owned(), false));
            }
            Some(PodState::Unchecked { view, .. } | PodState::Queued(view)) => Arc::clone(view),
            _ => return Ok(()),
        };
        self.begin_by_object(&view);
        Ok(())
    }

    /// Begins the termination of a pod by its object.
    fn begin_by_object(&mut self, view: &Arc<PodView>) {
        let cause = termination::cause(view, false).unwrap_or(Cause::PhaseTerminal);
        self.begin(view, cause, None);
    }

    /// How many workers may start for queued pods. A blocked worker does not count.
    fn free_workers(&self) -> usize {
        let is_busy =
            |pod: &&Terminating| pod.was_queued && pod.termination.recorder.read(|trace| trace.blocked.is_empty());
        MAX_WORKERS.saturating_sub(self.terminating_pods().filter(is_busy).count())
    }
}
