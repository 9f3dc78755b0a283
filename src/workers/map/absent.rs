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
    workers::traces,
};

/// A check of the node that takes longer has failed: pods that terminate wait for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Absent {
    /// Pods that wait for the next check of the node.
    unchecked: BTreeMap<PodUid, Arc<PodView>>,
    /// Pods that the check in progress is for.
    pub in_check: BTreeMap<PodUid, Arc<PodView>>,
    check: JoinSet<Result<HashSet<PodUid>, String>>,
    /// Terminal pods. Nothing is done until they are deleted.
    pub idle: HashMap<PodUid, PodRef>,
    /// Deleted pods that wait for a worker.
    pub queued: BTreeMap<PodUid, Arc<PodView>>,
    /// Deleted pods that have one.
    pub at_work: HashSet<PodUid>,
    /// Pods whose final delete was accepted, and whose objects finalizers hold.
    pub held: HashMap<PodUid, PodRef>,
}

// === impl Absent ===

impl Absent {
    /// Takes a pod out of the waiting lines. Whether it was idle or queued: then nothing of it is on the node.
    pub fn take(&mut self, uid: &PodUid) -> bool {
        self.unchecked.remove(uid);
        self.in_check.remove(uid);
        let was_idle = self.idle.remove(uid).is_some();
        self.queued.remove(uid).is_some() || was_idle
    }

    /// Takes all pods of this name that wait for a check or for a worker.
    pub fn take_named(&mut self, name: &str) -> Vec<Arc<PodView>> {
        let is_named = |_: &PodUid, view: &mut Arc<PodView>| *view.pod.name == *name;
        let unchecked = self.unchecked.extract_if(.., is_named);
        let in_check = self.in_check.extract_if(.., is_named);
        let queued = self.queued.extract_if(.., is_named);
        unchecked.chain(in_check).chain(queued).map(|(_, view)| view).collect()
    }

    /// Whether only a finalizer of another controller still holds the pod's object.
    pub fn is_held(&self, uid: &PodUid) -> bool {
        self.held.contains_key(uid)
    }

    /// Whether nothing is left to do for the pod, unless it is deleted.
    pub fn has_ended(&self, uid: &PodUid) -> bool {
        self.idle.contains_key(uid) || self.held.contains_key(uid)
    }

    /// Pods for which nothing is left to do, unless they are deleted.
    pub fn ended(&self) -> impl Iterator<Item = &PodRef> {
        self.idle.values().chain(self.held.values())
    }

    /// How many are idle, and how many are held by finalizers.
    pub fn counts(&self) -> (usize, usize) {
        (self.idle.len(), self.held.len())
    }

    /// The pod of this name, if it is one of these and has no worker.
    pub fn named(&self, name: &ObjectName) -> Option<PodRef> {
        let queued = self.queued.values().map(|view| &view.pod);
        let mut all = self.ended().chain(queued);
        all.find(|pod| name.names(pod)).cloned()
    }

    /// Keeps a terminal pod that is known to have nothing on the node.
    pub fn keep_idle(&mut self, pod: PodRef) {
        self.idle.insert(pod.uid.clone(), pod);
    }

    /// The next check of the node is for this pod, too. Of more than fill a node only an outline waits for it.
    pub fn check_later(&mut self, view: Arc<PodView>) {
        let view = if self.unchecked.len() < FULL_NODE {
            view
        } else {
            Arc::new(view.outline())
        };
        self.unchecked.insert(view.pod.uid.clone(), view);
    }

    /// The worker of this pod did not finish it: it is a pod like others from now on.
    pub fn is_present(&mut self, uid: &PodUid) {
        self.at_work.remove(uid);
    }

    /// Begins a check of the node for all that wait for it, unless one is in progress.
    pub fn check_node(&mut self, context: &Arc<Context>, journal: &Journal) {
        if self.unchecked.is_empty() || !self.check.is_empty() {
            return;
        }
        self.in_check = std::mem::take(&mut self.unchecked);
        let (context, journal) = (Arc::clone(context), journal.clone());
        self.check.spawn(async move {
            let names = timeout(PATIENCE, traces::names_on_node(&context, &journal)).await;
            names.unwrap_or_else(|_| Err(format!("it takes longer than {PATIENCE:?}")))
        });
    }

    /// What a check has found; never if none is in progress.
    pub async fn checked(&mut self) -> Option<Result<Result<HashSet<PodUid>, String>, JoinError>> {
        self.check.join_next().await
    }
}
