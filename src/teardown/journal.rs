//! What must survive a crash: the state of each pod's termination, and file systems that may still be active.

use std::{collections::BTreeMap, time::Duration};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::exits::Exits;
use crate::{
    clock::Mark,
    model::{
        mismatch::{MismatchApproval, MismatchKind},
        pod::{PodRef, PodUid, PodView},
        termination::Eviction,
        trace::Stage,
    },
    node::superblock::FileSystem,
};

/// Processes kept of one pod. A container may have many below a shim that hangs; they are in the pod's cgroups, too.
const MAX_PROCESSES: usize = 64;

/// Keeps an entry for each terminating pod. A restart must find all changes that [`Self::durable`] has confirmed.
pub trait PodJournal: Send + Sync {
    /// Calls `read` with the entry of this pod, if there is one.
    fn read(&self, uid: &PodUid, read: &mut dyn FnMut(&PodEntry));

    /// Calls `change` once with the entry of this pod, and stores the result. It is durable later.
    fn change(&self, uid: &PodUid, change: &mut dyn FnMut(&mut Option<PodEntry>));

    /// All pods with an entry.
    fn pods(&self) -> Vec<PodRef>;

    /// File systems of this volume, by its unique name, that may still be active without a mount.
    fn maybe_active_file_systems(&self, volume: &str) -> Vec<FileSystem>;

    /// Replaces them; an empty list removes them. It is durable later. A reboot makes them inactive.
    fn set_maybe_active_file_systems(&self, volume: &str, file_systems: Vec<FileSystem>);

    /// Returns when all changes so far are durable.
    ///
    /// # Errors
    /// Why they are not, or not yet. Callers continue without, so it must return within a few seconds.
    fn durable(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// The termination of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEntry {
    /// For people.
    pub namespace: String,
    /// For people.
    pub name: String,
    /// When this node began to terminate the pod.
    pub begun: Mark,
    /// The grace period in force, counted from `begun`.
    pub grace: Duration,
    /// It has not begun: no attempt was made yet, for example while a kubelet runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_attempted: bool,
    /// It has not begun: the pod waits for other pods that need it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_dependents: bool,
    /// Its containers were being stopped, and it has not reached a safe point since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_progress: bool,
    /// Its claims of dynamic resources were unprepared. The kubelet's checkpoint still has them: this agent never changes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claims_unprepared: bool,
    /// The eviction that a user requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
    /// The stop request that began it, until the API shows another reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// By container id.
    #[serde(default)]
    pub hooks: BTreeMap<String, HookEntry>,
    /// For people: every attempt begins with the observed state.
    #[serde(default)]
    pub stage: Stage,
    /// Exited containers.
    #[serde(default)]
    pub exits: Exits,
    /// Processes that the runtime has named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<KnownProcess>,
    /// The pod as JSON, if no API server has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Mismatches that a user has approved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<MismatchApproval>,
}

/// A request to stop a pod. A kubelet does not have it, and restarts the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// No kubelet was seen since.
    Active,
    /// A kubelet was seen since, or may have run: the pod is that kubelet's.
    Canceled,
}

/// A process that the runtime has named, and that is proven to be the pod's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownProcess {
    /// What it is of, such as `container main`.
    pub what: String,
    /// Its PID.
    pub pid: i32,
    /// Its start since boot. With another start it is another process.
    pub start: Duration,
    /// The kernel's ID of the boot.
    pub boot_id: String,
}

/// A preStop hook that has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookEntry {
    /// When it started.
    pub started: Mark,
    /// It has finished or failed, and never runs again.
    pub ended: bool,
}

/// Reads and changes of entries. Changes are durable later unless a method waits for the disk.
pub trait PodJournalExt: PodJournal {
    /// The entry of a pod.
    fn pod(&self, uid: &PodUid) -> Option<PodEntry> {
        get(self, uid, PodEntry::clone)
    }

    /// Whether a pod has an entry.
    fn knows(&self, uid: &PodUid) -> bool {
        get(self, uid, |_| ()).is_some()
    }

    /// Pods with an entry, with as much of them as the journal has.
    fn unfinished(&self) -> Vec<PodView> {
        self.pods().into_iter().map(PodView::identity_only).collect()
    }

