//! What the API server sends, read as it comes: of a list in protobuf one object at a time, never the whole.

use bytes::BytesMut;
use prost::DecodeError;

use super::graph::Observed;

mod json;
mod protobuf;

/// What is asked of a list, and of a watch: protobuf, and JSON of servers that have none.
pub const LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// The same for a watch.
pub const WATCH: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// etcd takes no object over 1.5 MiB; a server that sends more sends something else.
const LARGEST: usize = 16 << 20;
/// A page in JSON is held whole; its objects are large only where a server sends more than their metadata.
const LARGEST_PAGE: usize = 256 << 20;
/// What cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It does not begin as protobuf of the API server does.
    #[error("not in the API server's protobuf")]
    NoMagic,
    /// It is of another kind than was asked for.
    #[error("a {0}, which was not asked for")]
    Kind(String),
    /// One object is larger than any can be.
    #[error("an object of {0} bytes")]
    TooLarge(usize),
    /// It ended before its end.
    #[error("cut off")]
    CutOff,
    /// Its bytes make no sense.
    #[error("malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// It is no JSON, or of another form.
    #[error("malformed: {0}")]
    Json(#[from] serde_json::Error),
}

/// What stands at the end of a page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageEnd {
    /// State of the store that the list shows.
    pub version: String,
    /// Token of the next page; empty on the last.
    pub continue_token: String,
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// It is there, as shown.
    Seen(Observed),
    /// It is gone; this was its last state.
    Gone(Observed),
    /// The watch has come so far.
    Bookmark {
        /// The version.
        version: String,
    },
    /// The server ends the watch, with this code and message.
    Error(u16, String),
}

/// Reads a page of a list from pieces of any size.
#[derive(Debug)]
pub struct PageReader(Page);

#[derive(Debug)]
enum Page {
    Protobuf(protobuf::PageReader),
    Json(BytesMut),
}

/// Reads a watch from pieces of any size.
#[derive(Debug)]
pub struct WatchReader(Watch);

#[derive(Debug)]
enum Watch {
    Protobuf(protobuf::WatchReader),
    Json(json::Lines),
}

// === impl PageReader ===

impl PageReader {
    /// A reader of a page in protobuf, or else in JSON.
    pub fn new(is_protobuf: bool) -> Self {
        Self(if is_protobuf {
            Page::Protobuf(protobuf::PageReader::default())
        } else {
            Page::Json(BytesMut::new())
        })
    }

    /// Takes a piece, and tells each object that is complete by it.
    pub fn read(&mut self, piece: &[u8], each: impl FnMut(Observed)) -> Result<(), WireError> {
        match &mut self.0 {
            Page::Protobuf(page) => page.read(piece, each),
            Page::Json(page) if page.len() + piece.len() > LARGEST_PAGE => Err(WireError::TooLarge(page.len())),
            Page::Json(page) => {
                page.extend_from_slice(piece);
                Ok(())
            }
        }
    }

    /// The page must be complete by now; tells the objects that were not told yet.
    pub fn finish(self, each: impl FnMut(Observed)) -> Result<PageEnd, WireError> {
        match self.0 {
            Page::Protobuf(page) => page.finish(),
            Page::Json(page) => json::page(&page, each),
        }
    }
}

// === impl WatchReader ===

impl WatchReader {
    /// A reader of a watch in protobuf, or else in JSON.
    pub fn new(is_protobuf: bool) -> Self {
        Self(if is_protobuf {
            Watch::Protobuf(protobuf::WatchReader::default())
        } else {
            Watch::Json(json::Lines::default())
        })
    }

    /// Takes a piece, and tells each event that is complete by it.
    pub fn read(&mut self, piece: &[u8]) -> Result<Vec<WatchEvent>, WireError> {
        match &mut self.0 {
            Watch::Protobuf(watch) => watch.read(piece),
            Watch::Json(lines) => lines.read(piece),
        }
    }
}

/// Reads one object, of JSON that was read before.
pub fn object(value: &serde_json::Value) -> Result<Observed, WireError> {
    json::value(value)
}
