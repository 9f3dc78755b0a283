//! Entries of the journal besides those of terminating pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{
    header::Header,
    row::{HEADER, KUBELET, LAST_ACTIVE, PAUSE, Row, Table, UNSTAGED, WATCH},
};
use crate::{
    clock::Mark,
    model::{
        observation::Observation,
        pod::{PodRef, PodUid},
    },
    node::{kubelet_process::flags::KubeletFlags, superblock::FileSystem},
};

/// File systems that may still be active, by the unique name of their volume.
pub(super) type MaybeActive = BTreeMap<String, Vec<FileSystem>>;

/// State of the watch that must survive a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchState {
    /// The highest resourceVersion seen. A complete list with an older one is of a restored etcd.
    pub highest: u64,
    /// Why absence proves nothing: the first reason of each kind.
    pub absence_hold_reason: Option<String>,
    /// The kinds of these reasons.
    #[serde(default, deserialize_with = "known_kinds")]
    pub absence_hold_kinds: BTreeSet<AbsenceHoldKind>,
    /// Since when.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// A kind of evidence for which a pod that a list lacks may not have been deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AbsenceHoldKind {
    /// A list is older than a version that was seen before.
    OlderList,
    /// A list was empty.
    EmptyList,
    /// A list lacks many pods.
    MissingPods,
    /// The runtime has many pods that this API server has never shown.
    UnlistedPods,
    /// Another Node was approved.
    OtherNode,
}

/// A user has paused the agent: no termination begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Paused {
    /// When it was paused.
    pub since: Timestamp,
    /// Name of the user.
    pub by: String,
    /// The user's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it ends by itself; `None` if only a user ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A pause as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRecord {
    /// The pause.
    #[serde(flatten)]
    pub paused: Paused,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<PauseTimer>,
}

/// The time limit of a pause. It does not depend on the wall clock, except over a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseTimer {
    /// When it was set.
    pub started: Mark,
    /// How long it runs.
    pub limit: Duration,
}

/// This agent was active, and no kubelet was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastActive {
    /// The last time.
    pub at: Mark,
    /// The kubelet's Lease when it was last seen. No kubelet has renewed it since.
    pub lease: String,
}

/// A pod that the API server has shown on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// It was terminating or removed at the last update.
    #[serde(default)]
    pub terminates: bool,
}

/// An observation of a termination by the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredObservation {
    #[serde(flatten)]
    pub observation: Observation,
    /// The pod was still terminating.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_progress: bool,
    /// Its size in the journal.
    #[serde(skip)]
    pub bytes: usize,
}

/// The kinds that this version knows: the reason has the others, too.
fn known_kinds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<AbsenceHoldKind>, D::Error> {
    let kinds = Vec::<Value>::deserialize(deserializer)?.into_iter();
    Ok(kinds.filter_map(|kind| serde_json::from_value(kind).ok()).collect())
}

// === impl WatchState ===

impl WatchState {
    /// Adds a reason why absence proves nothing, if its kind is new. The others stay as they are, so that a user sees no change
    /// without new evidence.
    #[must_use]
    pub fn with_absence_hold(mut self, reason: Option<(AbsenceHoldKind, String)>) -> Self {
        let Some((kind, text)) = reason else {
            return self;
        };
        if self.absence_hold_kinds.insert(kind) {
            self.absence_hold_reason = Some(match self.absence_hold_reason {
                None => text,
                Some(before) => format!("{before}; {text}"),
            });
        }
        self
    }

    pub(super) fn row(&self) -> Row {
        Row::Node(WATCH, serde_json::to_string(self).unwrap_or_default())
    }
}

// === impl Paused ===

impl Paused {
    /// Why no termination begins.
    pub fn why(&self) -> String {
        format!("paused {}", self.period())
    }

