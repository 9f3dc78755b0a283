//! Pods that have nothing on the node. There may be thousands of them, as on a node under disk pressure. None comes before a pod
//! that has something here.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout},
};

use super::{MANY, PodWorkers};
use crate::{
    journal::Journal,
    memory,
    model::{
        pod::{FULL_NODE, PodRef, PodUid, PodView},
        termination::{self, Cause},
    },
    object_name::ObjectName,
    teardown::context::Context,
    workers::traces,
};

/// Workers of such pods at a time. Each only sends a status and the final delete.
const AT_ONCE: usize = 16;
/// A check of the node that takes longer has failed: pods that terminate wait for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Absent {
    /// Pods that wait for the next check of the node.
    unchecked: BTreeMap<PodUid, Arc<PodView>>,
    /// Pods that the check in progress is for.
    in_check: BTreeMap<PodUid, Arc<PodView>>,
    check: JoinSet<Result<HashSet<PodUid>, String>>,
    /// Terminal pods. Nothing is done until they are deleted.
    idle: HashMap<PodUid, PodRef>,
    /// Deleted pods that wait for a worker.
    queued: BTreeMap<PodUid, Arc<PodView>>,
    /// Deleted pods that have one.
    at_work: HashSet<PodUid>,
    /// Pods whose final delete was accepted, and whose objects finalizers hold.
    held: HashMap<PodUid, PodRef>,
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
