//! How far each pod's termination has come: what may not begin again after a crash.

use std::{collections::BTreeMap, time::Duration};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::ends::Ends;
use crate::{
    clock::Mark,
    model::{
        mismatch::{MismatchKind, Release},
        pod::{PodRef, PodUid, PodView},
        termination::Eviction,
        trace::Stage,
    },
};

/// Keeps an entry for each pod that terminates. A restart must find what [`Self::durable`] has vouched for.
pub trait PodJournal: Send + Sync {
    /// Calls `read` with the entry of this pod; not at all if there is none.
    fn read(&self, uid: &PodUid, read: &mut dyn FnMut(&PodEntry));

    /// Calls `change` once with the entry of this pod, and keeps what that makes of it. Durable soon, not at once.
    fn change(&self, uid: &PodUid, change: &mut dyn FnMut(&mut Option<PodEntry>));

    /// All pods that have an entry.
    fn pods(&self) -> Vec<PodRef>;

    /// Returns when all changes so far are durable.
    ///
    /// # Errors
    /// The reason why they are not, or not yet. Callers go on without, so it must not wait longer than a few seconds.
    fn durable(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// What is known of one pod's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodEntry {
    /// For people.
    pub namespace: String,
    /// For people.
    pub name: String,
    /// When this node began to end the pod.
    pub begun: Mark,
    /// The grace period in force, counted from `begun`.
    pub grace: Duration,
    /// It has not begun: nothing was tried with the pod yet, such as beside a kubelet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untouched: bool,
    /// It has not begun: the pod's end waits for others that need it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    /// Its containers were being stopped, and it has come to no safe point since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub midway: bool,
    /// Its claims of dynamic resources were released: the kubelet's checkpoint, which says who has any, is never changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
    /// The end that somebody decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imposed: Option<Eviction>,
    /// What has begun its end, if that is somebody's request, and the API has shown no other reason since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// By container id.
    #[serde(default)]
    pub hooks: BTreeMap<String, HookEntry>,
    /// How far its end has come; for people, since every attempt starts from what is really there.
    #[serde(default)]
    pub stage: Stage,
    /// Containers that were seen to have ended.
    #[serde(default)]
    pub ends: Ends,
    /// The pod as JSON, for one that no API server shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// What somebody has released of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub releases: Vec<Release>,
}

/// A request to stop a pod, of which a kubelet knows nothing: it restarts the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// No kubelet was here since.
    Holds,
    /// A kubelet was here since, or may have been: the pod is that kubelet's.
    Cancelled,
}

/// A preStop hook that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookEntry {
    /// When.
    pub started: Mark,
    /// Once it has ended, well or not, it is never run again.
    pub ended: bool,
}

/// What teardown records, and what it finds again after a restart.
pub trait PodJournalExt: PodJournal {
    /// What is known of a pod's termination.
    fn pod(&self, uid: &PodUid) -> Option<PodEntry> {
        get(self, uid, PodEntry::clone)
    }

    /// Whether the termination of a pod was begun and is not forgotten.
    fn knows(&self, uid: &PodUid) -> bool {
        get(self, uid, |_| ()).is_some()
    }

    /// Pods whose termination was begun and not finished, as far as the journal knows them.
    fn unfinished(&self) -> Vec<PodView> {
        self.pods().into_iter().map(PodView::remembered).collect()
    }

    /// Whether the request to stop this pod was cancelled.
    fn is_cancelled(&self, uid: &PodUid) -> bool {
        request(self, uid) == Some(Request::Cancelled)
    }

    /// Whether this pod's containers were being stopped, and it has come to no safe point since.
    fn is_midway(&self, uid: &PodUid) -> bool {
        get(self, uid, |entry| entry.midway).unwrap_or_default()
    }

    /// How containers of this pod were seen to have ended.
    fn ends(&self, uid: &PodUid) -> Ends {
        get(self, uid, |entry| entry.ends.clone()).unwrap_or_default()
    }

    /// Mismatches of this pod that a user has approved.
    fn releases(&self, uid: &PodUid) -> Vec<Release> {
        get(self, uid, |entry| entry.releases.clone()).unwrap_or_default()
    }

    /// Records that a pod is to end, which begins with [`Self::tries`], that its grace period was shortened, or that
    /// somebody decided on how it ends. Durable soon, not at once.
    fn begin(&self, pod: &PodRef, begun: Mark, grace: Duration, imposed: Option<&Eviction>) {
        self.change(&pod.uid, &mut |entry| match entry {
            Some(entry) => {
                entry.grace = entry.grace.min(grace);
                entry.imposed = imposed.cloned().or(entry.imposed.take());
            }
            None => {
                *entry = Some(PodEntry {
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    begun: begun.clone(),
                    grace,
                    untouched: true,
                    waits: false,
                    midway: false,
                    released: false,
                    imposed: imposed.cloned(),
                    request: None,
                    hooks: BTreeMap::new(),
                    stage: Stage::default(),
                    ends: Ends::new(),
                    manifest: None,
                    releases: Vec::new(),
                });
            }
        });
    }

