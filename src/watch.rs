//! Pods of this node: list, watch, and changes.
//!
//! `list → diff → changes ⇄ watch`.

mod known;
mod source;

pub use self::{
    known::PodSnapshot,
    source::{PodSource, SnapshotHandle, SourceState, WatchReport},
};
