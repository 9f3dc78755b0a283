//! Decoded answers.

use prost::DecodeError;

use crate::collector::graph::Observed;

/// Maximum size of an object, in bytes. etcd accepts at most 1.5 MiB.
pub(super) const MAX_OBJECT: usize = 16 << 20;

/// Why an answer cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It has no protobuf magic number.
    #[error("no Kubernetes protobuf")]
    NoMagic,
    /// It has another kind than requested.
    #[error("unexpected kind {0}")]
    Kind(String),
    /// An object exceeds the maximum size.
    #[error("object of {0} bytes is too large")]
    TooLarge(usize),
    /// It is incomplete.
    #[error("truncated")]
    Truncated,
    /// It is malformed protobuf.
    #[error("malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// It is malformed JSON.
    #[error("malformed: {0}")]
    Json(#[from] serde_json::Error),
}

/// Metadata of a list page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageEnd {
    /// resourceVersion of the list.
    pub version: String,
    /// `continue` token of the next page; empty on the last.
    pub continue_token: String,
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// ADDED or MODIFIED, with the new state.
    Applied(Observed),
    /// DELETED, with the last state.
    Deleted(Observed),
    /// BOOKMARK.
    Bookmark {
        /// The resourceVersion.
        version: String,
    },
    /// ERROR, with code and message. The server ends the watch.
    Error(u16, String),
}
