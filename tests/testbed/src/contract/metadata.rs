//! Claims about answers that hold nothing but metadata, in JSON and in protobuf.

use anyhow::{Context, Result};
use http::{Method, header};
use serde_json::{Value, json};

use super::scene::{Scene, refuses, uid, version};
use crate::proto::{self, ObjectMeta, PartialObjectMetadata, PartialObjectMetadataList, Status};
use crate::rest::Patch;

pub(super) const ONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(super) const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(super) const ONE_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(super) const LIST_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

pub(super) fn metadata(message: &[u8]) -> Result<ObjectMeta> {
    let object: PartialObjectMetadata = proto::decode(message)?;
    object.metadata.context("an object without metadata")
}

/// A map with all the metadata that a collector of garbage looks at, held by a finalizer.
pub(super) async fn owned(s: &Scene<'_>) -> Result<Value> {
    let owner = s.new_map("owner").await?;
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid(&owner), "blockOwnerDeletion": true,
    });
    let metadata = json!({
        "labels": {"l": "1"}, "annotations": {"a": "2"}, "ownerReferences": [reference],
        "finalizers": ["example.test/held"],
    });
    s.new_map_with("a", metadata).await
}

/// Whether protobuf metadata says what the JSON does.
pub(super) fn agrees(read: &ObjectMeta, map: &Value) {
    let json = &map["metadata"];
    assert_eq!(
        (read.name(), read.namespace(), read.uid()),
        ("a", json["namespace"].as_str().unwrap_or("?"), uid(map))
    );
    assert_eq!(read.resource_version(), version(map));
    assert_eq!((read.labels["l"].as_str(), read.annotations["a"].as_str()), ("1", "2"));
    assert_eq!(read.finalizers, ["example.test/held"]);
    let born = read.creation_timestamp.unwrap_or_default().seconds();
    let shown: Option<jiff::Timestamp> = json["creationTimestamp"].as_str().and_then(|at| at.parse().ok());
    assert_eq!(Some(born), shown.map(jiff::Timestamp::as_second));
    let [owner] = read.owner_references.as_slice() else {
        panic!("{:?}", read.owner_references)
    };
    let given = &json["ownerReferences"][0];
    assert_eq!(
        (owner.api_version(), owner.kind(), owner.name()),
        ("v1", "ConfigMap", "owner")
    );
    assert_eq!(owner.uid(), given["uid"].as_str().unwrap_or_default());
    assert_eq!((owner.controller, owner.block_owner_deletion), (None, Some(true)));
}

pub(super) async fn one_object_in_json_is_its_metadata_alone(s: &Scene<'_>) -> Result<()> {
    let map = owned(s).await?;
    let answer = s.get_as(&s.map("a"), ONE).await?;
    assert_eq!(answer.header("content-type"), "application/json");
    let partial = answer.ok()?;
    assert_eq!(
        (&partial["kind"], &partial["apiVersion"]),
        (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1"))
    );
    for field in [
        "name",
        "uid",
        "resourceVersion",
        "labels",
        "ownerReferences",
        "finalizers",
    ] {
        assert_eq!(partial["metadata"][field], map["metadata"][field], "{field}");
    }
    assert_eq!(partial.as_object().map(serde_json::Map::len), Some(3), "{partial}");
    Ok(())
}

pub(super) async fn one_object_in_protobuf_says_the_same(s: &Scene<'_>) -> Result<()> {
    let map = owned(s).await?;
    let answer = s.get_as(&s.map("a"), ONE_PROTOBUF).await?;
    assert_eq!((answer.code(), answer.header("content-type")), (200, PROTOBUF));
    let read = metadata(&answer.bytes)?;
    agrees(&read, &map);
    assert_eq!(
        (read.deletion_timestamp, read.deletion_grace_period_seconds),
        (None, None)
    );
    // What is no pointer there is sent even if it is zero.
    assert_eq!(read.generation, Some(0));
    Ok(())
}

pub(super) async fn deletion_is_visible_in_protobuf(s: &Scene<'_>) -> Result<()> {
    owned(s).await?;
    let foreground = json!({"propagationPolicy": "Foreground"});
    let deleted = s.admin.delete(&s.map("a"), Some(&foreground)).await?.ok()?;
    let read = metadata(&s.get_as(&s.map("a"), ONE_PROTOBUF).await?.bytes)?;
    let shown: jiff::Timestamp = deleted["metadata"]["deletionTimestamp"]
        .as_str()
        .unwrap_or("?")
        .parse()?;
    let read_time = read.deletion_timestamp.context("no deletion timestamp")?;
    assert_eq!(
        (read_time.seconds(), read.deletion_grace_period_seconds),
        (shown.as_second(), Some(0))
    );
    assert_eq!(read.finalizers, ["example.test/held", "foregroundDeletion"]);
    Ok(())
}

pub(super) async fn a_list_in_json_names_the_kind_of_its_items(s: &Scene<'_>) -> Result<()> {
    owned(s).await?;
    let list = s.get_as(&s.maps(), LIST).await?.ok()?;
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("PartialObjectMetadataList"), &json!("meta.k8s.io/v1"))
    );
    let item = &list["items"][0];
    assert_eq!(
        (&item["kind"], &item["apiVersion"]),
        (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1"))
    );
    assert_eq!(item["metadata"]["name"], "a");
    Ok(())
}

