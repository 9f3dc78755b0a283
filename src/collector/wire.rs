//! Decodes answers of the API server chunk by chunk. A protobuf list is decoded one object at a time.

use bytes::BytesMut;

use super::graph::Observed;

mod event;
mod json;
mod protobuf;

pub use self::event::{PageEnd, WatchEvent, WireError};

/// `Accept` header of a list: protobuf; JSON for servers without protobuf.
pub const LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// `Accept` header of a watch.
pub const WATCH: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Maximum size of a JSON page, in bytes. It is decoded as a whole, and some servers send whole objects.
const MAX_PAGE: usize = 256 << 20;

/// Decodes a page of a list from chunks of any size.
#[derive(Debug)]
pub struct PageReader(Page);

#[derive(Debug)]
enum Page {
    Protobuf(protobuf::PageReader),
    Json(BytesMut),
}

/// Decodes a watch from chunks of any size.
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

    /// Decodes a chunk; calls `each` for every object that it completes.
    pub fn read(&mut self, chunk: &[u8], each: impl FnMut(Observed)) -> Result<(), WireError> {
        match &mut self.0 {
            Page::Protobuf(page) => page.read(chunk, each),
            Page::Json(page) if page.len() + chunk.len() > MAX_PAGE => Err(WireError::TooLarge(page.len())),
            Page::Json(page) => {
                page.extend_from_slice(chunk);
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

    /// Decodes a chunk; returns the events that it completes.
    pub fn read(&mut self, chunk: &[u8]) -> Result<Vec<WatchEvent>, WireError> {
        match &mut self.0 {
            Watch::Protobuf(watch) => watch.read(chunk),
            Watch::Json(lines) => lines.read(chunk),
        }
    }
}

/// Decodes one object from parsed JSON.
pub fn object(value: &serde_json::Value) -> Result<Observed, WireError> {
    json::value(value)
}
