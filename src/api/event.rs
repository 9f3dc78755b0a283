//! Requests that write events.

use std::sync::Arc;

use bytes::Bytes;

use super::escape::escape;

/// A write of an event.
#[derive(Debug, Clone)]
pub struct EventWrite {
    /// Namespace of the event.
    pub namespace: Arc<str>,
    /// Name of an event that happened again; `None` creates one.
    pub repeated: Option<Arc<str>>,
    /// The event, or a merge patch of it, in JSON.
    pub body: Bytes,
}

// === impl EventWrite ===

impl EventWrite {
    /// Verb, path, content type and body.
    pub(super) fn parts(self) -> (&'static str, String, &'static str, Bytes) {
        let events = format!("/api/v1/namespaces/{}/events", escape(&self.namespace));
        match &self.repeated {
            None => ("POST", events, "application/json", self.body),
            Some(name) => {
                let path = format!("{events}/{}", escape(name));
                ("PATCH", path, "application/merge-patch+json", self.body)
            }
        }
    }
}
