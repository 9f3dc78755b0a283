//! Claims about patches.

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{Scene, next_of, refuses, says, version};
use crate::rest::{Answer, EventType::Added, Patch};

async fn patch(s: &Scene<'_>, kind: Patch, patch: Value) -> Result<Answer> {
    Ok(s.admin.patch(&s.map("a"), kind, &patch).await?)
}

fn owner(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": format!("uid-of-{name}")})
}

fn owners(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["ownerReferences"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut names: Vec<_> = list.iter().filter_map(|owner| owner["name"].as_str()).collect();
    names.sort_unstable();
    names
}

pub(super) async fn merging_removes_nulls_and_replaces_lists(s: &Scene<'_>) -> Result<()> {
    s.new_map_with(
        "a",
        json!({"labels": {"x": "1", "y": "2"}, "finalizers": ["example.test/a"]}),
    )
    .await?;
    let metadata = json!({"labels": {"x": null, "z": "3"}, "finalizers": ["example.test/b"]});
    let after = patch(s, Patch::Merge, json!({"metadata": metadata})).await?.ok()?;
    assert_eq!(after["metadata"]["labels"], json!({"y": "2", "z": "3"}));
    assert_eq!(after["metadata"]["finalizers"], json!(["example.test/b"]));
    Ok(())
}

pub(super) async fn owners_are_merged_strategically_by_uid(s: &Scene<'_>) -> Result<()> {
    s.new_map_with("a", json!({"ownerReferences": [owner("x")]})).await?;
    let mut changed = owner("x");
    changed["blockOwnerDeletion"] = true.into();
    let references = json!([changed, owner("y")]);
    let after = patch(
        s,
        Patch::Strategic,
        json!({"metadata": {"ownerReferences": references}}),
    )
    .await?
    .ok()?;
    assert_eq!(owners(&after), ["x", "y"]);
    let list = after["metadata"]["ownerReferences"].as_array();
    assert!(list.is_some_and(|list| list.contains(&changed)), "{after}");
    Ok(())
}

pub(super) async fn an_owner_is_taken_out_by_its_uid(s: &Scene<'_>) -> Result<()> {
    s.new_map_with("a", json!({"ownerReferences": [owner("x"), owner("y")]}))
        .await?;
    let out = |uid: &str| json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": uid}]}});
    let after = patch(s, Patch::Strategic, out("uid-of-x")).await?.ok()?;
    assert_eq!(owners(&after), ["y"]);
    let again = patch(s, Patch::Strategic, out("uid-of-x")).await?.ok()?;
    assert_eq!(version(&again), version(&after));
    Ok(())
}

pub(super) async fn a_json_patch_is_done_in_order(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let operations = json!([
        {"op": "add", "path": "/data", "value": {}},
        {"op": "add", "path": "/data/k", "value": "v"},
        {"op": "test", "path": "/data/k", "value": "v"},
        {"op": "replace", "path": "/data/k", "value": "w"},
    ]);
    let after = patch(s, Patch::Json, operations).await?.ok()?;
    assert_eq!(after["data"], json!({"k": "w"}));
    Ok(())
}

pub(super) async fn a_json_patch_whose_test_fails_changes_nothing(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    let operations = json!([
        {"op": "add", "path": "/data", "value": {"k": "v"}},
        {"op": "test", "path": "/metadata/uid", "value": "another"},
    ]);
    let answer = patch(s, Patch::Json, operations).await?;
    refuses(&answer, 422, "Invalid");
    says(
        &answer,
        "the server rejected our request due to an error in our request",
    );
    assert_eq!(version(&s.admin.get(&s.map("a")).await?.ok()?), version(&map));
    Ok(())
}

pub(super) async fn a_patch_of_another_uid_is_invalid_not_a_conflict(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    for kind in [Patch::Merge, Patch::Strategic] {
        let answer = patch(s, kind, json!({"metadata": {"uid": "another"}, "data": {"k": "v"}})).await?;
        refuses(&answer, 422, "Invalid");
        let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        assert!(
            causes.iter().any(|cause| cause["field"] == "metadata.uid"),
            "{}",
            answer.body
        );
        says(&answer, "field is immutable");
    }
    Ok(())
}

pub(super) async fn a_patch_of_a_stale_version_is_a_conflict(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    patch(s, Patch::Merge, json!({"data": {"k": "theirs"}})).await?.ok()?;
    let stale = json!({"metadata": {"resourceVersion": version(&map)}, "data": {"k": "ours"}});
    let answer = patch(s, Patch::Merge, stale).await?;
    refuses(&answer, 409, "Conflict");
    says(&answer, "the object has been modified");
    Ok(())
}

pub(super) async fn a_stale_version_is_seen_before_another_uid(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    patch(s, Patch::Merge, json!({"data": {"k": "theirs"}})).await?.ok()?;
    let both = json!({"metadata": {"resourceVersion": version(&map), "uid": "another"}});
    refuses(&patch(s, Patch::Merge, both).await?, 409, "Conflict");
    Ok(())
}

pub(super) async fn missing_object_cannot_be_patched(s: &Scene<'_>) -> Result<()> {
    for metadata in [json!({}), json!({"uid": "another"})] {
        let answer = patch(s, Patch::Merge, json!({"metadata": metadata, "data": {"k": "v"}})).await?;
        refuses(&answer, 404, "NotFound");
        assert_eq!(answer.body["details"], json!({"name": "a", "kind": "configmaps"}));
    }
    Ok(())
}

pub(super) async fn a_patch_that_changes_nothing_is_no_event_and_no_version(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map_with("a", json!({"labels": {"x": "1"}})).await?;
    let mut watch = s.watch_after(&s.maps(), &map).await?;
    for kind in [Patch::Merge, Patch::Strategic] {
        let after = patch(s, kind, json!({"metadata": {"labels": {"x": "1"}}}))
            .await?
            .ok()?;
        assert_eq!(version(&after), version(&map));
    }
    s.new_map("b").await?;
    assert_eq!(next_of(&mut watch).await?, (Added, "b".to_owned()));
    Ok(())
}

pub(super) async fn a_patch_of_an_unknown_type_is_unsupported(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let call = s.admin.call(http::Method::PATCH, &s.map("a"));
    let answer = call.body("application/json", b"{}".to_vec()).send().await?;
    refuses(&answer, 415, "UnsupportedMediaType");
    Ok(())
}

pub(super) async fn a_patch_that_cannot_be_read_is_bad(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let call = s.admin.call(http::Method::PATCH, &s.map("a"));
    let answer = call.body(Patch::Merge.content_type(), b"{".to_vec()).send().await?;
    refuses(&answer, 400, "BadRequest");
    Ok(())
}
