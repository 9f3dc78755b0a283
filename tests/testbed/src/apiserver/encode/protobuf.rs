//! Metadata and refusals as protobuf messages, from their JSON.
//!
//! As the API server does, texts and numbers that are no pointers there are sent even if they are empty or zero.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::apiserver::list::Page;
use crate::apiserver::object::text;
use crate::proto::{self, PartialObjectMetadata, PartialObjectMetadataList};

/// `metav1.ObjectMeta` as JSON.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectMeta {
    name: String,
    generate_name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    generation: i64,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    owner_references: Vec<OwnerReference>,
    finalizers: Vec<String>,
}

/// `metav1.OwnerReference` as JSON.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    controller: Option<bool>,
    block_owner_deletion: Option<bool>,
}

/// The metadata of one object.
pub fn metadata(json: &str) -> Bytes {
    proto::encode(&partial(json))
}

/// The metadata of the objects of a list.
pub fn list(page: &Page) -> Bytes {
    let next = page.next();
    proto::encode(&PartialObjectMetadataList {
        metadata: Some(proto::ListMeta {
            self_link: some(""),
            resource_version: Some(page.version.to_string()),
            r#continue: Some(next.unwrap_or_default()),
            remaining_item_count: page.remaining.and_then(|count| i64::try_from(count).ok()),
        }),
        items: page.items.iter().map(|item| partial(item.metadata())).collect(),
    })
}

/// A `Status`.
pub fn status(status: &Value) -> Bytes {
    let word = |value: &Value, pointer: &str| Some(text(value, pointer).to_owned());
    let details = status.get("details").map(|details| proto::StatusDetails {
        name: word(details, "/name"),
        group: word(details, "/group"),
        kind: word(details, "/kind"),
        causes: causes(details),
        retry_after_seconds: Some(number(&details["retryAfterSeconds"])),
        uid: word(details, "/uid"),
    });
    proto::encode(&proto::Status {
        metadata: Some(proto::ListMeta {
            self_link: some(""),
            resource_version: some(""),
            r#continue: word(status, "/metadata/continue"),
            remaining_item_count: None,
        }),
        status: word(status, "/status"),
        message: word(status, "/message"),
        reason: word(status, "/reason"),
        details,
        code: Some(number(&status["code"])),
    })
}

fn causes(details: &Value) -> Vec<proto::StatusCause> {
    let causes = details["causes"].as_array().into_iter().flatten();
    causes
        .map(|cause| proto::StatusCause {
            reason: some(text(cause, "/reason")),
            message: some(text(cause, "/message")),
            field: some(text(cause, "/field")),
        })
        .collect()
}

fn partial(json: &str) -> PartialObjectMetadata {
    // What is stored was checked, unless a test stored it raw: that is sent as far as it can be read.
    let read: ObjectMeta = serde_json::from_str(json).unwrap_or_default();
    PartialObjectMetadata {
        metadata: Some(read.into()),
    }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn number(value: &Value) -> i32 {
    value
        .as_i64()
        .and_then(|number| i32::try_from(number).ok())
        .unwrap_or_default()
}

fn time(time: Timestamp) -> proto::Time {
    proto::Time {
        seconds: Some(time.as_second()),
        nanos: Some(0),
    }
}

// === impl ObjectMeta ===

impl From<ObjectMeta> for proto::ObjectMeta {
    fn from(read: ObjectMeta) -> Self {
        proto::ObjectMeta {
            name: Some(read.name),
            generate_name: Some(read.generate_name),
            namespace: Some(read.namespace),
            self_link: some(""),
            uid: Some(read.uid),
            resource_version: Some(read.resource_version),
            generation: Some(read.generation),
            creation_timestamp: Some(read.creation_timestamp.map(time).unwrap_or_default()),
            deletion_timestamp: read.deletion_timestamp.map(time),
            deletion_grace_period_seconds: read.deletion_grace_period_seconds,
            labels: read.labels,
            annotations: read.annotations,
            owner_references: read.owner_references.into_iter().map(Into::into).collect(),
            finalizers: read.finalizers,
        }
    }
}

// === impl OwnerReference ===

impl From<OwnerReference> for proto::OwnerReference {
    fn from(read: OwnerReference) -> Self {
        proto::OwnerReference {
            kind: Some(read.kind),
            name: Some(read.name),
            uid: Some(read.uid),
            api_version: Some(read.api_version),
            controller: read.controller,
            block_owner_deletion: read.block_owner_deletion,
        }
    }
}