    /// Whether the request to stop this pod was canceled.
    fn is_canceled(&self, uid: &PodUid) -> bool {
        request(self, uid) == Some(Request::Canceled)
    }

    /// Whether this pod's containers were being stopped, and it has not reached a safe point since.
    fn is_in_progress(&self, uid: &PodUid) -> bool {
        get(self, uid, |entry| entry.in_progress).unwrap_or_default()
    }

    /// Exited containers of this pod.
    fn exits(&self, uid: &PodUid) -> Exits {
        get(self, uid, |entry| entry.exits.clone()).unwrap_or_default()
    }

    /// Processes that the runtime has named for this pod.
    fn processes(&self, uid: &PodUid) -> Vec<KnownProcess> {
        get(self, uid, |entry| entry.processes.clone()).unwrap_or_default()
    }

    /// Mismatches of this pod that a user has approved.
    fn approvals(&self, uid: &PodUid) -> Vec<MismatchApproval> {
        get(self, uid, |entry| entry.approvals.clone()).unwrap_or_default()
    }

    /// Records that a pod terminates, a shorter grace period, or an eviction. The grace period begins with [`Self::record_attempt`].
    fn record_termination(&self, pod: &PodRef, begun: Mark, grace: Duration, eviction: Option<&Eviction>) {
        self.change(&pod.uid, &mut |entry| match entry {
            Some(entry) => {
                entry.grace = entry.grace.min(grace);
                entry.eviction = eviction.cloned().or(entry.eviction.take());
            }
            None => {
                *entry = Some(PodEntry {
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    begun: begun.clone(),
                    grace,
                    not_attempted: true,
                    waits_for_dependents: false,
                    in_progress: false,
                    claims_unprepared: false,
                    eviction: eviction.cloned(),
                    request: None,
                    hooks: BTreeMap::new(),
                    stage: Stage::default(),
                    exits: Exits::new(),
                    processes: Vec::new(),
                    manifest: None,
                    approvals: Vec::new(),
                });
            }
        });
    }

    /// Records the pod as JSON.
    fn record_manifest(&self, uid: &PodUid, manifest: String) {
        update(self, uid, |entry| entry.manifest = Some(manifest));
    }

    /// Records that only a stop request terminates the pod.
    fn record_request(&self, uid: &PodUid) {
        update(self, uid, |entry| {
            entry.request.get_or_insert(Request::Active);
        });
    }

    /// Clears an active stop request: the API shows another reason for the termination, so it cannot be canceled any more.
    fn clear_stop_request(&self, uid: &PodUid) {
        // Most often there is none.
        if request(self, uid) != Some(Request::Active) {
            return;
        }
        update(self, uid, |entry| {
            entry.request.take_if(|request| *request == Request::Active);
        });
    }

    /// Records an attempt. The grace period begins with the first one, unless the pod waits.
    fn record_attempt(&self, uid: &PodUid, now: Mark) {
        update(self, uid, |entry| {
            if std::mem::take(&mut entry.not_attempted) && !entry.waits_for_dependents {
                entry.begun = now;
            }
        });
    }

    /// Records that the grace period begins now: nothing has been done to the pod before.
    fn record_grace_from(&self, uid: &PodUid, now: Mark) {
        update(self, uid, |entry| entry.begin_grace(now));
    }

    /// Records that the pod is being stopped, whether it is at a safe point, and when its grace period begins, if it does now.
    fn record_stop(&self, uid: &PodUid, is_in_progress: bool, grace_from: Option<Mark>) {
        update(self, uid, |entry| {
            entry.in_progress = is_in_progress;
            if let Some(now) = grace_from {
                entry.begin_grace(now);
            }
        });
    }

    /// Records a safe point: a kubelet that comes now has nothing to do again, and the API shows a reason for the termination.
    fn set_safe_point(&self, uid: &PodUid) {
        update(self, uid, |entry| {
            entry.in_progress = false;
            entry.request.take_if(|request| *request == Request::Active);
        });
    }

