//! Pods that have nothing on the node. There may be thousands of them, as on a node under disk pressure. None comes before a pod
//! that has something here.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{
    journal::Journal,
    model::pod::{FULL_NODE, PodRef, PodUid, PodView},
    object_name::ObjectName,
    teardown::context::Context,
    workers::artifacts,
};

/// Longest check of the node: terminating pods wait for it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Pods that have nothing on the node.
#[derive(Default)]
pub(super) struct IdlePods {
    /// Pods that wait for the next check of the node.
    unchecked: BTreeMap<PodUid, Arc<PodView>>,
    /// Pods of the check in progress.
    pub being_checked: BTreeMap<PodUid, Arc<PodView>>,
    check: JoinSet<Result<HashSet<PodUid>, String>>,
    /// Terminal pods that are not deleted.
    pub idle: HashMap<PodUid, PodRef>,
    /// Deleted pods that wait for a worker.
    pub queued: BTreeMap<PodUid, Arc<PodView>>,
    /// Deleted pods with a worker.
    pub with_worker: HashSet<PodUid>,
    /// Pods whose final delete was accepted, and whose objects are kept by finalizers.
    pub finalizing: HashMap<PodUid, PodRef>,
}

// === impl IdlePods ===

impl IdlePods {
    /// Removes a pod from the queues. `true` if it was idle or queued, and so has nothing on the node.
    pub fn take(&mut self, uid: &PodUid) -> bool {
        self.unchecked.remove(uid);
        self.being_checked.remove(uid);
        let was_idle = self.idle.remove(uid).is_some();
        self.queued.remove(uid).is_some() || was_idle
    }

    /// Pods that wait for a check or a worker.
    pub fn waiting(&self) -> impl Iterator<Item = &Arc<PodView>> {
        let unchecked = self.unchecked.values();
        unchecked.chain(self.being_checked.values()).chain(self.queued.values())
    }

    /// Removes the pod if it waits for a check.
    pub fn take_unchecked(&mut self, uid: &PodUid) -> Option<Arc<PodView>> {
        self.unchecked.remove(uid).or_else(|| self.being_checked.remove(uid))
    }

    /// Whether only a finalizer of another controller keeps the pod's object.
    pub fn is_finalizing(&self, uid: &PodUid) -> bool {
        self.finalizing.contains_key(uid)
    }

    /// Whether nothing is left to do for the pod until it is deleted.
    pub fn is_finished(&self, uid: &PodUid) -> bool {
        self.idle.contains_key(uid) || self.finalizing.contains_key(uid)
    }

    /// Pods for which nothing is left to do until they are deleted.
    pub fn finished_pods(&self) -> impl Iterator<Item = &PodRef> {
        self.idle.values().chain(self.finalizing.values())
    }

    /// Numbers of idle pods and of pods kept by finalizers.
    pub fn counts(&self) -> (usize, usize) {
        (self.idle.len(), self.finalizing.len())
    }

    /// The pod of this name, if it is in one of these lists and has no worker.
    pub fn named(&self, name: &ObjectName) -> Option<PodRef> {
        let queued = self.queued.values().map(|view| &view.pod);
        let mut all = self.finished_pods().chain(queued);
        all.find(|pod| name.names(pod)).cloned()
    }

    /// Adds a terminal pod that has nothing on the node.
    pub fn keep_idle(&mut self, pod: PodRef) {
        self.idle.insert(pod.uid.clone(), pod);
    }

    /// Adds the pod to the next check of the node. On an overfull node only its outline is kept.
    pub fn check_later(&mut self, view: Arc<PodView>) {
        let view = if self.unchecked.len() < FULL_NODE {
            view
        } else {
            Arc::new(view.outline())
        };
        self.unchecked.insert(view.pod.uid.clone(), view);
    }

    /// The worker has not finished this pod: it may have something on the node.
    pub fn remove_worker(&mut self, uid: &PodUid) {
        self.with_worker.remove(uid);
    }

    /// Begins a check of the node for all waiting pods, unless one is in progress.
    pub fn check_node(&mut self, context: &Arc<Context>, journal: &Journal) {
        if self.unchecked.is_empty() || !self.check.is_empty() {
            return;
        }
        self.being_checked = std::mem::take(&mut self.unchecked);
        let (context, journal) = (Arc::clone(context), journal.clone());
        self.check.spawn(async move {
            let names = timeout(CHECK_TIMEOUT, artifacts::names_on_node(&context, &journal)).await;
            names.unwrap_or_else(|_| Err(format!("it takes longer than {CHECK_TIMEOUT:?}")))
        });
    }

    /// The result of the check in progress; never returns if there is none.
    pub async fn wait_for_check(&mut self) -> Option<Result<Result<HashSet<PodUid>, String>, JoinError>> {
        self.check.join_next().await
    }
}
