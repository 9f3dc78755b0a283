//! JSON, for API servers without protobuf.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::types::{PageEnd, WatchEvent, WireError, meta, observed};
use crate::collector::graph::Observed;

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: meta::ListMeta,
    items: Option<Vec<meta::PartialObjectMetadata>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Decodes a page.
pub(super) fn page(body: &[u8], mut each: impl FnMut(Observed)) -> Result<PageEnd, WireError> {
    let page: Page = serde_json::from_slice(body)?;
    for object in page.items.into_iter().flatten() {
        each(observed(object)?);
    }
    PageEnd::new(page.metadata)
}

/// Decodes a line of a watch.
pub(super) fn event(line: &[u8]) -> Result<WatchEvent, WireError> {
    let Event { kind, object } = serde_json::from_slice(line)?;
    let object = object.get();
    WatchEvent::new(
        &kind,
        || Ok(serde_json::from_str(object)?),
        || Ok(serde_json::from_str(object)?),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::wire::WatchReader;

    #[test]
    fn a_json_page_is_decoded_and_other_fields_are_skipped() {
        let body = br#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"7","continue":"more"},"items":[{"metadata":
            {"name":"a","namespace":"n","uid":"u","resourceVersion":"5","deletionTimestamp":"2026-01-01T00:00:00Z",
            "labels":{"x":"y"},"finalizers":["x","orphan"],"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p",
            "uid":"o","controller":true,"blockOwnerDeletion":true}]},"data":{"k":"v"}},{"metadata":{"name":"b","uid":"w"}}]}"#;
        let mut objects = Vec::new();
        let end = page(body, |object| objects.push(object)).unwrap();
        assert_eq!((end.version, &*end.continue_token), (7, "more"));
        let [first, second] = &objects[..] else {
            panic!("{objects:?}")
        };
        assert_eq!(
            (&*first.name, &*first.namespace, &*first.uid, first.version),
            ("a", "n", "u", 5)
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
            r#"{"type":"ADDED","object":{"metadata":{"uid":"u","resourceVersion":"7","name":"\"a\""}}}"#,
            "\n",
            r#"{"type":"DELETED","object":{"metadata":{"uid":"u","resourceVersion":"8"}}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"x":"y"}}}}"#,
            "\n",
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#,
            "\n"
        );
        for size in 1..40 {
            let mut lines = WatchReader::new(false);
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
            assert_eq!(events[2], WatchEvent::Bookmark { version: 9 });
            assert_eq!(events[3], WatchEvent::Error(410, "too old".into()));
        }
    }
}
