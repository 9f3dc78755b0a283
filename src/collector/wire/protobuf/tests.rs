//! Pages and watches of the API server, and malformed ones.

use proptest::prelude::*;

use super::*;
use crate::collector::wire::WatchReader;

fn text<T: From<String>>(words: &str) -> Option<T> {
    Some(words.to_owned().into())
}

fn some(number: usize) -> meta::PartialObjectMetadata {
    let owner = |uid: &str, blocking| meta::OwnerReference {
        kind: text("ReplicaSet"),
        name: text("web"),
        uid: text(uid),
        api_version: text("apps/v1"),
        block_owner_deletion: blocking,
    };
    meta::PartialObjectMetadata {
        metadata: Some(meta::ObjectMeta {
            name: text(&format!("object-{number}")),
            namespace: text("default"),
            uid: text(&format!("uid-{number}")),
            resource_version: text(&number.to_string()),
            deletion_timestamp: number.is_multiple_of(3).then(|| vec![8, 1]),
            owner_references: vec![owner("a", None), owner("b", Some(true))],
            finalizers: vec!["foregroundDeletion".into(), "example.com/other".into()],
        }),
    }
}

/// An object as the API server sends it, with annotations, which are skipped.
fn sent(number: usize) -> Vec<u8> {
    let metadata = some(number).metadata.unwrap().encode_to_vec();
    tagged(1, &[metadata, tagged(12, &vec![b'x'; number % 300])].concat())
}

