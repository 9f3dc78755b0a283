//! JSON, for API servers without protobuf.

use std::borrow::Cow;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::event::{MAX_OBJECT, PageEnd, WatchEvent, WireError};
use crate::collector::graph::{Observed, Reference};

/// Decodes watch events, one per line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow, default)]
    metadata: ListMeta<'a>,
    #[serde(borrow, default)]
    items: Option<Vec<Object<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, rename = "continue")]
    continue_token: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, default)]
    metadata: Meta<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    #[serde(borrow)]
    owner_references: Option<Vec<Owner<'a>>>,
    #[serde(borrow)]
    finalizers: Option<Vec<Cow<'a, str>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Owner<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    block_owner_deletion: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

/// Decodes a page.
pub(super) fn page(body: &[u8], each: impl FnMut(Observed)) -> Result<PageEnd, WireError> {
    let page: Page<'_> = serde_json::from_slice(body)?;
    page.items.into_iter().flatten().map(observed).for_each(each);
    Ok(PageEnd {
        version: page.metadata.resource_version.into_owned(),
        continue_token: page.metadata.continue_token.into_owned(),
    })
}

/// Decodes an object.
fn object(body: &[u8]) -> Result<Observed, WireError> {
    Ok(observed(serde_json::from_slice(body)?))
}

/// Decodes an object from parsed JSON.
pub(super) fn value(value: &serde_json::Value) -> Result<Observed, WireError> {
    Ok(observed(Object::deserialize(value)?))
}

fn event(line: &[u8]) -> Result<WatchEvent, WireError> {
    let event: Event<'_> = serde_json::from_slice(line)?;
    let raw = event.object.get();
    let seen = || object(raw.as_bytes());
    Ok(match &*event.kind {
        "ADDED" | "MODIFIED" => WatchEvent::Applied(seen()?),
        "DELETED" => WatchEvent::Deleted(seen()?),
        "BOOKMARK" => {
            let metadata = serde_json::from_str::<Object<'_>>(raw)?.metadata;
            WatchEvent::Bookmark {
                version: metadata.resource_version.into_owned(),
            }
        }
        "ERROR" => {
            let status: Status = serde_json::from_str(raw)?;
            WatchEvent::Error(status.code, status.message)
        }
        other => return Err(WireError::Kind(other.to_owned())),
    })
}

fn observed(object: Object<'_>) -> Observed {
    let metadata = object.metadata;
    let finalizers = metadata.finalizers.unwrap_or_default();
    let finalizer = |wanted: &str| finalizers.iter().any(|finalizer| finalizer == wanted);
    let owners = metadata.owner_references.into_iter().flatten().map(|owner| Reference {
        api_version: owner.api_version.into_owned(),
        kind: owner.kind.into_owned(),
        name: owner.name.into_owned(),
        uid: owner.uid.into_owned(),
        blocking: owner.block_owner_deletion.unwrap_or_default(),
    });
    Observed {
        uid: metadata.uid.into_owned(),
        namespace: metadata.namespace.into_owned(),
        name: metadata.name.into_owned(),
        version: metadata.resource_version.into_owned(),
        deleting: metadata.deletion_timestamp.is_some(),
        orphan: finalizer("orphan"),
        foreground: finalizer("foregroundDeletion"),
        owners: owners.collect(),
    }
}

// === impl Lines ===

impl Lines {
    pub fn read(&mut self, chunk: &[u8]) -> Result<Vec<WatchEvent>, WireError> {
        self.buffer.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
            let line = self.buffer.split_to(end + 1);
            if !line.trim_ascii().is_empty() {
                events.push(event(&line)?);
            }
        }
        if self.buffer.len() > MAX_OBJECT {
            return Err(WireError::TooLarge(self.buffer.len()));
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_page_is_decoded_and_other_fields_are_skipped() {
        let body = br#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"7","continue":"more"},"items":[{"metadata":
            {"name":"a","namespace":"n","uid":"u","resourceVersion":"5","deletionTimestamp":"2026-01-01T00:00:00Z",
            "labels":{"x":"y"},"finalizers":["x","orphan"],"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p",
            "uid":"o","controller":true,"blockOwnerDeletion":true}]},"data":{"k":"v"}},{"metadata":{"name":"b","uid":"w"}}]}"#;
        let mut objects = Vec::new();
        let end = page(body, |object| objects.push(object)).unwrap();
        assert_eq!((&*end.version, &*end.continue_token), ("7", "more"));
        let [first, second] = &objects[..] else {
            panic!("{objects:?}")
        };
        assert_eq!(
            (&*first.name, &*first.namespace, &*first.uid, &*first.version),
            ("a", "n", "u", "5")
        );
        assert_eq!((first.deleting, first.orphan, first.foreground), (true, true, false));
        let owner = &first.owners[0];
        assert_eq!((&*owner.kind, &*owner.uid, owner.blocking), ("Pod", "o", true));
        assert_eq!((&*second.name, second.owners.len(), second.deleting), ("b", 0, false));
    }

    #[test]
    fn items_may_be_null() {
        assert!(page(br#"{"metadata":{"resourceVersion":"7"},"items":null}"#, |_| panic!()).is_ok());
    }

    #[test]
    fn a_watch_is_read_from_pieces_of_any_size() {
        let text = concat!(
            r#"{"type":"ADDED","object":{"metadata":{"uid":"u","name":"\"a\""}}}"#,
            "\n",
            r#"{"type":"DELETED","object":{"metadata":{"uid":"u"}}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"x":"y"}}}}"#,
            "\n",
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#,
            "\n"
        );
        for size in 1..40 {
            let mut lines = Lines::default();
            let events: Vec<_> = text
                .as_bytes()
                .chunks(size)
                .flat_map(|chunk| lines.read(chunk).unwrap())
                .collect();
            assert_eq!(events.len(), 4, "{size}: {events:?}");
            assert!(
                matches!(&events[0], WatchEvent::Applied(it) if it.name == "\"a\""),
                "{events:?}"
            );
            assert!(matches!(&events[1], WatchEvent::Deleted(it) if it.uid == "u"));
            assert_eq!(events[2], WatchEvent::Bookmark { version: "9".into() });
            assert_eq!(events[3], WatchEvent::Error(410, "too old".into()));
        }
    }
}
