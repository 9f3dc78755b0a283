//! What of each pod's termination must survive a crash, and file systems that may still be active.

use std::time::Duration;

use super::{
    Journal, JournalError,
    contents::{Row, Table},
    pod_entry::{Exits, HookEntry, KnownProcess, PodEntry, Request},
    writer::Write,
};
use crate::{
    clock::Mark,
    model::{
        mismatch::{MismatchApproval, MismatchKind},
        pod::{PodRef, PodUid, PodView},
        termination::Eviction,
    },
    node::superblock::FileSystem,
};

/// Processes kept of one pod. A container may have many below a shim that hangs; they are in the pod's cgroups, too.
const MAX_PROCESSES: usize = 64;

/// A restart finds all changes that [`Self::durable`] has confirmed. Changes are durable later unless a method waits for the disk.
impl Journal {
    /// The entry of a pod.
    pub fn pod(&self, uid: &PodUid) -> Option<PodEntry> {
        self.state.lock().contents.pods.get(uid).cloned()
    }

    /// Reads the entry of a pod; the default if it has none.
    pub fn read<T: Default>(&self, uid: &PodUid, read: impl FnOnce(&PodEntry) -> T) -> T {
        self.state.lock().contents.pods.get(uid).map(read).unwrap_or_default()
    }

    /// Whether a pod has an entry.
    pub fn knows(&self, uid: &PodUid) -> bool {
        self.state.lock().contents.pods.contains_key(uid)
    }

    /// Pods with an entry, with as much of them as the journal has.
    pub fn unfinished(&self) -> Vec<PodView> {
        let state = self.state.lock();
        let view = |(uid, entry): (&PodUid, &PodEntry)| {
            PodView::identity_only(PodRef {
                uid: uid.clone(),
                namespace: entry.namespace.as_str().into(),
                name: entry.name.as_str().into(),
            })
        };
        state.contents.pods.iter().map(view).collect()
    }

    /// Whether the request to stop this pod was canceled.
    pub fn is_canceled(&self, uid: &PodUid) -> bool {
        self.read(uid, |entry| entry.request) == Some(Request::Canceled)
    }

    /// Whether this pod's containers were being stopped, and it has not reached a safe point since.
    pub fn is_in_progress(&self, uid: &PodUid) -> bool {
        self.read(uid, |entry| entry.in_progress)
    }

    /// Exited containers of this pod.
    pub fn exits(&self, uid: &PodUid) -> Exits {
        self.read(uid, |entry| entry.exits.clone())
    }

    /// Mismatches of this pod that a user has approved.
    pub fn approvals(&self, uid: &PodUid) -> Vec<MismatchApproval> {
        self.read(uid, |entry| entry.approvals.clone())
    }

    /// Writes the entry of a pod, or removes it.
    fn write_pod(&self, uid: &PodUid, entry: Option<&PodEntry>) {
        self.send(Write::Row(Row::new(Table::Terminations, uid, entry)));
    }

    /// Changes the entry of a pod, if there is one.
    pub fn update(&self, uid: &PodUid, change: impl FnOnce(&mut PodEntry)) {
        if let Some(entry) = self.state.lock().contents.pods.get_mut(uid) {
            let before = entry.clone();
            change(entry);
            if *entry != before {
                self.write_pod(uid, Some(entry));
            }
        }
    }

    /// Records that a pod terminates, a shorter grace period, or an eviction. The grace period begins with [`Self::record_attempt`].
    pub fn record_termination(&self, pod: &PodRef, begun: Mark, grace: Duration, eviction: Option<&Eviction>) {
        let new = || PodEntry {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            begun,
            grace,
            not_attempted: true,
            ..PodEntry::default()
        };
        let pods = &mut self.state.lock().contents.pods;
        let before = pods.get(&pod.uid).cloned();
        let entry = pods.entry(pod.uid.clone()).or_insert_with(new);
        entry.grace = entry.grace.min(grace);
        entry.eviction = eviction.cloned().or(entry.eviction.take());
        if before.as_ref() != Some(&*entry) {
            self.write_pod(&pod.uid, Some(entry));
        }
    }

    /// Records that only a stop request terminates the pod.
    pub fn record_request(&self, uid: &PodUid) {
        self.update(uid, |entry| {
            entry.request.get_or_insert(Request::Active);
        });
    }