    /// Records the pod itself, as JSON. Durable soon, not at once.
    fn keep_manifest(&self, uid: &PodUid, manifest: String) {
        update(self, uid, |entry| entry.manifest = Some(manifest));
    }

    /// Records that it is somebody's request that ends the pod. Durable soon, not at once.
    fn requested(&self, uid: &PodUid) {
        update(self, uid, |entry| {
            entry.request.get_or_insert(Request::Holds);
        });
    }

    /// Records that the API shows another reason for the pod's end, while a request for it holds: it is one end. Durable soon,
    /// not at once.
    fn request_is_confirmed(&self, uid: &PodUid) {
        // Asked at each attempt, and most often there is none.
        if request(self, uid) != Some(Request::Holds) {
            return;
        }
        update(self, uid, |entry| {
            entry.request.take_if(|request| *request == Request::Holds);
        });
    }

    /// Records that the pod's end is tried from now on, and that its grace period may run. Durable soon, not at once.
    fn tries(&self, uid: &PodUid, now: Mark) {
        update(self, uid, |entry| {
            if std::mem::take(&mut entry.untouched) && !entry.waits {
                entry.begun = now;
            }
        });
    }

    /// Records that the grace period runs from now on, and not from when the pod was first seen to end: nothing has been done
    /// to it yet. Durable soon, not at once.
    fn counts_from(&self, uid: &PodUid, now: Mark) {
        update(self, uid, |entry| {
            entry.counts_from(now);
        });
    }

    /// Records that the pod is stopped from now on, and is midway with that if any container is left to be, and if that is given,
    /// that the grace period runs from then on. Durable soon, not at once.
    fn stops(&self, uid: &PodUid, is_midway: bool, counts_from: Option<Mark>) {
        update(self, uid, |entry| {
            entry.midway = is_midway;
            if let Some(now) = counts_from {
                entry.counts_from(now);
            }
        });
    }

    /// Records that nothing of the pod is under way which a kubelet that comes now would have to do again, and that the API
    /// shows a reason for the pod's end. Durable soon, not at once.
    fn is_safe(&self, uid: &PodUid) {
        update(self, uid, |entry| {
            entry.midway = false;
            entry.request.take_if(|request| *request == Request::Holds);
        });
    }

    /// Records that the pod's end waits for others, so that the time until it begins is none of its grace, also after a
    /// restart. Since when it does: an earlier run of this agent may have recorded that. Durable soon, not at once.
    fn waits(&self, uid: &PodUid, now: Mark) -> Mark {
        let mut since = now;
        update(self, uid, |entry| {
            if entry.waits {
                since = entry.begun.clone();
            } else {
                (entry.begun, entry.waits) = (since.clone(), true);
            }
        });
        since
    }

    /// Records that the pod's claims were released. Durable soon, not at once.
    fn released(&self, uid: &PodUid) {
        update(self, uid, |entry| {
            entry.released = true;
        });
    }

    /// Records that a hook begins. Returns when that is on the disk.
    fn hook_started(&self, uid: &PodUid, container: &str, started: Mark) -> BoxFuture<'_, Result<(), String>> {
        update(self, uid, |entry| {
            entry
                .hooks
                .insert(container.to_owned(), HookEntry { started, ended: false });
        });
        self.durable()
    }

    /// Records that a hook has ended, well or not. Returns when that is on the disk.
    fn hook_ended(&self, uid: &PodUid, container: &str) -> BoxFuture<'_, Result<(), String>> {
        update(self, uid, |entry| {
            if let Some(hook) = entry.hooks.get_mut(container) {
                hook.ended = true;
            }
        });
        self.durable()
    }

    /// Records how containers have ended, once for each. Durable soon, not at once.
    fn ended(&self, uid: &PodUid, ends: Ends) {
        update(self, uid, |entry| {
            for (id, end) in ends {
                entry.ends.entry(id).or_insert(end);
            }
        });
    }

    /// Records how far a pod's end has come. Durable soon, not at once.
    fn reached(&self, uid: &PodUid, stage: Stage) {
        update(self, uid, |entry| {
            entry.stage = entry.stage.max(stage);
        });
    }

    /// Records that a user has approved a mismatch about this pod. Durable soon, not at once.
    fn release(&self, uid: &PodUid, release: Release) {
        update(self, uid, |entry| {
            // Of volumes each is released by itself.
            let is_of_another = |before: &Release| {
                before.mismatch.kind == MismatchKind::VolumeNotTakenAway && before.mismatch != release.mismatch
            };
            entry
                .releases
                .retain(|before| before.mismatch.kind != release.mismatch.kind || is_of_another(before));
            entry.releases.push(release);
        });
    }

    /// The pod is gone and nothing of it is left.
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
        !(self.untouched || self.waits)
    }

    fn counts_from(&mut self, now: Mark) {
        (self.begun, self.untouched, self.waits) = (now, false, false);
    }

    /// As it is written down.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
