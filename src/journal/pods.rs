//! How far each pod's end has come: what may not begin again after a crash.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Journal, JournalError,
    ends::Ends,
    writer::{Row, Table, Write},
};
use crate::{
    clock::Mark,
    model::{
        mismatch::{MismatchKind, Release},
        pod::{PodRef, PodUid, PodView},
        termination::Imposed,
        trace::Stage,
    },
};

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
    pub imposed: Option<Imposed>,
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
    /// What somebody has released of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub releases: Vec<Release>,
}

/// A request for a pod's end, of which a kubelet knows nothing: it starts containers again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// No kubelet was here since.
    Holds,
    /// One was, or may have been.
    MayBeUndone,
}

/// A preStop hook that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookEntry {
    /// When.
    pub started: Mark,
    /// Once it has ended, well or not, it is never run again.
    pub ended: bool,
}

// === impl Journal ===

impl Journal {
    /// What is known of a pod's end.
    pub fn pod(&self, uid: &PodUid) -> Option<PodEntry> {
        self.lock().pods.get(uid).cloned()
    }

    /// Pods whose end was begun and not finished, as far as the journal knows them.
    pub fn unfinished(&self) -> Vec<PodView> {
        let state = self.lock();
        let view = |(uid, entry): (&PodUid, &PodEntry)| {
            let pod = PodRef {
                uid: uid.clone(),
                namespace: entry.namespace.as_str().into(),
                name: entry.name.as_str().into(),
            };
            PodView::remembered(pod)
        };
        state.pods.iter().map(view).collect()
    }

    /// Whether the end of a pod was begun and is not forgotten.
    pub fn knows(&self, uid: &PodUid) -> bool {
        self.lock().pods.contains_key(uid)
    }

    /// Records that a pod is to end, which begins with [`Self::tries`], that its grace period was shortened, or that
    /// somebody decided on how it ends. Durable soon, not at once.
    pub fn begin(&self, pod: &PodRef, begun: Mark, grace: Duration, imposed: Option<&Imposed>) {
        self.change(&pod.uid, |entry| match entry {
            Some(entry) => {
                entry.grace = entry.grace.min(grace);
                entry.imposed = imposed.cloned().or(entry.imposed.take());
            }
            None => {
                *entry = Some(PodEntry {
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    begun,
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
                    releases: Vec::new(),
                });
            }
        });
    }

