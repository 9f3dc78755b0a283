//! Kubernetes protobuf: apimachinery pkg/runtime/serializer/protobuf.

use bytes::{Buf as _, Bytes, BytesMut};
use prost::{
    Message as _,
    encoding::{WireType, decode_key, decode_varint},
};

use super::event::{MAX_OBJECT, PageEnd, WatchEvent, WireError};
use crate::collector::graph::{Observed, Reference};

/// Generated from `proto/meta.proto`.
#[allow(missing_docs, reason = "Kubernetes' own words")]
#[allow(clippy::all, reason = "generated")]
mod meta {
    include!(concat!(env!("OUT_DIR"), "/meta.rs"));
}

#[cfg(test)]
mod tests;

const MAGIC: &[u8] = b"k8s\0";
const LIST: &str = "PartialObjectMetadataList";
const OBJECT: &str = "PartialObjectMetadata";
const STATUS: &str = "Status";

/// Position in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Before the magic number.
    Start,
    /// In the envelope's fields.
    Envelope,
    /// In the list's fields, with this many bytes left.
    List(usize),
}

/// Decodes a page of a list from chunks of any size.
#[derive(Debug)]
pub(super) struct PageReader {
    buffer: BytesMut,
    position: Position,
    end: PageEnd,
    has_list: bool,
}

/// Decodes a watch from chunks of any size.
#[derive(Debug, Default)]
pub(super) struct WatchReader {
    buffer: BytesMut,
}

// === impl PageReader ===

impl Default for PageReader {
    fn default() -> Self {
        Self {
            buffer: BytesMut::new(),
            position: Position::Start,
            end: PageEnd::default(),
            has_list: false,
        }
    }
}

impl PageReader {
    /// Decodes a chunk; calls `each` for every object that it completes.
    pub fn read(&mut self, chunk: &[u8], mut each: impl FnMut(Observed)) -> Result<(), WireError> {
        self.buffer.extend_from_slice(chunk);
        while self.step(&mut each)? {}
        Ok(())
    }

    /// Ends the page.
    ///
    /// # Errors
    ///
    /// The page is incomplete.
    pub fn finish(self) -> Result<PageEnd, WireError> {
        if self.buffer.is_empty() && self.has_list && self.position == Position::Envelope {
            Ok(self.end)
        } else {
            Err(WireError::Truncated)
        }
    }

    /// Decodes one field; `false` if none is complete.
    fn step(&mut self, each: &mut impl FnMut(Observed)) -> Result<bool, WireError> {
        match self.position {
            Position::Start => {
                if self.buffer.len() < MAGIC.len() {
                    return Ok(false);
                }
                if !self.buffer.starts_with(MAGIC) {
                    return Err(WireError::NoMagic);
                }
                self.buffer.advance(MAGIC.len());
                self.position = Position::Envelope;
                Ok(true)
            }
            Position::List(0) => {
                self.position = Position::Envelope;
                Ok(true)
            }
            Position::Envelope => match field(&self.buffer)? {
                Some(Field {
                    number: 2,
                    head,
                    length,
                }) => {
                    self.buffer.advance(head);
                    self.has_list = true;
                    self.position = Position::List(length);
                    Ok(true)
                }
                Some(field) => Ok(match self.take_field(field)? {
                    Some(body) if field.number == 1 => {
                        expect(&meta::TypeMeta::decode(body)?, LIST)?;
                        true
                    }
                    body => body.is_some(),
                }),
                None => Ok(false),
            },
            Position::List(left) => {
                let Some(field) = field(&self.buffer)? else {
                    return Ok(false);
                };
                let Some(body) = self.take_field(field)? else {
                    return Ok(false);
                };
                let left = left
                    .checked_sub(field.head + field.length)
                    .ok_or(WireError::Truncated)?;
                self.position = Position::List(left);
                match field.number {
                    1 => {
                        let list = meta::ListMeta::decode(body)?;
                        self.end.version = list.resource_version.unwrap_or_default();
                        self.end.continue_token = list.r#continue.unwrap_or_default();
                    }
                    2 => each(observed(meta::PartialObjectMetadata::decode(body)?)),
                    _ => {}
                }
                Ok(true)
            }
        }
    }

    fn take_field(&mut self, field: Field) -> Result<Option<Bytes>, WireError> {
        if field.length > MAX_OBJECT {
            return Err(WireError::TooLarge(field.length));
        }
        if self.buffer.len() < field.head + field.length {
            return Ok(None);
        }
        self.buffer.advance(field.head);
        Ok(Some(self.buffer.split_to(field.length).freeze()))
    }
}

/// Position of a field in the buffer, in bytes.
#[derive(Debug, Clone, Copy)]
struct Field {
    number: u32,
    head: usize,
    length: usize,
}