pub(super) async fn protobuf_list_continues_like_json(s: &Scene<'_>) -> Result<()> {
    let map = owned(s).await?;
    let page = async |token: &str| {
        let call = s
            .admin
            .call(Method::GET, &s.maps())
            .header(header::ACCEPT, LIST_PROTOBUF);
        let answer = call.options(&[("limit", "1"), ("continue", token)]).send().await?;
        assert_eq!((answer.code(), answer.header("content-type")), (200, PROTOBUF));
        anyhow::Ok(proto::decode::<PartialObjectMetadataList>(&answer.bytes)?)
    };
    let first = page("").await?;
    agrees(first.items[0].metadata.as_ref().context("no metadata")?, &map);
    let head = first.metadata.context("no list metadata")?;
    assert_eq!(head.remaining_item_count, Some(1));
    let last = page(head.r#continue()).await?;
    assert_eq!(last.items[0].metadata.as_ref().map(ObjectMeta::name), Some("owner"));
    let tail = last.metadata.context("no list metadata")?;
    assert_eq!((tail.r#continue(), tail.remaining_item_count), ("", None));
    assert_eq!(tail.resource_version(), head.resource_version());
    Ok(())
}

pub(super) async fn form_of_one_object_is_not_that_of_a_list(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    for accept in [LIST, LIST_PROTOBUF] {
        refuses(&s.get_as(&s.map("a"), accept).await?, 406, "NotAcceptable");
    }
    for accept in [ONE, ONE_PROTOBUF] {
        refuses(&s.get_as(&s.maps(), accept).await?, 406, "NotAcceptable");
    }
    Ok(())
}

pub(super) async fn unknown_form_is_not_acceptable(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    for accept in [
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v2",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io",
        "application/json;as=Unheardof;g=meta.k8s.io;v=v1",
        "application/*",
        "text/html",
    ] {
        refuses(&s.get_as(&s.map("a"), accept).await?, 406, "NotAcceptable");
    }
    Ok(())
}

pub(super) async fn first_known_form_is_used(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    for (accept, content_type, kind) in [
        (
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v2,application/json",
            "application/json",
            "ConfigMap",
        ),
        (
            "text/html, application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json",
            "application/json",
            "PartialObjectMetadata",
        ),
    ] {
        let answer = s.get_as(&s.map("a"), accept).await?;
        assert_eq!(answer.header("content-type"), content_type);
        assert_eq!(answer.ok()?["kind"], kind, "{accept}");
    }
    let protobuf_first = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                          application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    metadata(&s.get_as(&s.map("a"), protobuf_first).await?.bytes)?;
    Ok(())
}

pub(super) async fn a_refusal_is_in_json_if_only_objects_were_asked_for_in_protobuf(s: &Scene<'_>) -> Result<()> {
    for accept in [ONE, ONE_PROTOBUF] {
        let answer = s.get_as(&s.map("never"), accept).await?;
        assert_eq!(answer.header("content-type"), "application/json");
        refuses(&answer, 404, "NotFound");
    }
    let anything_in_protobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/vnd.kubernetes.protobuf";
    let answer = s.get_as(&s.map("never"), anything_in_protobuf).await?;
    assert_eq!((answer.code(), answer.header("content-type")), (404, PROTOBUF));
    let status: Status = proto::decode(&answer.bytes)?;
    assert_eq!((status.code(), status.reason()), (404, "NotFound"));
    let details = status.details.context("no details")?;
    assert_eq!(
        (details.name(), details.kind(), details.group()),
        ("never", "configmaps", "")
    );
    Ok(())
}

pub(super) async fn a_change_is_answered_as_asked(s: &Scene<'_>) -> Result<()> {
    owned(s).await?;
    let patch = json!({"metadata": {"labels": {"l": "3"}}});
    let change = |accept| {
        let call = s.admin.call(Method::PATCH, &s.map("a")).patch(Patch::Merge, &patch);
        call.header(header::ACCEPT, accept)
    };
    assert_eq!(change("application/json").send().await?.ok()?["kind"], "ConfigMap");
    assert_eq!(change(ONE).send().await?.ok()?["kind"], "PartialObjectMetadata");
    let answer = change(ONE_PROTOBUF).send().await?;
    assert_eq!(
        (answer.code(), metadata(&answer.bytes)?.labels["l"].as_str()),
        (200, "3")
    );
    Ok(())
}

pub(super) async fn a_deletion_is_answered_with_metadata_or_a_status(s: &Scene<'_>) -> Result<()> {
    let held = owned(s).await?;
    let delete = |name: &str, accept| {
        s.admin
            .call(Method::DELETE, &s.map(name))
            .header(header::ACCEPT, accept)
    };
    let answer = delete("a", ONE_PROTOBUF).send().await?;
    assert_eq!((answer.code(), metadata(&answer.bytes)?.uid()), (200, uid(&held)));
    // A missing object is answered with a Status, whatever was requested.
    let answer = delete("owner", ONE_PROTOBUF).send().await?;
    let status: Status = proto::decode(&answer.bytes)?;
    assert_eq!(
        (status.status(), status.details.as_ref().map(|details| details.name())),
        ("Success", Some("owner"))
    );
    s.new_map("b").await?;
    assert_eq!(delete("b", ONE).send().await?.ok()?["kind"], "Status");
    Ok(())
}
