//! Termination messages: where they come from, how they join the runtime's own, how long they may get.

use std::collections::BTreeMap;

/// Bytes for the termination messages of one pod (`MaxPodTerminationMessageLogLength`); its containers share them.
const POD_BUDGET: usize = 12 * 1024;

/// Termination messages that were read from disk, by the runtime's container id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages(BTreeMap<String, String>);

// === impl Messages ===

impl Messages {
    /// Remembers what the container left behind; an empty text is as good as none.
    pub fn insert(&mut self, container_id: impl Into<String>, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.0.insert(container_id.into(), text);
        }
    }

    /// Remembers what others left behind, too.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// What the container left behind.
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

/// The runtime's message, then the container's own (`convertToKubeContainerStatus`).
pub(super) fn joined(runtime: &str, own: Option<&str>) -> Option<String> {
    match (runtime, own.unwrap_or_default()) {
        ("", "") => None,
        ("", own) => Some(own.to_owned()),
        (runtime, "") => Some(runtime.to_owned()),
        (runtime, own) => Some(format!("{runtime}: {own}")),
    }
}

/// Bytes for each message of a pod with so many containers of all kinds (`normalizeStatus`).
pub(super) fn share(containers: usize) -> usize {
    POD_BUDGET / containers.max(1)
}

/// Cuts to at most `limit` bytes without splitting a character, as the kubelet's cut by bytes may.
pub(super) fn cut(text: &mut String, limit: usize) {
    text.truncate(text.floor_char_boundary(limit));
}
