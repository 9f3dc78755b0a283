//! Requests that write events.

use std::sync::Arc;

use bytes::Bytes;

use super::escape::escape;

/// A write of an event, with its body in JSON.
#[derive(Debug, Clone)]
pub enum EventWrite {
    /// Creates an event.
    Create {
        /// Namespace of the event.
        namespace: Arc<str>,
        /// The event.
        body: Bytes,
    },
    /// Updates an event that happened again.
    Patch {
        /// Namespace of the event.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
        /// Merge patch.
        body: Bytes,
    },
}

// === impl EventWrite ===

impl EventWrite {
    /// Verb, path, content type and body.
    pub(super) fn parts(self) -> (&'static str, String, &'static str, Bytes) {
        let path = |namespace: &str| format!("/api/v1/namespaces/{}/events", escape(namespace));
        match self {
            Self::Create { namespace, body } => ("POST", path(&namespace), "application/json", body),
            Self::Patch { namespace, name, body } => {
                let path = format!("{}/{}", path(&namespace), escape(&name));
                ("PATCH", path, "application/merge-patch+json", body)
            }
        }
    }
}