fn tagged(number: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(body.len() as u64, &mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

fn envelope(kind: &str, body: &[u8]) -> Vec<u8> {
    let kind = meta::TypeMeta {
        api_version: text("meta.k8s.io/v1"),
        kind: text(kind),
    };
    // The API server ends an envelope with two empty strings.
    [
        MAGIC,
        &tagged(1, &kind.encode_to_vec()),
        &tagged(2, body),
        &[0x1a, 0, 0x22, 0],
    ]
    .concat()
}

fn page(count: usize) -> Vec<u8> {
    let end = meta::ListMeta {
        resource_version: text("4711"),
        r#continue: text("next"),
    };
    let mut list = tagged(1, &end.encode_to_vec());
    for number in 0..count {
        list.extend(tagged(2, &sent(number)));
    }
    envelope(LIST, &list)
}

fn read(bytes: &[u8], cuts: &[usize]) -> Result<(Vec<Observed>, PageEnd), WireError> {
    let (mut reader, mut found) = (ListReader::default(), Vec::new());
    let mut from = 0;
    for &cut in cuts.iter().chain([&bytes.len()]) {
        let to = cut.clamp(from, bytes.len());
        reader.read(&bytes[from..to], |object| found.push(object))?;
        from = to;
    }
    Ok((found, reader.finish()?))
}

#[test]
fn a_protobuf_page_is_decoded_and_other_fields_are_skipped() {
    let (found, end) = read(&page(4), &[]).unwrap();
    let expected = PageEnd {
        version: 4711,
        continue_token: "next".into(),
    };
    assert_eq!((found.len(), end), (4, expected));
    assert_eq!((found[3].deleting, found[2].deleting), (true, false));
    let object = &found[2];
    assert_eq!(
        (&*object.name, &*object.namespace, &*object.uid),
        ("object-2", "default", "uid-2")
    );
    assert_eq!((object.foreground, object.orphan), (true, false));
    let blocking: Vec<bool> = object.owners.iter().map(|owner| owner.blocking).collect();
    assert_eq!(blocking, [false, true]);
    assert_eq!(object.owners[1].api_version, "apps/v1");
}

#[test]
fn a_truncated_page_is_an_error() {
    let page = page(3);
    for length in 0..page.len() - 4 {
        assert!(read(&page[..length], &[]).is_err(), "{length} of {}", page.len());
    }
}

#[test]
fn an_unexpected_answer_is_an_error() {
    let list = page(1);
    let json = br#"{"kind":"PodList","items":[]}"#;
    assert!(matches!(read(json, &[]), Err(WireError::NoMagic)));
    let status = envelope(STATUS, b"");
    assert!(matches!(read(&status, &[]), Err(WireError::Kind(kind)) if kind == STATUS));
    let mut huge = list[..4].to_vec();
    huge.extend([0x12, 0x10, 0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert!(matches!(read(&huge, &[]), Err(WireError::TooLarge(_))));
}

/// An object all of whose strings are these bytes.
fn spoiled(bytes: &[u8]) -> Vec<u8> {
    let owner: Vec<u8> = [1, 3, 4, 5].iter().flat_map(|&number| tagged(number, bytes)).collect();
    let own = [1, 3, 5, 14].iter().flat_map(|&number| tagged(number, bytes));
    tagged(
        1,
        &own.chain(tagged(6, b"7"))
            .chain(tagged(13, &owner))
            .collect::<Vec<u8>>(),
    )
}

#[test]
fn invalid_utf8_is_replaced_and_the_object_is_decoded() {
    let bytes = b"a\xff\xc3(";
    let list = [tagged(2, &sent(1)), tagged(2, &spoiled(bytes)), tagged(2, &sent(2))].concat();
    let (found, _) = read(&envelope(LIST, &list), &[]).unwrap();
    assert_eq!(found.len(), 3);
    let (object, damaged) = (&found[1], "a\u{fffd}\u{fffd}(");
    assert_eq!(
        (&*object.uid, &*object.name, &*object.namespace),
        (damaged, damaged, damaged)
    );
    assert_eq!((object.orphan, object.foreground), (false, false));
    let owner = &object.owners[0];
    assert_eq!((&*owner.uid, &*owner.name, &*owner.kind), (damaged, damaged, damaged));
    assert_eq!(owner.api_version, damaged);
    let events = WatchReader::new(true).read(&frame("ADDED", &envelope(OBJECT, &spoiled(bytes))));
    assert_eq!(events.unwrap(), [WatchEvent::Applied(object.clone())]);
}

fn frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let event = meta::WatchEvent {
        r#type: text(kind),
        object: Some(meta::RawExtension {
            raw: Some(Bytes::copy_from_slice(object)),
        }),
    };
    let event = event.encode_to_vec();
    [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
}

#[test]
fn all_event_types_are_decoded() {
    let object = envelope(OBJECT, &sent(1));
    let status = meta::Status {
        message: text("too old"),
        code: Some(410),
    };
    let stream = [
        frame("ADDED", &object),
        frame("MODIFIED", &object),
        frame("BOOKMARK", &envelope(OBJECT, &sent(7))),
        frame("DELETED", &object),
        frame("ERROR", &envelope(STATUS, &status.encode_to_vec())),
    ]
    .concat();
    let mut reader = WatchReader::new(true);
    let mut events = Vec::new();
    for byte in stream.chunks(7) {
        events.extend(reader.read(byte).unwrap());
    }
    let known = observed(some(1)).unwrap();
    let expected = [
        WatchEvent::Applied(known.clone()),
        WatchEvent::Applied(known.clone()),
        WatchEvent::Bookmark { version: 7 },
        WatchEvent::Deleted(known),
        WatchEvent::Error(410, "too old".into()),
    ];
    assert_eq!(events, expected);
}

proptest! {
    #[test]
    fn a_page_is_decoded_the_same_from_any_pieces(
        count in 0usize..20,
        mut cuts in proptest::collection::vec(0usize..6000, 0..12),
    ) {
        cuts.sort_unstable();
        let page = page(count);
        let (found, end) = read(&page, &cuts).unwrap();
        let expected: Vec<Observed> = (0..count).map(|number| observed(some(number)).unwrap()).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(end.version, 4711);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        framed in any::<bool>(),
    ) {
        let _ = read(&[MAGIC, &bytes].concat(), &[3, 50]);
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        let stream = if framed { [&length[..], &bytes].concat() } else { bytes };
        let _ = WatchReader::new(true).read(&stream);
    }
}
