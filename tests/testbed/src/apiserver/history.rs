//! What happened to the objects of one kind, and what a watcher with a selector hears of it.

use std::sync::Arc;

use bytes::Bytes;

use super::kinds::Kind;
use super::selector::Selector;
use super::stored::Stored;

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The object is new.
    Added,
    /// The object is another.
    Modified,
    /// The object is gone.
    Deleted,
}

/// One write.
#[derive(Debug, Clone)]
pub struct Event {
    /// The version of the write.
    pub version: u64,
    /// What it did.
    pub change: Change,
    /// The object afterwards; for a removal its last state under the version of the removal.
    pub object: Arc<Stored>,
    /// The object before.
    pub previous: Option<Arc<Stored>>,
}

// === impl Change ===

impl Change {
    /// How a watch line begins.
    #[must_use]
    pub fn opening(self) -> &'static str {
        match self {
            Change::Added => r#"{"type":"ADDED","object":"#,
            Change::Modified => r#"{"type":"MODIFIED","object":"#,
            Change::Deleted => r#"{"type":"DELETED","object":"#,
        }
    }

    /// The watch line that tells of `body`.
    #[must_use]
    pub fn line(self, body: &[u8]) -> Bytes {
        [self.opening().as_bytes(), body, b"}\n"].concat().into()
    }
}

// === impl Event ===

impl Event {
    /// What a watcher of `prefix` and `selector` hears of this write, if anything: an object that stops to match
    /// is DELETED, one that begins to match is ADDED.
    #[must_use]
    pub fn told(&self, kind: &'static Kind, prefix: &str, selector: &Selector) -> Option<Bytes> {
        if !self.object.key.starts_with(prefix) {
            return None;
        }
        let after = self.change != Change::Deleted && selector.matches(&self.object.value);
        let before = self
            .previous
            .as_deref()
            .filter(|previous| selector.matches(&previous.value));
        let seen = match (before, after) {
            (None, false) => return None,
            (None, true) => Change::Added,
            (Some(_), true) => Change::Modified,
            (Some(_), false) => Change::Deleted,
        };
        if seen == self.change {
            return Some(self.object.line());
        }
        match (seen, before) {
            (Change::Deleted, Some(previous)) => {
                let value = previous.value.clone();
                Some(Stored::new(kind, previous.key.clone(), value, self.version, seen).line())
            }
            (_, _) => Some(seen.line(&self.object.body())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::kinds;
    use serde_json::{Value, json};

    fn told(before: Option<&str>, after: Option<&str>) -> Option<(String, Value)> {
        let kind = kinds::find("", "v1", "pods").unwrap();
        let state = |node: &str, version, change| {
            let value = json!({ "metadata": { "name": "a" }, "spec": { "nodeName": node } });
            Arc::new(Stored::new(kind, "ns/a".to_owned(), value, version, change))
        };
        let change = match (before, after) {
            (None, _) => Change::Added,
            (_, Some(_)) => Change::Modified,
            (_, None) => Change::Deleted,
        };
        let event = Event {
            version: 2,
            change,
            object: state(after.or(before).unwrap(), 2, change),
            previous: before.map(|node| state(node, 1, Change::Added)),
        };
        let selector = Selector::parse(kind, "", "spec.nodeName=n").unwrap();
        let line: Value = serde_json::from_slice(&event.told(kind, "ns/", &selector)?).unwrap();
        Some((line["type"].as_str().unwrap().to_owned(), line["object"].clone()))
    }

    #[test]
    fn a_selector_decides_on_the_state_before_and_after() {
        let kind_of = |before, after| told(before, after).map(|(kind, _)| kind);
        assert_eq!(kind_of(None, Some("n")).as_deref(), Some("ADDED"));
        assert_eq!(kind_of(Some(""), Some("n")).as_deref(), Some("ADDED"));
        assert_eq!(kind_of(Some("n"), Some("n")).as_deref(), Some("MODIFIED"));
        assert_eq!(kind_of(Some("n"), None).as_deref(), Some("DELETED"));
        assert_eq!(kind_of(Some(""), Some("m")), None);
    }

    #[test]
    fn an_object_that_stops_to_match_is_deleted_as_it_was_with_the_new_version() {
        let (change, object) = told(Some("n"), Some("m")).unwrap();
        assert_eq!(change, "DELETED");
        assert_eq!(object["spec"]["nodeName"], "n");
        assert_eq!(object["metadata"]["resourceVersion"], "2");
        assert_eq!(object["kind"], "Pod");
    }
}
