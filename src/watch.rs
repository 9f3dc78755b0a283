//! Pods of this node: list, watch, and changes.
//!
//! `list → diff → changes ⇄ watch`. The pods of the runtime are compared with them.

mod known;
mod relist;
mod snapshot;
mod source;

use std::sync::Arc;

pub use self::{
    relist::{Relist, RuntimePodSummary, RuntimePods},
    snapshot::{PodSnapshot, SnapshotHandle},
    source::{PodSource, SourceState, WatchReport},
};
use crate::model::pod::PodView;

/// A change of a pod of this node.
#[derive(Debug, Clone)]
pub struct PodChange {
    /// What happened to the pod.
    pub kind: PodOperation,
    /// The pod now, or as last seen.
    pub view: Arc<PodView>,
}

/// An operation on a pod, as the kubelet names it (kubelet: `pkg/kubelet/types/pod_update.go` `PodOperation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodOperation {
    /// It is new.
    Add,
    /// A field has changed that its termination depends on.
    Update,
    /// Its deletion has begun, or has another grace period.
    Delete,
    /// Any other change, such as of its status or labels.
    Reconcile,
    /// Its object is proven to be deleted.
    Remove,
}

// === impl PodChange ===

impl PodChange {
    /// The pod's object is proven to be deleted.
    pub fn removed(view: Arc<PodView>) -> Self {
        Self {
            kind: PodOperation::Remove,
            view,
        }
    }
}
