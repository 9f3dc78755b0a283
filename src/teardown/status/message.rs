//! Termination messages, joined with the runtime's messages and limited in length.

use std::collections::BTreeMap;

/// Bytes for the termination messages of one pod (`MaxPodTerminationMessageLogLength`), shared by its containers.
const POD_BUDGET: usize = 12 * 1024;

/// Termination messages read from disk, by container ID in the runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages(BTreeMap<String, String>);

// === impl Messages ===

impl Messages {
    /// Adds a message. An empty one equals none.
    pub fn insert(&mut self, container_id: impl Into<String>, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.0.insert(container_id.into(), text);
        }
    }

    /// Adds other messages.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The message of a container.
    pub fn get(&self, container_id: &str) -> Option<&str> {
        self.0.get(container_id).map(String::as_str)
    }
}

impl<I: Into<String>, T: Into<String>> FromIterator<(I, T)> for Messages {
    fn from_iter<S: IntoIterator<Item = (I, T)>>(pairs: S) -> Self {
        let mut messages = Self::default();
        for (id, text) in pairs {
            messages.insert(id, text);
        }
        messages
    }
}

/// The runtime's message, then the container's (`convertToKubeContainerStatus`).
pub(super) fn joined(runtime: &str, own: Option<&str>) -> Option<String> {
    match (runtime, own.unwrap_or_default()) {
        ("", "") => None,
        ("", own) => Some(own.to_owned()),
        (runtime, "") => Some(runtime.to_owned()),
        (runtime, own) => Some(format!("{runtime}: {own}")),
    }
}

/// Bytes for each message in a pod with this number of containers of all kinds (`normalizeStatus`).
pub(super) fn share(containers: usize) -> usize {
    POD_BUDGET / containers.max(1)
}

/// Truncates to at most `limit` bytes without splitting a character, unlike the kubelet.
pub(super) fn truncate(text: &mut String, limit: usize) {
    text.truncate(text.floor_char_boundary(limit));
}
