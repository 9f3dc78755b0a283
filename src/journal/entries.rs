//! Entries of the journal besides those of terminating pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    header::Header,
    row::{HEADER, KUBELET, LAST_ACTIVE, PAUSE, Row, UNSTAGED, WATCH},
};
use crate::{
    clock::Mark,
    model::pod::{PodRef, PodUid},
    node::{kubelet_process::flags::KubeletFlags, superblock::FileSystem},
};

/// File systems that may still be active, by the unique name of their volume.
pub(super) type MaybeActive = BTreeMap<String, Vec<FileSystem>>;

/// State of the watch that must survive a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchState {
    /// The highest resourceVersion seen. A complete list with an older one is of a restored etcd.
    pub highest: u64,
    /// Why absence proves nothing.
    #[serde(rename = "held")]
    pub absence_hold_reason: Option<String>,
    /// Since when.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// A user has paused the agent: no termination begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// When it was paused.
    pub since: Timestamp,
    /// Name of the user.
    pub by: String,
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
    #[serde(rename = "ends")]
    pub terminates: bool,
}

// === impl WatchState ===

impl WatchState {
    pub(super) fn row(&self) -> Row {
        Row::Node(WATCH, serde_json::to_string(self).unwrap_or_default())
    }
}

// === impl Paused ===

impl Paused {
    /// Why no termination begins.
    pub fn why(&self) -> String {
        let Self { since, by } = self;
        format!("paused since {since:.0} by {by}, until pod-teardown resume")
    }

    /// The row in the journal, also for an agent that is not paused.
    pub(super) fn row(paused: Option<&Self>) -> Row {
        Row::Node(PAUSE, serde_json::to_string(&paused).unwrap_or_default())
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
