//! Objects, lists, events and refusals as they are sent, in each form.

mod protobuf;

use bytes::Bytes;
use serde_json::{Value, json};

use super::accept::{Form, Media, Shape};
use super::error::ApiError;
use super::history::Change;
use super::kinds::Kind;
use super::list::Page;
use super::stored::Stored;
use crate::proto;

const METADATA: &str = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;

/// One object.
pub fn object(form: Form, kind: &'static Kind, object: &Stored) -> Result<Bytes, ApiError> {
    if form.shape == Shape::MetadataList {
        return Err(ApiError::wrong_shape("PartialObjectMetadataList", "not a list"));
    }
    Ok(one(form, kind, object))
}

/// Objects that were asked for together.
pub fn list(form: Form, kind: &'static Kind, page: &Page) -> Result<Bytes, ApiError> {
    match (form.shape, form.media) {
        (Shape::Metadata, _) => return Err(ApiError::wrong_shape("PartialObjectMetadata", "a list")),
        (_, Media::Protobuf) => return Ok(protobuf::list(page)),
        (_, Media::Json) => {}
    }
    let (name, version, custom) = match form.shape {
        Shape::Whole => (format!("{}List", kind.kind), kind.api_version(), kind.custom),
        _ => (
            "PartialObjectMetadataList".to_owned(),
            "meta.k8s.io/v1".to_owned(),
            false,
        ),
    };
    let metadata = page.metadata(custom);
    let mut list =
        format!(r#"{{"kind":"{name}","apiVersion":"{version}","metadata":{metadata},"items":["#).into_bytes();
    for (index, item) in page.items.iter().enumerate() {
        if index > 0 {
            list.push(b',');
        }
        match form.shape {
            Shape::Whole => item.append_item(kind, &mut list),
            _ => append_metadata(item, &mut list),
        }
    }
    list.extend_from_slice(b"]}\n");
    Ok(list.into())
}

/// An object in a watch.
pub fn event(form: Form, kind: &'static Kind, change: Change, object: &Stored) -> Bytes {
    if form.media == Media::Protobuf {
        return proto::frame(change.name(), one(form, kind, object));
    }
    let mut line = format!(r#"{{"type":"{}","object":"#, change.name()).into_bytes();
    append(form, kind, object, &mut line);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// A bookmark of a watch; `initial` marks the end of the initial events.
pub fn bookmark(form: Form, kind: &'static Kind, version: u64, initial: bool) -> Bytes {
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if initial {
        metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    let metadata = metadata.to_string();
    if form.media == Media::Protobuf {
        return proto::frame("BOOKMARK", protobuf::metadata(&metadata));
    }
    let object = match form.shape {
        Shape::Whole => format!(
            r#"{{"kind":"{}","apiVersion":"{}","metadata":{metadata}{}}}"#,
            kind.kind,
            kind.api_version(),
            kind.hollow
        ),
        _ => format!("{METADATA}{metadata}}}"),
    };
    format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into()
}

/// The error that ends a watch.
pub fn failure(form: Form, error: &ApiError) -> Bytes {
    match form.media {
        Media::Json => format!("{}\n", json!({ "type": "ERROR", "object": error.to_status() })).into(),
        Media::Protobuf => proto::frame("ERROR", protobuf::status(&error.to_status())),
    }
}

/// A `Status`.
pub fn status(media: Media, status: &Value) -> Bytes {
    match media {
        Media::Json => status.to_string().into(),
        Media::Protobuf => protobuf::status(status),
    }
}

fn one(form: Form, kind: &'static Kind, object: &Stored) -> Bytes {
    if form.media == Media::Protobuf {
        return protobuf::metadata(object.metadata());
    }
    let mut bytes = Vec::with_capacity(512);
    append(form, kind, object, &mut bytes);
    bytes.into()
}

fn append(form: Form, kind: &'static Kind, object: &Stored, to: &mut Vec<u8>) {
    match form.shape {
        Shape::Whole => object.append(kind, to),
        _ => append_metadata(object, to),
    }
}

fn append_metadata(object: &Stored, to: &mut Vec<u8>) {
    to.extend_from_slice(METADATA.as_bytes());
    to.extend_from_slice(object.metadata().as_bytes());
    to.push(b'}');
}
