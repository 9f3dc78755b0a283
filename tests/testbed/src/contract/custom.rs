//! Claims about custom objects, where they differ from built-in ones.

use anyhow::{Context, Result};
use http::{Method, header};
use serde_json::{Value, json};

use super::metadata::{LIST_PROTOBUF, ONE_PROTOBUF, PROTOBUF};
use super::scene::{Scene, refuses, uid, version};
use super::things::Things;
use crate::proto::{self, PartialObjectMetadata, PartialObjectMetadataList};
use crate::rest::Patch;

pub(super) async fn each_version_serves_the_same_objects(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, true, &["v1", "v1beta1"], Value::Null).await?;
    let thing = things.create("a").await?;
    let seen = s.admin.get(&things.one("v1beta1", "a")).await?.ok()?;
    assert_eq!((uid(&seen), version(&seen)), (uid(&thing), version(&thing)));
    assert_eq!(seen["apiVersion"], format!("{}/v1beta1", things.group));
    let created = s
        .admin
        .create(&things.all("v1beta1"), &things.thing("v1beta1", "b"))
        .await?
        .ok()?;
    assert_eq!(uid(&s.admin.get(&things.one("v1", "b")).await?.ok()?), uid(&created));
    Ok(())
}

pub(super) async fn custom_objects_keep_any_field_and_name_their_kind(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let mut thing = things.thing("v1", "a");
    thing["anything"] = json!({"empty": [], "nothing": null});
    assert_eq!(
        things.create_with(thing).await?["anything"],
        json!({"empty": [], "nothing": null})
    );
    let list = s.admin.get(&things.all("v1")).await?.ok()?;
    assert_eq!(list["kind"], "ThingList");
    assert_eq!(list["items"][0]["kind"], "Thing");
    assert_eq!(list["items"][0]["apiVersion"], format!("{}/v1", things.group));
    // It says even that it does not go on.
    assert_eq!(list["metadata"]["continue"], "");
    Ok(())
}

pub(super) async fn object_without_kind_is_bad(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, true, &["v1", "v2"], Value::Null).await?;
    let nameless = json!({"metadata": {"name": "a"}});
    for thing in [nameless, things.thing("v2", "a")] {
        refuses(&s.admin.create(&things.all("v1"), &thing).await?, 400, "BadRequest");
    }
    Ok(())
}

pub(super) async fn custom_metadata_is_available_in_protobuf_but_nothing_else(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let before = things.create("before").await?;
    let thing = things.create("a").await?;
    let answer = s.get_as(&things.one("v1", "a"), ONE_PROTOBUF).await?;
    assert_eq!((answer.code(), answer.header("content-type")), (200, PROTOBUF));
    let one: PartialObjectMetadata = proto::decode(&answer.bytes)?;
    let one = one.metadata.context("no metadata")?;
    assert_eq!((one.uid(), one.generation), (uid(&thing), Some(1)));
    let answer = s.get_as(&things.all("v1"), LIST_PROTOBUF).await?;
    assert_eq!(
        proto::decode::<PartialObjectMetadataList>(&answer.bytes)?.items.len(),
        2
    );
    let call = s
        .admin
        .call(Method::GET, &things.all("v1"))
        .header(header::ACCEPT, ONE_PROTOBUF);
    let options = [("watch", "true"), ("resourceVersion", version(&before))];
    let mut watch = call.options(&options).stream().await?;
    let (change, object) = watch.next_message().await?.context("no event")?;
    let added = proto::decode::<PartialObjectMetadata>(&object)?
        .metadata
        .unwrap_or_default();
    assert_eq!((change.as_str(), added.uid()), ("ADDED", uid(&thing)));
    let answer = s.get_as(&things.one("v1", "a"), PROTOBUF).await?;
    assert_eq!((answer.code(), answer.header("content-type")), (406, PROTOBUF));
    Ok(())
}

pub(super) async fn custom_objects_accept_no_strategic_patch(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let thing = things.create("a").await?;
    let patch = json!({"metadata": {"uid": uid(&thing), "labels": {"l": "1"}}});
    let answer = s.admin.patch(&things.one("v1", "a"), Patch::Strategic, &patch).await?;
    refuses(&answer, 415, "UnsupportedMediaType");
    assert_eq!(answer.body["details"], Value::Null);
    let merged = s
        .admin
        .patch(&things.one("v1", "a"), Patch::Merge, &patch)
        .await?
        .ok()?;
    assert_eq!(merged["metadata"]["labels"]["l"], "1");
    Ok(())
}

pub(super) async fn put_of_a_custom_object_needs_its_version_and_creates_none(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let thing = things.create("a").await?;
    let path = things.one("v1", "a");
    refuses(&s.admin.update(&path, &things.thing("v1", "a")).await?, 422, "Invalid");
    let mut next = thing.clone();
    next["spec"] = json!({"n": 1});
    assert_eq!(s.admin.update(&path, &next).await?.ok()?["spec"]["n"], 1);
    let absent = s.admin.update(&things.one("v1", "b"), &things.thing("v1", "b")).await?;
    refuses(&absent, 404, "NotFound");
    Ok(())
}

pub(super) async fn generation_of_a_custom_object_changes_except_with_metadata(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    things.create("a").await?;
    for (patch, generation) in [
        (json!({"metadata": {"labels": {"l": "1"}}}), 1),
        (json!({"anything": 1}), 2),
        (json!({"status": {"s": 1}}), 3),
    ] {
        let thing = s
            .admin
            .patch(&things.one("v1", "a"), Patch::Merge, &patch)
            .await?
            .ok()?;
        assert_eq!(thing["metadata"]["generation"], generation, "{patch}");
    }
    Ok(())
}

pub(super) async fn status_subresource_of_a_custom_object_accepts_only_status(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, true, &["v1"], json!({"status": {}})).await?;
    let mut thing = things.thing("v1", "a");
    thing["status"] = json!({"s": 0});
    assert_eq!(things.create_with(thing).await?["status"], Value::Null);
    let patch = json!({"metadata": {"labels": {"l": "1"}}, "spec": {"n": 1}, "status": {"s": 1}});
    let through_status = format!("{}/status", things.one("v1", "a"));
    let changed = s.admin.patch(&through_status, Patch::Merge, &patch).await?.ok()?;
    assert_eq!((&changed["status"], &changed["spec"]), (&json!({"s": 1}), &Value::Null));
    assert_eq!(
        (&changed["metadata"]["labels"], &changed["metadata"]["generation"]),
        (&Value::Null, &json!(1))
    );
    let patch = json!({"spec": {"n": 2}, "status": {"s": 2}});
    let changed = s
        .admin
        .patch(&things.one("v1", "a"), Patch::Merge, &patch)
        .await?
        .ok()?;
    assert_eq!((&changed["status"]["s"], &changed["spec"]["n"]), (&json!(1), &json!(2)));
    Ok(())
}