    /// Clears an active stop request: the API shows another reason for the termination, so it cannot be canceled any more.
    pub fn clear_stop_request(&self, uid: &PodUid) {
        // Most often there is none.
        if self.read(uid, |entry| entry.request) == Some(Request::Active) {
            self.update(uid, PodEntry::clear_stop_request);
        }
    }

    /// Records an attempt. The grace period begins with the first one, unless the pod waits.
    pub fn record_attempt(&self, uid: &PodUid, now: Mark) {
        self.update(uid, |entry| {
            if std::mem::take(&mut entry.not_attempted) && !entry.waits_for_dependents {
                entry.begun = now;
            }
        });
    }

    /// Records a safe point: a kubelet that comes now has nothing to do again, and the API shows a reason for the termination.
    pub fn set_safe_point(&self, uid: &PodUid) {
        self.update(uid, |entry| {
            entry.in_progress = false;
            entry.clear_stop_request();
        });
    }

    /// Records that the pod waits for others, and its grace period has not begun. Returns since when it waits, also in earlier runs of
    /// this agent.
    pub fn record_wait(&self, uid: &PodUid, now: Mark) -> Mark {
        let mut since = now;
        self.update(uid, |entry| {
            if entry.waits_for_dependents {
                since = entry.begun.clone();
            } else {
                (entry.begun, entry.waits_for_dependents) = (since.clone(), true);
            }
        });
        since
    }

    /// Records that a hook starts. Returns when it is durable.
    pub async fn hook_started(&self, uid: &PodUid, container: &str, started: Mark) -> Result<(), JournalError> {
        self.update(uid, |entry| {
            let hook = HookEntry { started, ended: false };
            entry.hooks.insert(container.to_owned(), hook);
        });
        self.durable().await
    }

    /// Records that a hook has finished or failed. Returns when it is durable.
    pub async fn hook_ended(&self, uid: &PodUid, container: &str) -> Result<(), JournalError> {
        self.update(uid, |entry| {
            if let Some(hook) = entry.hooks.get_mut(container) {
                hook.ended = true;
            }
        });
        self.durable().await
    }

    /// Records exited containers. The first record of each counts.
    pub fn record_exits(&self, uid: &PodUid, exits: Exits) {
        self.update(uid, |entry| {
            for (id, exit) in exits {
                entry.exits.entry(id).or_insert(exit);
            }
        });
    }

    /// Records processes of the pod.
    pub fn record_processes(&self, uid: &PodUid, processes: Vec<KnownProcess>) {
        self.update(uid, |entry| {
            for process in processes {
                if !entry.processes.contains(&process) && entry.processes.len() < MAX_PROCESSES {
                    entry.processes.push(process);
                }
            }
        });
    }

    /// Records that a user has approved a mismatch about this pod.
    pub fn record_approval(&self, uid: &PodUid, approval: MismatchApproval) {
        self.update(uid, |entry| {
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
    pub fn forget(&self, uid: &PodUid) {
        if self.state.lock().contents.pods.remove(uid).is_some() {
            self.write_pod(uid, None);
        }
    }

    /// Cancels all stop requests of pods that the API does not show as terminating: a kubelet runs or may run, and restarts what
    /// they have stopped.
    pub fn cancel_requests(&self) {
        for (uid, entry) in &mut self.state.lock().contents.pods {
            if entry.request.take_if(|request| *request == Request::Active).is_some() {
                entry.request = Some(Request::Canceled);
                self.write_pod(uid, Some(entry));
            }
        }
    }

    /// All pods whose stop is in progress, as namespace and name.
    pub fn in_progress(&self) -> Vec<String> {
        let state = self.state.lock();
        let entries = state.contents.pods.values().filter(|entry| entry.in_progress);
        entries
            .map(|entry| format!("{}/{}", entry.namespace, entry.name))
            .collect()
    }

    /// File systems of this volume, by its unique name, that may still be active without a mount.
    pub fn maybe_active_file_systems(&self, volume: &str) -> Vec<FileSystem> {
        let file_systems = self.node(|node| node.maybe_active_file_systems.get(volume).cloned());
        file_systems.unwrap_or_default()
    }

    /// Replaces them; an empty list removes them. A reboot makes them inactive.
    pub fn set_maybe_active_file_systems(&self, volume: &str, file_systems: Vec<FileSystem>) {
        self.change_node(|node| {
            if file_systems.is_empty() {
                node.maybe_active_file_systems.remove(volume);
            } else {
                node.maybe_active_file_systems.insert(volume.to_owned(), file_systems);
            }
        });
    }
}