/// The first field, if its key and length are complete.
fn field(buffer: &[u8]) -> Result<Option<Field>, WireError> {
    // A key, a length and a number have at most ten bytes each.
    let mut rest = buffer;
    let complete = |part: &[u8]| part.iter().take(10).any(|byte| byte & 0x80 == 0) || part.len() >= 10;
    if !complete(rest) {
        return Ok(None);
    }
    let (number, wire_type) = decode_key(&mut rest)?;
    if matches!(wire_type, WireType::LengthDelimited | WireType::Varint) && !complete(rest) {
        return Ok(None);
    }
    let key = buffer.len() - rest.len();
    // Fields of other wire types are skipped whole. All fields that matter are length-delimited.
    let (number, head, length) = match wire_type {
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(&mut rest)?).unwrap_or(usize::MAX);
            (number, buffer.len() - rest.len(), length)
        }
        WireType::Varint => {
            decode_varint(&mut rest)?;
            (u32::MAX, key, buffer.len() - rest.len() - key)
        }
        WireType::ThirtyTwoBit => (u32::MAX, key, 4),
        WireType::SixtyFourBit => (u32::MAX, key, 8),
        WireType::StartGroup | WireType::EndGroup => return Err(WireError::Kind("group".to_owned())),
    };
    Ok(Some(Field { number, head, length }))
}

// === impl WatchReader ===

impl WatchReader {
    /// Decodes a chunk; returns the events that it completes.
    pub fn read(&mut self, chunk: &[u8]) -> Result<Vec<WatchEvent>, WireError> {
        self.buffer.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(head) = self.buffer.first_chunk::<4>() {
            let length = u32::from_be_bytes(*head) as usize;
            if length > MAX_OBJECT {
                return Err(WireError::TooLarge(length));
            }
            if self.buffer.len() < 4 + length {
                break;
            }
            self.buffer.advance(4);
            let frame = self.buffer.split_to(length).freeze();
            events.push(event(frame)?);
        }
        Ok(events)
    }
}

fn event(frame: Bytes) -> Result<WatchEvent, WireError> {
    let event = meta::WatchEvent::decode(frame)?;
    let raw = event.object.and_then(|object| object.raw).unwrap_or_default();
    if !raw.starts_with(MAGIC) {
        return Err(WireError::NoMagic);
    }
    let unknown = meta::Unknown::decode(raw.slice(MAGIC.len()..))?;
    let (kind, raw) = (unknown.type_meta.unwrap_or_default(), unknown.raw.unwrap_or_default());
    let kind_of_event = event.r#type.unwrap_or_default();
    if kind_of_event == "ERROR" {
        expect(&kind, STATUS)?;
        let status = meta::Status::decode(raw)?;
        let code = status
            .code
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or_default();
        return Ok(WatchEvent::Error(code, text(status.message)));
    }
    expect(&kind, OBJECT)?;
    let object = meta::PartialObjectMetadata::decode(raw)?;
    Ok(match kind_of_event.as_str() {
        "ADDED" | "MODIFIED" => WatchEvent::Applied(observed(object)),
        "DELETED" => WatchEvent::Deleted(observed(object)),
        "BOOKMARK" => {
            let metadata = object.metadata.unwrap_or_default();
            WatchEvent::Bookmark {
                version: text(metadata.resource_version),
            }
        }
        other => return Err(WireError::Kind(other.to_owned())),
    })
}

fn expect(found: &meta::TypeMeta, wanted: &str) -> Result<(), WireError> {
    let kind = found.kind.as_deref().unwrap_or_default();
    if kind == wanted {
        Ok(())
    } else {
        Err(WireError::Kind(kind.to_owned()))
    }
}

fn observed(object: meta::PartialObjectMetadata) -> Observed {
    let metadata = object.metadata.unwrap_or_default();
    let finalizer = |wanted: &str| {
        metadata
            .finalizers
            .iter()
            .any(|finalizer| finalizer == wanted.as_bytes())
    };
    let (orphan, foreground) = (finalizer("orphan"), finalizer("foregroundDeletion"));
    let owners = metadata.owner_references.into_iter().map(|owner| Reference {
        api_version: text(owner.api_version),
        kind: text(owner.kind),
        name: text(owner.name),
        uid: text(owner.uid),
        blocking: owner.block_owner_deletion.unwrap_or_default(),
    });
    Observed {
        uid: text(metadata.uid),
        namespace: text(metadata.namespace),
        name: text(metadata.name),
        version: text(metadata.resource_version),
        deleting: metadata.deletion_timestamp.is_some(),
        orphan,
        foreground,
        owners: owners.collect(),
    }
}

/// Invalid UTF-8 is replaced, as the API server does in JSON.
fn text(bytes: Option<Vec<u8>>) -> String {
    let bytes = bytes.unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
