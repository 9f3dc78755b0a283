//! Kubernetes protobuf: apimachinery pkg/runtime/serializer/protobuf.

use bytes::{Buf as _, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, decode_key, decode_varint},
};

use super::types::{PageEnd, WatchEvent, WireError, meta, observed, take};
use crate::collector::graph::Observed;

#[cfg(test)]
mod tests;

const MAGIC: &[u8] = b"k8s\0";
const LIST: &str = "PartialObjectMetadataList";
const OBJECT: &str = "PartialObjectMetadata";
const STATUS: &str = "Status";
/// Maximum length of a key and a length together, in bytes.
const MAX_HEAD: usize = 20;

/// Decodes a page of a list from chunks of any size.
#[derive(Debug, Default)]
pub struct ListReader {
    buffer: BytesMut,
    has_magic: bool,
    /// Number of bytes of the list that are not read yet; `None` before it.
    remaining: Option<usize>,
    end: PageEnd,
}

// === impl ListReader ===

impl ListReader {
    /// Decodes a chunk; calls `each` for every object that it completes.
    pub fn read(&mut self, chunk: &[u8], mut each: impl FnMut(Observed)) -> Result<(), WireError> {
        self.buffer.extend_from_slice(chunk);
        if !self.has_magic {
            if self.buffer.len() < MAGIC.len() {
                return Ok(());
            }
            if !self.buffer.starts_with(MAGIC) {
                return Err(WireError::NoMagic);
            }
            self.buffer.advance(MAGIC.len());
            self.has_magic = true;
        }
        while self.read_field(&mut each)? {}
        Ok(())
    }

    /// Ends the page.
    ///
    /// # Errors
    ///
    /// The page is incomplete.
    pub fn finish(self) -> Result<PageEnd, WireError> {
        if self.buffer.is_empty() && self.remaining == Some(0) {
            Ok(self.end)
        } else {
            Err(WireError::Truncated)
        }
    }

    /// Decodes one field of the envelope, whose field 2 is the list, or of the list; `false` if none is complete.
    fn read_field(&mut self, each: &mut impl FnMut(Observed)) -> Result<bool, WireError> {
        let Some(field) = field(&self.buffer)? else {
            return Ok(false);
        };
        let is_in_list = self.remaining.is_some_and(|remaining| remaining > 0);
        if self.remaining.is_none() && field.number == 2 {
            self.buffer.advance(field.head);
            self.remaining = Some(field.length);
            return Ok(true);
        }
        let Some(body) = take(&mut self.buffer, field.head, field.length)? else {
            return Ok(false);
        };
        if is_in_list && let Some(remaining) = &mut self.remaining {
            let length = field.head + field.length;
            *remaining = remaining.checked_sub(length).ok_or(WireError::Truncated)?;
        }
        match (is_in_list, field.number) {
            (false, 1) => expect(Some(&meta::TypeMeta::decode(body)?), LIST)?,
            (true, 1) => self.end = PageEnd::new(meta::ListMeta::decode(body)?)?,
            (true, 2) => each(observed(meta::PartialObjectMetadata::decode(body)?)?),
            _ => {}
        }
        Ok(true)
    }
}

/// Position of a field in the buffer, in bytes.
#[derive(Debug, Clone, Copy)]
struct Field {
    number: u32,
    head: usize,
    length: usize,
}

/// The first field, if its key and length are complete. All fields of an envelope and of a list have a length.
fn field(buffer: &[u8]) -> Result<Option<Field>, WireError> {
    let mut rest = buffer;
    let head = decode_key(&mut rest).and_then(|key| Ok((key, decode_varint(&mut rest)?)));
    match head {
        Ok(((number, WireType::LengthDelimited), length)) => Ok(Some(Field {
            number,
            head: buffer.len() - rest.len(),
            length: usize::try_from(length).unwrap_or(usize::MAX),
        })),
        Ok(((number, _), _)) => Err(WireError::Kind(format!("field {number} of a list"))),
        Err(_) if buffer.len() < MAX_HEAD => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Decodes a frame of a watch.
pub(super) fn event(frame: Bytes) -> Result<WatchEvent, WireError> {
    let event = meta::WatchEvent::decode(frame)?;
    let raw = event.object.as_ref().and_then(|object| object.raw.clone());
    let raw = raw.filter(|raw| raw.starts_with(MAGIC)).ok_or(WireError::NoMagic)?;
    let unknown = meta::Unknown::decode(raw.slice(MAGIC.len()..))?;
    WatchEvent::new(event.r#type(), || decode(&unknown, OBJECT), || decode(&unknown, STATUS))
}

fn decode<T: Message + Default>(unknown: &meta::Unknown, wanted: &str) -> Result<T, WireError> {
    expect(unknown.type_meta.as_ref(), wanted)?;
    Ok(T::decode(unknown.raw())?)
}

fn expect(found: Option<&meta::TypeMeta>, wanted: &str) -> Result<(), WireError> {
    let kind = found.map_or("", meta::TypeMeta::kind);
    if kind == wanted {
        Ok(())
    } else {
        Err(WireError::Kind(kind.to_owned()))
    }
}