    /// Records that it is somebody's request that ends the pod. Durable soon, not at once.
    pub fn requested(&self, uid: &PodUid) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.request.get_or_insert(Request::Holds);
            }
        });
    }

    /// Records that the API shows another reason for the pod's end, while a request for it holds: it is one end. Durable soon,
    /// not at once.
    pub fn request_is_confirmed(&self, uid: &PodUid) {
        // Asked at each attempt, and most often there is none.
        if self.request(uid) != Some(Request::Holds) {
            return;
        }
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.request.take_if(|request| *request == Request::Holds);
            }
        });
    }

    /// Records that a kubelet is here, or may be, which has started again whatever somebody's request has stopped. Durable soon,
    /// not at once.
    pub fn requests_may_be_undone(&self) {
        self.change_all(|entry| {
            let held = entry.request.take_if(|request| *request == Request::Holds).is_some();
            if held {
                entry.request = Some(Request::MayBeUndone);
            }
            held
        });
    }

    /// Whether a kubelet has undone the request for a pod's end, or may have.
    pub fn request_may_be_undone(&self, uid: &PodUid) -> bool {
        self.request(uid) == Some(Request::MayBeUndone)
    }

    fn request(&self, uid: &PodUid) -> Option<Request> {
        self.lock().pods.get(uid)?.request
    }

    /// Whether this pod's containers were being stopped, and it has come to no safe point since.
    pub fn is_midway(&self, uid: &PodUid) -> bool {
        self.lock().pods.get(uid).is_some_and(|entry| entry.midway)
    }

    /// All of those, by namespace and name.
    pub fn midway(&self) -> Vec<String> {
        let state = self.lock();
        let entries = state.pods.values().filter(|entry| entry.midway);
        entries
            .map(|entry| format!("{}/{}", entry.namespace, entry.name))
            .collect()
    }

    /// Records that the pod's end is tried from now on, and that its grace period may run. Durable soon, not at once.
    pub fn tries(&self, uid: &PodUid, now: Mark) {
        self.change(uid, |entry| {
            if let Some(entry) = entry
                && std::mem::take(&mut entry.untouched)
                && !entry.waits
            {
                entry.begun = now;
            }
        });
    }

    /// Records that the grace period runs from now on, and not from when the pod was first seen to end: nothing has been done
    /// to it yet. Durable soon, not at once.
    pub fn counts_from(&self, uid: &PodUid, now: Mark) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.counts_from(now);
            }
        });
    }

    /// Records that the pod is stopped from now on, and is midway with that if any container is left to be, and if that is given,
    /// that the grace period runs from then on. Durable soon, not at once.
    pub fn stops(&self, uid: &PodUid, is_midway: bool, counts_from: Option<Mark>) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.midway = is_midway;
                if let Some(now) = counts_from {
                    entry.counts_from(now);
                }
            }
        });
    }

    /// Records that nothing of the pod is under way which a kubelet that comes now would have to do again, and that the API
    /// shows a reason for the pod's end. Durable soon, not at once.
    pub fn is_safe(&self, uid: &PodUid) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.midway = false;
                entry.request.take_if(|request| *request == Request::Holds);
            }
        });
    }

    /// Records that the pod's end waits for others, so that the time until it begins is none of its grace, also after a
    /// restart. Since when it does: an earlier run of this agent may have recorded that. Durable soon, not at once.
    pub fn waits(&self, uid: &PodUid, now: Mark) -> Mark {
        let mut since = now;
        self.change(uid, |entry| match entry {
            Some(entry) if entry.waits => since = entry.begun.clone(),
            Some(entry) => (entry.begun, entry.waits) = (since.clone(), true),
            None => {}
        });
        since
    }

    /// Records that the pod's claims were released. Durable soon, not at once.
    pub fn released(&self, uid: &PodUid) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.released = true;
            }
        });
    }

    /// Records that a hook begins. Returns when that is on the disk.
    pub async fn hook_started(&self, uid: &PodUid, container: &str, started: Mark) -> Result<(), JournalError> {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry
                    .hooks
                    .insert(container.to_owned(), HookEntry { started, ended: false });
            }
        });
        self.durable().await
    }

    /// Records that a hook has ended, well or not. Returns when that is on the disk.
    pub async fn hook_ended(&self, uid: &PodUid, container: &str) -> Result<(), JournalError> {
        self.change(uid, |entry| {
            if let Some(hook) = entry.as_mut().and_then(|entry| entry.hooks.get_mut(container)) {
                hook.ended = true;
            }
        });
        self.durable().await
    }

    /// Records how containers have ended, once for each. Durable soon, not at once.
    pub fn ended(&self, uid: &PodUid, ends: Ends) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                for (id, end) in ends {
                    entry.ends.entry(id).or_insert(end);
                }
            }
        });
    }

    /// How containers of this pod were seen to have ended.
    pub fn ends(&self, uid: &PodUid) -> Ends {
        let state = self.lock();
        state.pods.get(uid).map(|entry| entry.ends.clone()).unwrap_or_default()
    }

    /// Records how far a pod's end has come. Durable soon, not at once.
    pub fn reached(&self, uid: &PodUid, stage: Stage) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.stage = entry.stage.max(stage);
            }
        });
    }

    /// Records that a user has approved a mismatch about this pod. Durable soon, not at once.
    pub fn release(&self, uid: &PodUid, release: Release) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                // Of volumes each is released by itself.
                let is_of_another = |before: &Release| {
                    before.mismatch.kind == MismatchKind::VolumeNotTakenAway && before.mismatch != release.mismatch
                };
                entry
                    .releases
                    .retain(|before| before.mismatch.kind != release.mismatch.kind || is_of_another(before));
                entry.releases.push(release);
            }
        });
    }

    /// Doubts about this pod that somebody has settled.
    pub fn releases(&self, uid: &PodUid) -> Vec<Release> {
        let state = self.lock();
        state
            .pods
            .get(uid)
            .map(|entry| entry.releases.clone())
            .unwrap_or_default()
    }

    /// The pod is gone and nothing of it is left.
    pub fn forget(&self, uid: &PodUid) {
        self.change(uid, |entry| *entry = None);
    }

    /// Changes what is known of each pod; `change` tells whether it has.
    fn change_all(&self, change: impl Fn(&mut PodEntry) -> bool) {
        let mut state = self.lock();
        for (uid, entry) in &mut state.pods {
            if change(entry) {
                self.send(Write::Row(Row::Pod(Table::Ends, uid.clone(), Some(entry.bytes()))));
            }
        }
    }

    fn change(&self, uid: &PodUid, change: impl FnOnce(&mut Option<PodEntry>)) {
        let mut state = self.lock();
        let before = state.pods.remove(uid);
        let mut entry = before.clone();
        change(&mut entry);
        if let Some(entry) = &entry {
            state.pods.insert(uid.clone(), entry.clone());
        }
        if entry != before {
            self.send(Write::Row(Row::Pod(
                Table::Ends,
                uid.clone(),
                entry.as_ref().map(PodEntry::bytes),
            )));
        }
    }
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

    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
