//! Pods of this node: list, watch, and what has changed.
//!
//! `list → diff → changes ⇄ watch`; what the runtime holds besides is compared with it.

mod known;
mod relist;
mod roll;
mod source;

use std::sync::Arc;

pub use self::{
    relist::{Relist, RuntimePods, Sighted},
    roll::{Roll, RollCall},
    source::{PodSource, SourceState, WatchReport},
};
use crate::model::pod::PodView;

/// News about a pod of this node.
#[derive(Debug, Clone)]
pub struct Change {
    /// What is new.
    pub kind: Kind,
    /// The pod as it is now, or as it was last seen.
    pub view: Arc<PodView>,
}

/// What is new of a pod, in the kubelet's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It was not known before.
    Add,
    /// Something of it is different that decides how it is taken down.
    Update,
    /// It is being deleted, or with another grace period than before.
    Delete,
    /// Anything else is different: its status, its labels.
    Reconcile,
    /// Its object is proven to be gone.
    Remove,
}

// === impl Change ===

impl Change {
    /// This pod's object is proven to be gone.
    pub fn removed(view: Arc<PodView>) -> Self {
        Self {
            kind: Kind::Remove,
            view,
        }
    }
}
