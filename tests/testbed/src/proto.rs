//! Metadata and `Status` in protobuf, and their wire format.
//!
//! A message is `k8s\0`, then an `Unknown` with its type. An event of a watch is its length in four bytes, then a plain
//! `WatchEvent`, whose object is such a message.

#[allow(missing_docs, reason = "generated; proto/meta.proto says what there is to say")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/meta.rs"));
}

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use jiff::Timestamp;
use prost::Message;
use serde_json::Value;

pub use generated::*;

/// Prefix of each message.
const MAGIC: &[u8] = b"k8s\0";

/// Why bytes are not the expected message.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The prefix is missing.
    #[error("a message does not begin with \"k8s\\0\"")]
    NoMagic,
    /// It has another kind.
    #[error("a {found} came in place of a {wanted}")]
    Another {
        /// What it says it is.
        found: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// It cannot be read.
    #[error("a message cannot be read")]
    Unreadable(#[from] prost::DecodeError),
}

/// A message type.
pub trait Named: Message + Default {
    /// apiVersion and kind.
    const TYPE: (&'static str, &'static str);
}

macro_rules! named {
    ($($message:ident: $api_version:literal),*) => {
        $(impl Named for $message {
            const TYPE: (&'static str, &'static str) = ($api_version, stringify!($message));
        })*
    };
}

named!(PartialObjectMetadata: "meta.k8s.io/v1", PartialObjectMetadataList: "meta.k8s.io/v1", Status: "v1");

/// A message as it is sent.
pub fn encode<M: Named>(message: &M) -> Bytes {
    let (api_version, kind) = M::TYPE;
    let unknown = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
        }),
        raw: Some(message.encode_to_vec()),
        content_encoding: Some(String::new()),
        content_type: Some(String::new()),
    };
    let mut bytes = BytesMut::with_capacity(MAGIC.len() + unknown.encoded_len());
    bytes.put_slice(MAGIC);
    bytes.put_slice(&unknown.encode_to_vec());
    bytes.freeze()
}

/// What was sent.
pub fn decode<M: Named>(bytes: &[u8]) -> Result<M, Error> {
    let unknown = Unknown::decode(bytes.strip_prefix(MAGIC).ok_or(Error::NoMagic)?)?;
    let kind = unknown.type_meta.unwrap_or_default();
    if (kind.api_version(), kind.kind()) != M::TYPE {
        return Err(Error::Another {
            found: kind.kind().to_owned(),
            wanted: M::TYPE.1,
        });
    }
    Ok(M::decode(unknown.raw.as_deref().unwrap_or_default())?)
}

/// What was sent as JSON, with its kind.
pub fn to_json(bytes: &[u8]) -> Result<Value, Error> {
    let unknown = Unknown::decode(bytes.strip_prefix(MAGIC).ok_or(Error::NoMagic)?)?;
    let kind = unknown.type_meta.unwrap_or_default();
    let mut json = match kind.kind() {
        "PartialObjectMetadata" => serde_json::json!(decode::<PartialObjectMetadata>(bytes)?),
        "PartialObjectMetadataList" => serde_json::json!(decode::<PartialObjectMetadataList>(bytes)?),
        _ => serde_json::json!(decode::<Status>(bytes)?),
    };
    json["kind"] = kind.kind().into();
    Ok(json)
}

impl TryFrom<String> for Time {
    type Error = jiff::Error;

    fn try_from(text: String) -> Result<Self, jiff::Error> {
        Ok(Time {
            seconds: Some(text.parse::<Timestamp>()?.as_second()),
            nanos: Some(0),
        })
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        Timestamp::from_second(time.seconds())
            .map(|time| time.to_string())
            .unwrap_or_default()
    }
}

/// An event of a watch as it is sent; `object` is a message.
pub fn frame(change: &str, object: Bytes) -> Bytes {
    let event = WatchEvent {
        r#type: Some(change.to_owned()),
        object: Some(RawExtension {
            raw: Some(object.into()),
        }),
    };
    let mut bytes = BytesMut::with_capacity(4 + event.encoded_len());
    bytes.put_u32(u32::try_from(event.encoded_len()).unwrap_or(u32::MAX));
    bytes.put_slice(&event.encode_to_vec());
    bytes.freeze()
}

/// Removes the first complete event from the buffer: its type and its object.
pub fn next_frame(came: &mut BytesMut) -> Result<Option<(String, Vec<u8>)>, Error> {
    let Some(length) = came.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if came.len() < 4 + length {
        return Ok(None);
    }
    came.advance(4);
    let event = WatchEvent::decode(came.split_to(length).freeze())?;
    let object = event.object.unwrap_or_default().raw.unwrap_or_default();
    Ok(Some((event.r#type.unwrap_or_default(), object)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &str) -> PartialObjectMetadata {
        PartialObjectMetadata {
            metadata: Some(ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            }),
        }
    }

    #[test]
    fn what_is_sent_is_what_arrives_and_nothing_else() {
        let sent = metadata("a");
        let bytes = encode(&sent);
        assert!(bytes.starts_with(b"k8s\0\x0a\x27\x0a\x0emeta.k8s.io/v1\x12\x15PartialObjectMetadata\x12"));
        assert_eq!(decode::<PartialObjectMetadata>(&bytes).unwrap(), sent);
        assert!(matches!(decode::<Status>(&bytes), Err(Error::Another { .. })));
        assert!(matches!(decode::<Status>(b"{}"), Err(Error::NoMagic)));
    }
}
