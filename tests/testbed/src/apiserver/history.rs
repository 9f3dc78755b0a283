//! Past writes of one kind.

use std::sync::Arc;

use super::selector::Selector;
use super::stored::Stored;

/// Type of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    /// The object is another.
    Modified,
    Deleted,
}

/// One write.
#[derive(Debug, Clone)]
pub struct Event {
    /// The version of the write.
    pub version: u64,
    /// Its type.
    pub change: Change,
    /// The object afterwards; for a removal its last state under the version of the removal.
    pub object: Arc<Stored>,
    /// The object before.
    pub previous: Option<Arc<Stored>>,
}

impl Change {
    /// As a watch names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        }
    }
}

impl Event {
    /// Whether a watcher of `prefix` and `selector` sees this write. No write changes a field that can be selected by.
    pub fn is_seen_by(&self, prefix: &str, selector: &Selector) -> bool {
        self.object.key().starts_with(prefix) && selector.matches(&self.object)
    }
}
