//! Pods of this node: list, watch, and changes.
//!
//! `list → diff → changes ⇄ watch`.

mod known;
mod snapshot;
mod source;

pub use self::{
    snapshot::{PodSnapshot, SnapshotHandle},
    source::{PodSource, SourceState, WatchReport},
};