    /// Records that the pod waits for others, and its grace period has not begun. Returns since when it waits, also in earlier runs of
    /// this agent.
    fn record_wait(&self, uid: &PodUid, now: Mark) -> Mark {
        let mut since = now;
        update(self, uid, |entry| {
            if entry.waits_for_dependents {
                since = entry.begun.clone();
            } else {
                (entry.begun, entry.waits_for_dependents) = (since.clone(), true);
            }
        });
        since
    }

    /// Records that the pod's claims were unprepared.
    fn record_claims_unprepared(&self, uid: &PodUid) {
        update(self, uid, |entry| {
            entry.claims_unprepared = true;
        });
    }

    /// Records that a hook starts. Returns when it is durable.
    fn hook_started(&self, uid: &PodUid, container: &str, started: Mark) -> BoxFuture<'_, Result<(), String>> {
        update(self, uid, |entry| {
            entry
                .hooks
                .insert(container.to_owned(), HookEntry { started, ended: false });
        });
        self.durable()
    }

    /// Records that a hook has finished or failed. Returns when it is durable.
    fn hook_ended(&self, uid: &PodUid, container: &str) -> BoxFuture<'_, Result<(), String>> {
        update(self, uid, |entry| {
            if let Some(hook) = entry.hooks.get_mut(container) {
                hook.ended = true;
            }
        });
        self.durable()
    }

    /// Records exited containers. The first record of each counts.
    fn record_exits(&self, uid: &PodUid, exits: Exits) {
        update(self, uid, |entry| {
            for (id, exit) in exits {
                entry.exits.entry(id).or_insert(exit);
            }
        });
    }

    /// Records processes of the pod.
    fn record_processes(&self, uid: &PodUid, processes: Vec<KnownProcess>) {
        let mut all = self.processes(uid);
        let before = all.len();
        for process in processes {
            if !all.contains(&process) && all.len() < MAX_PROCESSES {
                all.push(process);
            }
        }
        if all.len() > before {
            update(self, uid, |entry| entry.processes = all);
        }
    }

    /// Records a stage. An earlier stage than the recorded one changes nothing.
    fn record_stage(&self, uid: &PodUid, stage: Stage) {
        update(self, uid, |entry| {
            entry.stage = entry.stage.max(stage);
        });
    }

    /// Records that a user has approved a mismatch about this pod.
    fn record_approval(&self, uid: &PodUid, approval: MismatchApproval) {
        update(self, uid, |entry| {
            // Each volume has its own approval. Otherwise a new approval replaces the one of its kind.
            let is_of_another = |before: &MismatchApproval| {
                before.mismatch.kind == MismatchKind::VolumeNotUnpublished && before.mismatch != approval.mismatch
            };
            entry
                .approvals
                .retain(|before| before.mismatch.kind != approval.mismatch.kind || is_of_another(before));
            entry.approvals.push(approval);
        });
    }

    /// Removes the entry of a finished pod.
    fn forget(&self, uid: &PodUid) {
        self.change(uid, &mut |entry| *entry = None);
    }
}

impl<J: PodJournal + ?Sized> PodJournalExt for J {}

fn get<T>(journal: &(impl PodJournal + ?Sized), uid: &PodUid, get: impl Fn(&PodEntry) -> T) -> Option<T> {
    let mut found = None;
    journal.read(uid, &mut |entry| found = Some(get(entry)));
    found
}

fn request(journal: &(impl PodJournal + ?Sized), uid: &PodUid) -> Option<Request> {
    get(journal, uid, |entry| entry.request).flatten()
}

/// Changes the entry of a pod, if there is one.
fn update(journal: &(impl PodJournal + ?Sized), uid: &PodUid, update: impl FnOnce(&mut PodEntry)) {
    let mut update = Some(update);
    journal.change(uid, &mut |entry| {
        if let Some((entry, update)) = entry.as_mut().zip(update.take()) {
            update(entry);
        }
    });
}

// === impl PodEntry ===

impl PodEntry {
    /// Whether its grace period has begun.
    pub fn has_begun(&self) -> bool {
        !(self.not_attempted || self.waits_for_dependents)
    }

    fn begin_grace(&mut self, now: Mark) {
        (self.begun, self.not_attempted, self.waits_for_dependents) = (now, false, false);
    }

    /// The entry in the journal's format.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
