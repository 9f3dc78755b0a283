//! Metadata and refusals as protobuf messages, from their JSON.
//!
//! As the API server does, texts and numbers that are no pointers there are sent even if they are empty or zero.

use bytes::Bytes;
use serde_json::Value;

use crate::apiserver::list::Page;
use crate::proto::{self, ListMeta, ObjectMeta, PartialObjectMetadata, PartialObjectMetadataList, Status};

pub fn metadata(json: &str) -> Bytes {
    proto::encode(&partial(json))
}

/// The metadata of the objects of a list.
pub fn list(page: &Page) -> Bytes {
    proto::encode(&PartialObjectMetadataList {
        metadata: Some(ListMeta {
            self_link: Some(String::new()),
            resource_version: Some(page.version.to_string()),
            r#continue: Some(page.next().unwrap_or_default()),
            remaining_item_count: page.remaining.and_then(|count| i64::try_from(count).ok()),
        }),
        items: page.items.iter().map(|item| partial(item.metadata())).collect(),
    })
}

pub fn status(status: &Value) -> Bytes {
    let mut status: Status = serde_json::from_value(status.clone()).unwrap_or_default();
    let metadata = status.metadata.get_or_insert_default();
    metadata.self_link.get_or_insert_default();
    metadata.resource_version.get_or_insert_default();
    if let Some(details) = &mut status.details {
        for text in [
            &mut details.name,
            &mut details.group,
            &mut details.kind,
            &mut details.uid,
        ] {
            text.get_or_insert_default();
        }
        details.retry_after_seconds.get_or_insert_default();
    }
    proto::encode(&status)
}

fn partial(json: &str) -> PartialObjectMetadata {
    // What is stored was checked, unless a test stored it raw: that is sent as far as it can be read.
    let mut read: ObjectMeta = serde_json::from_str(json).unwrap_or_default();
    for text in [
        &mut read.name,
        &mut read.generate_name,
        &mut read.namespace,
        &mut read.self_link,
        &mut read.uid,
        &mut read.resource_version,
    ] {
        text.get_or_insert_default();
    }
    read.generation.get_or_insert_default();
    read.creation_timestamp.get_or_insert_default();
    PartialObjectMetadata { metadata: Some(read) }
}