    /// Its beginning and its end.
    pub fn period(&self) -> String {
        let beginning = self.beginning();
        match &self.until {
            Some(until) => format!("{beginning}, until {until:.0} or pod-teardown resume"),
            None => format!("{beginning}, until pod-teardown resume"),
        }
    }

    /// Since when, by whom and why.
    pub fn beginning(&self) -> String {
        let Self { since, by, reason, .. } = self;
        let reason = reason
            .as_ref()
            .map_or_else(String::new, |reason| format!(" ({reason})"));
        format!("since {since:.0} by {by}{reason}")
    }
}

// === impl PauseRecord ===

impl PauseRecord {
    /// A pause that ends after `limit`, if there is one.
    pub fn new(paused: Paused, limit: Option<Duration>, now: &Mark) -> Self {
        let timer = limit.map(|limit| PauseTimer {
            started: now.clone(),
            limit,
        });
        let until = timer.as_ref().map(|timer| timer.end());
        Self {
            paused: Paused { until, ..paused },
            timer,
        }
    }

    /// Time until it ends by itself; zero if it has to end now.
    pub fn remaining(&self, now: &Mark) -> Option<Duration> {
        Some(self.timer.as_ref()?.remaining(now))
    }

    /// Whether the timer was set in another boot, whose clock is lost.
    pub fn is_of_other_boot(&self, now: &Mark) -> bool {
        self.timer
            .as_ref()
            .is_some_and(|timer| timer.started.elapsed(now).is_none())
    }

    /// The row in the journal, also for an agent that is not paused.
    pub(super) fn row(record: Option<&Self>) -> Row {
        Row::Node(PAUSE, serde_json::to_string(&record).unwrap_or_default())
    }
}

// === impl PauseTimer ===

impl PauseTimer {
    /// The end on the wall clock.
    fn end(&self) -> Timestamp {
        self.started.wall.saturating_add(self.limit).unwrap_or(Timestamp::MAX)
    }

    /// After a reboot only the wall clock is left. If it was set back, the pause takes at most its whole time again.
    fn remaining(&self, now: &Mark) -> Duration {
        match self.started.elapsed(now) {
            Some(elapsed) => self.limit.saturating_sub(elapsed),
            None => {
                let left = self.end().duration_since(now.wall);
                Duration::try_from(left).unwrap_or_default().min(self.limit)
            }
        }
    }
}

// === impl LastActive ===

impl LastActive {
    /// The row in the journal, also for an agent that is not active.
    pub(super) fn row(last_active: Option<&Self>) -> Row {
        Row::Node(LAST_ACTIVE, serde_json::to_string(&last_active).unwrap_or_default())
    }
}

// === impl SeenPod ===

impl SeenPod {
    /// The pod with this UID.
    pub fn pod(&self, uid: &PodUid) -> PodRef {
        PodRef {
            uid: uid.clone(),
            namespace: self.namespace.as_str().into(),
            name: self.name.as_str().into(),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

// === impl StoredObservation ===

impl StoredObservation {
    pub(super) fn row(&self) -> Row {
        let uid = PodUid::from(self.observation.uid.as_str());
        Row::Pod(Table::Observation, uid, serde_json::to_vec(self).ok())
    }
}

// === impl Header ===

impl Header {
    pub(super) fn row(&self) -> Row {
        Row::Node(HEADER, serde_json::to_string(self).unwrap_or_default())
    }
}

/// The row of file systems that may still be active.
pub(super) fn maybe_active_row(file_systems: &MaybeActive) -> Row {
    // A path that is not UTF-8 cannot be written. The kernel makes no such path.
    Row::Node(
        UNSTAGED,
        serde_json::to_string(file_systems).unwrap_or_else(|_| "{}".to_owned()),
    )
}

/// The row of the kubelet's flags.
pub(super) fn kubelet_row(kubelet: Option<&KubeletFlags>) -> Row {
    Row::Node(KUBELET, serde_json::to_string(&kubelet).unwrap_or_default())
}
