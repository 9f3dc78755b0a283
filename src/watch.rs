//! Pods of this node: list, watch, and what has changed.
//!
//! `list → diff → changes ⇄ watch`

mod known;
mod source;

use std::sync::Arc;

pub use self::source::{PodSource, SourceState, WatchReport};
use crate::pod::PodView;

/// News about a pod of this node.
#[derive(Debug, Clone)]
pub enum Change {
    /// The pod is there, like this.
    Seen(Arc<PodView>),
    /// Its object is proven to be gone; this is how it was last seen.
    Removed(Arc<PodView>),
}
