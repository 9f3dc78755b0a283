//! What answers of the API server are decoded to, from protobuf and from JSON.

use bytes::{Buf as _, Bytes, BytesMut};
use prost::DecodeError;
use serde::{Deserialize, Deserializer};

use crate::collector::graph::{Observed, Reference};

/// Generated from `proto/meta.proto`; `build.rs` adds JSON.
#[allow(missing_docs, reason = "Kubernetes' own words")]
#[allow(clippy::all, reason = "generated")]
pub(super) mod meta {
    include!(concat!(env!("OUT_DIR"), "/meta.rs"));
}

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
    /// Its resourceVersion is no number: they are compared.
    #[error("the resourceVersion {0:?} is no number")]
    Version(String),
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
    pub version: u64,
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
        version: u64,
    },
    /// ERROR, with code and message. The server ends the watch.
    Error(u16, String),
}

// === impl PageEnd ===

impl PageEnd {
    pub(super) fn new(list: meta::ListMeta) -> Result<Self, WireError> {
        Ok(Self {
            version: parse_version(list.resource_version())?,
            continue_token: list.r#continue.unwrap_or_default(),
        })
    }
}

// === impl WatchEvent ===

impl WatchEvent {
    /// An event of this type, whose object one of the two decodes. It has a resourceVersion, or is an error.
    pub(super) fn new(
        kind: &str,
        object: impl FnOnce() -> Result<meta::PartialObjectMetadata, WireError>,
        status: impl FnOnce() -> Result<meta::Status, WireError>,
    ) -> Result<Self, WireError> {
        let seen = || {
            let seen = observed(object()?)?;
            required(seen.version).map(|()| seen)
        };
        Ok(match kind {
            "ADDED" | "MODIFIED" => Self::Applied(seen()?),
            "DELETED" => Self::Deleted(seen()?),
            "BOOKMARK" => Self::Bookmark {
                version: seen()?.version,
            },
            "ERROR" => {
                let status = status()?;
                Self::Error(status.code().try_into().unwrap_or_default(), text(status.message))
            }
            other => return Err(WireError::Kind(other.to_owned())),
        })
    }
}

pub(super) fn observed(object: meta::PartialObjectMetadata) -> Result<Observed, WireError> {
    let metadata = object.metadata.unwrap_or_default();
    let finalizer = |wanted: &str| metadata.finalizers.iter().any(|it| it == wanted.as_bytes());
    let (orphan, foreground) = (finalizer("orphan"), finalizer("foregroundDeletion"));
    let owners = metadata.owner_references.into_iter().map(|owner| Reference {
        api_version: text(owner.api_version),
        kind: text(owner.kind),
        name: text(owner.name),
        uid: text(owner.uid),
        blocking: owner.block_owner_deletion.unwrap_or_default(),
    });
    Ok(Observed {
        uid: text(metadata.uid),
        namespace: text(metadata.namespace),
        name: text(metadata.name),
        version: parse_version(&text(metadata.resource_version))?,
        deleting: metadata.deletion_timestamp.is_some(),
        orphan,
        foreground,
        owners: owners.collect(),
    })
}

/// Takes so many bytes after a head from the buffer; `None` if they are not complete.
pub(super) fn take(buffer: &mut BytesMut, head: usize, length: usize) -> Result<Option<Bytes>, WireError> {
    if length > MAX_OBJECT {
        return Err(WireError::TooLarge(length));
    }
    if buffer.len() < head + length {
        return Ok(None);
    }
    buffer.advance(head);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// A resourceVersion; 0 for an object without one.
fn parse_version(version: &str) -> Result<u64, WireError> {
    match version {
        "" => Ok(0),
        number => number.parse().map_err(|_| WireError::Version(number.to_owned())),
    }
}

pub(super) fn required(version: u64) -> Result<(), WireError> {
    match version {
        0 => Err(WireError::Version(String::new())),
        _ => Ok(()),
    }
}

/// Invalid UTF-8 is replaced, as the API server does in JSON.
fn text(bytes: Option<Vec<u8>>) -> String {
    let bytes = bytes.unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn json_text<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Vec<u8>>, D::Error> {
    Ok(Option::<String>::deserialize(json)?.map(String::into_bytes))
}

fn json_texts<'de, D: Deserializer<'de>>(json: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let texts: Vec<String> = json_list(json)?;
    Ok(texts.into_iter().map(String::into_bytes).collect())
}

/// A list, which may be null.
fn json_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(json: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(json)?.unwrap_or_default())
}
