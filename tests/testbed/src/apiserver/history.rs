//! Past writes of one kind, and the events that a watch with a selector gets from them.

use std::sync::Arc;

use super::selector::Selector;
use super::stored::Stored;

/// Type of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The object is new.
    Added,
    /// The object is another.
    Modified,
    /// The object was deleted.
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

// === impl Change ===

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

// === impl Event ===

impl Event {
    /// What a watcher of `prefix` and `selector` hears of this write, if anything: an object that stops to match
    /// is DELETED, one that begins to match is ADDED.
    #[must_use]
    pub fn change_for(&self, prefix: &str, selector: &Selector) -> Option<(Change, Arc<Stored>)> {
        if !self.object.key().starts_with(prefix) {
            return None;
        }
        let after = self.change != Change::Deleted && selector.matches(&self.object);
        let before = self.previous.as_ref().filter(|previous| selector.matches(previous));
        let seen = match (before, after) {
            (None, false) => return None,
            (None, true) => Change::Added,
            (Some(_), true) => Change::Modified,
            (Some(_), false) => Change::Deleted,
        };
        let object = match (seen, self.change, before) {
            (Change::Deleted, Change::Modified, Some(previous)) => Arc::new(previous.at(self.version)),
            _ => Arc::clone(&self.object),
        };
        Some((seen, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::kinds;
    use serde_json::{Value, json};

    fn change_for(before: Option<&str>, after: Option<&str>) -> Option<(&'static str, Value)> {
        let kind = kinds::find("", "v1", "pods").unwrap();
        let state = |node: &str, version| {
            let value = json!({ "metadata": { "name": "a" }, "spec": { "nodeName": node } });
            Arc::new(Stored::new("ns/a", value, version))
        };
        let change = match (before, after) {
            (None, _) => Change::Added,
            (_, Some(_)) => Change::Modified,
            (_, None) => Change::Deleted,
        };
        let event = Event {
            version: 2,
            change,
            object: state(after.or(before).unwrap(), 2),
            previous: before.map(|node| state(node, 1)),
        };
        let selector = Selector::parse(kind, "spec.nodeName=n").unwrap();
        let (change, object) = event.change_for("ns/", &selector)?;
        Some((change.name(), object.value()))
    }

    #[test]
    fn a_selector_decides_on_the_state_before_and_after() {
        let kind_of = |before, after| change_for(before, after).map(|(change, _)| change);
        assert_eq!(kind_of(None, Some("n")), Some("ADDED"));
        assert_eq!(kind_of(Some(""), Some("n")), Some("ADDED"));
        assert_eq!(kind_of(Some("n"), Some("n")), Some("MODIFIED"));
        assert_eq!(kind_of(Some("n"), None), Some("DELETED"));
        assert_eq!(kind_of(Some(""), Some("m")), None);
    }

    #[test]
    fn an_object_that_stops_to_match_is_deleted_as_it_was_with_the_new_version() {
        let (change, object) = change_for(Some("n"), Some("m")).unwrap();
        assert_eq!(change, "DELETED");
        assert_eq!(object["spec"]["nodeName"], "n");
        assert_eq!(object["metadata"]["resourceVersion"], "2");
    }
}
