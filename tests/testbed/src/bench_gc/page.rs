//! Pages of metadata in protobuf. Objects are counted and not decoded: the cheapest possible reader.

use anyhow::{Context, Result};
use bytes::Bytes;
use prost::Message;

use crate::http2::{Http2, METADATA_LIST};
use crate::proto::ListMeta;

const MAGIC: &[u8] = b"k8s\0";

/// A page of a list.
#[derive(Clone, PartialEq, Message)]
pub struct Page {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    /// The objects, not decoded.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

// === impl Page ===

impl Page {
    /// Requests the page; `path` may have a query.
    pub async fn get(client: &Http2, path: &str) -> Result<Self> {
        let answer = client.get(path, METADATA_LIST).await?;
        Self::read(answer.ok()?).with_context(|| format!("read {path}"))
    }

    fn read(mut bytes: Bytes) -> Result<Self> {
        anyhow::ensure!(bytes.starts_with(MAGIC), "no protobuf of Kubernetes");
        let envelope = Envelope::decode(bytes.split_off(MAGIC.len()))?;
        Ok(Self::decode(envelope.raw)?)
    }

    /// The `continue` token, if there is a next page.
    pub fn next(&self) -> Option<&str> {
        let next = self.metadata.as_ref()?.r#continue.as_deref()?;
        (!next.is_empty()).then_some(next)
    }

    /// Number of objects from this page on.
    pub fn left(&self) -> u32 {
        let after = self.metadata.as_ref().map_or(0, ListMeta::remaining_item_count);
        u32::try_from(after).unwrap_or(0) + u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{self, PartialObjectMetadata, PartialObjectMetadataList};

    fn page(items: usize, next: Option<&str>, remaining: Option<i64>) -> Page {
        let list = PartialObjectMetadataList {
            metadata: Some(ListMeta {
                r#continue: next.map(str::to_owned),
                remaining_item_count: remaining,
                ..ListMeta::default()
            }),
            items: vec![PartialObjectMetadata::default(); items],
        };
        Page::read(proto::encode(&list)).unwrap()
    }

    #[test]
    fn a_page_counts_itself_and_the_following_ones() {
        let first = page(1, Some("token"), Some(41));
        assert_eq!((first.left(), first.next()), (42, Some("token")));
    }

    #[test]
    fn the_last_page_has_no_continue_token() {
        assert_eq!((page(2, Some(""), None).left(), page(2, None, None).next()), (2, None));
        assert_eq!((page(0, None, None).left(), page(0, Some(""), None).next()), (0, None));
    }

    #[test]
    fn other_formats_than_protobuf_are_an_error() {
        assert!(Page::read(Bytes::from_static(b"{}")).is_err());
    }
}
