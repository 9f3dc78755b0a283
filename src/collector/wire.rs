//! Decodes answers of the API server chunk by chunk. A protobuf list is decoded one object at a time.

use bytes::{Bytes, BytesMut};
use serde::Deserialize as _;

use super::graph::Observed;

mod json;
mod protobuf;
mod types;

pub use self::{
    protobuf::ListReader,
    types::{PageEnd, WatchEvent, WireError},
};

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
pub enum PageReader {
    /// Decodes object by object.
    Protobuf(ListReader),
    /// The page so far.
    Json(BytesMut),
}

/// Decodes a watch from chunks of any size.
#[derive(Debug)]
pub struct WatchReader {
    is_protobuf: bool,
    buffer: BytesMut,
}

// === impl PageReader ===

impl PageReader {
    /// A reader of protobuf or JSON.
    pub fn new(is_protobuf: bool) -> Self {
        if is_protobuf {
            Self::Protobuf(ListReader::default())
        } else {
            Self::Json(BytesMut::new())
        }
    }

    /// Decodes a chunk; calls `each` for every object that it completes.
    pub fn read(&mut self, chunk: &[u8], each: impl FnMut(Observed)) -> Result<(), WireError> {
        match self {
            Self::Protobuf(page) => page.read(chunk, each),
            Self::Json(page) if page.len() + chunk.len() > MAX_PAGE => Err(WireError::TooLarge(page.len())),
            Self::Json(page) => {
                page.extend_from_slice(chunk);
                Ok(())
            }
        }
    }

    /// Ends the page; calls `each` for objects that are not decoded yet.
    ///
    /// # Errors
    ///
    /// The page is incomplete or malformed, or has no resourceVersion.
    pub fn finish(self, each: impl FnMut(Observed)) -> Result<PageEnd, WireError> {
        let end = match self {
            Self::Protobuf(page) => page.finish(),
            Self::Json(page) => json::page(&page, each),
        }?;
        types::required(end.version)?;
        Ok(end)
    }
}

// === impl WatchReader ===

impl WatchReader {
    /// A reader of protobuf or JSON.
    pub fn new(is_protobuf: bool) -> Self {
        Self {
            is_protobuf,
            buffer: BytesMut::new(),
        }
    }

    /// Decodes a chunk; returns the events that it completes.
    pub fn read(&mut self, chunk: &[u8]) -> Result<Vec<WatchEvent>, WireError> {
        self.buffer.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(frame) = self.take_frame()? {
            if self.is_protobuf {
                events.push(protobuf::event(frame)?);
            } else if !frame.trim_ascii().is_empty() {
                events.push(json::event(&frame)?);
            }
        }
        Ok(events)
    }

    /// The bytes of the next event: after their length in protobuf, a line in JSON.
    fn take_frame(&mut self) -> Result<Option<Bytes>, WireError> {
        let (head, length) = if self.is_protobuf {
            let head = self.buffer.first_chunk::<4>();
            (4, head.map_or(0, |head| u32::from_be_bytes(*head) as usize))
        } else {
            let end = self.buffer.iter().position(|&byte| byte == b'\n');
            (0, end.map_or(self.buffer.len() + 1, |end| end + 1))
        };
        types::take(&mut self.buffer, head, length)
    }
}

/// Decodes one object from parsed JSON.
pub fn object(value: &serde_json::Value) -> Result<Observed, WireError> {
    types::observed(types::meta::PartialObjectMetadata::deserialize(value)?)
}
