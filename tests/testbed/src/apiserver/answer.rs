//! What goes back to a client.

use bytes::Bytes;
use serde_json::json;

use super::kinds::Kind;
use super::object;
use super::stored::Stored;

/// A request that was done.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status code.
    pub code: u16,
    /// JSON.
    pub body: Bytes,
    /// What the client is warned of.
    pub warnings: Vec<String>,
}

// === impl Answer ===

impl Answer {
    /// What is encoded already.
    #[must_use]
    pub fn encoded(code: u16, body: Bytes) -> Self {
        let warnings = Vec::new();
        Answer { code, body, warnings }
    }

    /// The same answer with warnings.
    #[must_use]
    pub fn with_warnings(self, warnings: Vec<String>) -> Self {
        Answer { warnings, ..self }
    }

    /// Any JSON.
    #[must_use]
    pub fn json(code: u16, body: &serde_json::Value) -> Self {
        Answer::encoded(code, body.to_string().into())
    }

    /// An object.
    #[must_use]
    pub fn object(code: u16, object: &Stored) -> Self {
        Answer::encoded(code, object.body())
    }

    /// That an object was removed: for some kinds the object, for the others a `Status`.
    #[must_use]
    pub fn removed(kind: &'static Kind, last: &Stored) -> Self {
        if kind.answers_object {
            return Answer::object(200, last);
        }
        let mut details =
            json!({ "name": object::name(&last.value), "kind": kind.resource, "uid": object::uid(&last.value) });
        if !kind.group.is_empty() {
            details["group"] = kind.group.into();
        }
        let status =
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
        Answer::json(200, &status)
    }

    /// That something without an object of its own was done.
    #[must_use]
    pub fn success(code: u16) -> Self {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code });
        Answer::json(code, &status)
    }
}
