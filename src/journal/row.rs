//! Rows of the journal.

use crate::model::pod::PodUid;

pub(super) const NODE_UID: &str = "uid";
pub(super) const WATCH: &str = "watch";
pub(super) const HEADER: &str = "header";
pub(super) const PAUSE: &str = "paused";
pub(super) const LAST_ACTIVE: &str = "lastActive";
/// File systems that may still be active after their volume was unstaged.
pub(super) const UNSTAGED: &str = "unstaged";
pub(super) const KUBELET: &str = "kubelet";
pub(super) const APPROVALS: &str = "approvals";

/// A row to write.
#[derive(Debug, Clone)]
pub(super) enum Row {
    Pod(Table, PodUid, Option<Vec<u8>>),
    Node(&'static str, String),
}

/// Tables of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// Terminating pods.
    Terminations,
    /// Pods that the API server has shown.
    SeenPod,
    /// Terminations by the kubelet that were observed.
    Observation,
}
