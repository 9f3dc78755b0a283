//! What is written about events.

use std::sync::Arc;

use bytes::Bytes;

use super::escape::escape;

/// A request about an event, with its body in JSON.
#[derive(Debug, Clone)]
pub enum EventWrite {
    /// Makes one.
    Create {
        /// Where.
        namespace: Arc<str>,
        /// The event.
        body: Bytes,
    },
    /// Changes one: it happened again.
    Patch {
        /// Where.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
        /// The change, as a merge patch.
        body: Bytes,
    },
}

// === impl EventWrite ===

impl EventWrite {
    /// Verb, path, type of the body, body.
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
