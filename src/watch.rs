//! Pods of this node: list, watch, and changes.
//!
//! `list → diff → changes ⇄ watch`. The pods of the runtime are compared with them.

mod known;
mod relist;
mod snapshot;
mod source;

pub use self::{
    relist::{Relist, RuntimePodSummary, RuntimePods},
    snapshot::{PodSnapshot, SnapshotHandle},
    source::{PodSource, SourceState, WatchReport},
};
