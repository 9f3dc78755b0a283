//! Decodes answers of the API server piece by piece. A protobuf list is decoded one object at a time.

use bytes::BytesMut;
use prost::DecodeError;

use super::graph::Observed;

mod json;
mod protobuf;

/// `Accept` header of a list: protobuf; JSON for servers without protobuf.
pub const LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// `Accept` header of a watch.
pub const WATCH: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Maximum size of an object, in bytes. etcd accepts at most 1.5 MiB.
const MAX_OBJECT: usize = 16 << 20;
/// Maximum size of a JSON page, in bytes. It is decoded as a whole, and some servers send whole objects.
const MAX_PAGE: usize = 256 << 20;
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

/// Decodes a page of a list from pieces of any size.
#[derive(Debug)]
pub struct PageReader(Page);

#[derive(Debug)]
enum Page {
    Protobuf(protobuf::PageReader),
    Json(BytesMut),
}

/// Decodes a watch from pieces of any size.
#[derive(Debug)]
pub struct WatchReader(Watch);

#[derive(Debug)]
enum Watch {
    Protobuf(protobuf::WatchReader),
    Json(json::Lines),
}

// === impl PageReader ===

impl PageReader {
    /// A reader of protobuf or JSON.
    pub fn new(is_protobuf: bool) -> Self {
        Self(if is_protobuf {
            Page::Protobuf(protobuf::PageReader::default())
        } else {
            Page::Json(BytesMut::new())
        })
    }

    /// Decodes a piece; calls `each` for every object that it completes.
    pub fn read(&mut self, piece: &[u8], each: impl FnMut(Observed)) -> Result<(), WireError> {
        match &mut self.0 {
            Page::Protobuf(page) => page.read(piece, each),
            Page::Json(page) if page.len() + piece.len() > MAX_PAGE => Err(WireError::TooLarge(page.len())),
            Page::Json(page) => {
                page.extend_from_slice(piece);
                Ok(())
            }
        }
    }

    /// Ends the page; calls `each` for objects that are not decoded yet.
    ///
    /// # Errors
    ///
    /// The page is incomplete or malformed.
    pub fn finish(self, each: impl FnMut(Observed)) -> Result<PageEnd, WireError> {
        match self.0 {
            Page::Protobuf(page) => page.finish(),
            Page::Json(page) => json::page(&page, each),
        }
    }
}

// === impl WatchReader ===

impl WatchReader {
    /// A reader of protobuf or JSON.
    pub fn new(is_protobuf: bool) -> Self {
        Self(if is_protobuf {
            Watch::Protobuf(protobuf::WatchReader::default())
        } else {
            Watch::Json(json::Lines::default())
        })
    }

    /// Decodes a piece; returns the events that it completes.
    pub fn read(&mut self, piece: &[u8]) -> Result<Vec<WatchEvent>, WireError> {
        match &mut self.0 {
            Watch::Protobuf(watch) => watch.read(piece),
            Watch::Json(lines) => lines.read(piece),
        }
    }
}

/// Decodes one object from parsed JSON.
pub fn object(value: &serde_json::Value) -> Result<Observed, WireError> {
    json::value(value)
}
