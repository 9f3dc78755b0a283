//! Claims about creating and updating.

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{Scene, next_of, number, refuses, says, uid, version};
use crate::rest::{EventType::Added, Patch};

async fn stored(s: &Scene<'_>, name: &str) -> Result<Value> {
    Ok(s.admin.get(&s.map(name)).await?.ok()?)
}

pub(super) async fn the_server_gives_uid_time_and_version(s: &Scene<'_>) -> Result<()> {
    let given = json!({
        "uid": "given", "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 5,
    });
    let map = s.new_map_with("a", given).await?;
    assert!(!uid(&map).is_empty() && uid(&map) != "given", "{map}");
    assert_ne!(map["metadata"]["creationTimestamp"], "2001-01-01T00:00:00Z");
    assert!(number(version(&map))? > 0);
    for absent in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        assert_eq!(map["metadata"][absent], Value::Null, "{absent}");
    }
    assert_eq!(
        (&map["metadata"]["namespace"], &map["kind"]),
        (&json!(s.ns), &json!("ConfigMap"))
    );
    Ok(())
}

pub(super) async fn creating_answers_201(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.create(&s.maps(), &json!({"metadata": {"name": "a"}})).await?;
    assert_eq!(answer.code(), 201);
    Ok(())
}

pub(super) async fn existing_object_cannot_be_created(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let answer = s.admin.create(&s.maps(), &json!({"metadata": {"name": "a"}})).await?;
    refuses(&answer, 409, "AlreadyExists");
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "configmaps"}));
    assert_eq!(answer.message(), "configmaps \"a\" already exists");
    Ok(())
}

pub(super) async fn object_being_deleted_still_exists(s: &Scene<'_>) -> Result<()> {
    s.new_map_with("a", json!({"finalizers": ["example.test/held"]}))
        .await?;
    s.admin.delete(&s.map("a"), None).await?.ok()?;
    let answer = s.admin.create(&s.maps(), &json!({"metadata": {"name": "a"}})).await?;
    refuses(&answer, 409, "AlreadyExists");
    assert!(
        answer.message().starts_with("object is being deleted: "),
        "{}",
        answer.message()
    );
    Ok(())
}

pub(super) async fn creating_with_a_version_is_an_internal_error(s: &Scene<'_>) -> Result<()> {
    let object = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
    let answer = s.admin.create(&s.maps(), &object).await?;
    assert_eq!(answer.code(), 500);
    says(&answer, "resourceVersion should not be set on objects to be created");
    Ok(())
}

pub(super) async fn missing_namespace_is_not_found(s: &Scene<'_>) -> Result<()> {
    let object = json!({"metadata": {"name": "a"}});
    let answer = s.admin.create("/api/v1/namespaces/absent/configmaps", &object).await?;
    refuses(&answer, 404, "NotFound");
    assert_eq!(answer.body["details"], json!({"name": "absent", "kind": "namespaces"}));
    Ok(())
}

pub(super) async fn body_and_path_must_agree_on_the_namespace(s: &Scene<'_>) -> Result<()> {
    let object = json!({"metadata": {"name": "a", "namespace": "default"}});
    refuses(&s.admin.create(&s.maps(), &object).await?, 400, "BadRequest");
    Ok(())
}

pub(super) async fn body_and_path_must_agree_on_the_name(s: &Scene<'_>) -> Result<()> {
    let mut map = s.new_map("a").await?;
    map["metadata"]["name"] = "b".into();
    refuses(&s.admin.update(&s.map("a"), &map).await?, 400, "BadRequest");
    Ok(())
}

pub(super) async fn a_body_that_cannot_be_read_is_bad(s: &Scene<'_>) -> Result<()> {
    let call = s.admin.call(http::Method::POST, &s.maps());
    let answer = call
        .body("application/json", b"{\"metadata\": ".to_vec())
        .send()
        .await?;
    refuses(&answer, 400, "BadRequest");
    Ok(())
}

pub(super) async fn a_stale_version_cannot_be_updated(s: &Scene<'_>) -> Result<()> {
    let mut stale = s.new_map("a").await?;
    s.admin
        .patch(&s.map("a"), Patch::Merge, &json!({"data": {"k": "theirs"}}))
        .await?
        .ok()?;
    stale["data"] = json!({"k": "ours"});
    let answer = s.admin.update(&s.map("a"), &stale).await?;
    refuses(&answer, 409, "Conflict");
    says(
        &answer,
        "the object has been modified; please apply your changes to the latest version and try again",
    );
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "configmaps"}));
    assert_eq!(stored(s, "a").await?["data"]["k"], "theirs");
    Ok(())
}

pub(super) async fn an_update_without_a_version_overwrites(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    s.admin
        .patch(&s.map("a"), Patch::Merge, &json!({"data": {"theirs": "x"}}))
        .await?
        .ok()?;
    let update = json!({"metadata": {"name": "a"}, "data": {"ours": "y"}});
    s.admin.update(&s.map("a"), &update).await?.ok()?;
    assert_eq!(stored(s, "a").await?["data"], json!({"ours": "y"}));
    Ok(())
}

pub(super) async fn an_update_of_another_uid_is_a_conflict(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let update = json!({"metadata": {"name": "a", "uid": "another"}, "data": {"k": "v"}});
    refuses(&s.admin.update(&s.map("a"), &update).await?, 409, "Conflict");
    Ok(())
}

pub(super) async fn missing_object_cannot_be_updated(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.update(&s.map("a"), &json!({"metadata": {"name": "a"}})).await?;
    refuses(&answer, 404, "NotFound");
    Ok(())
}

pub(super) async fn an_update_that_changes_nothing_is_no_event_and_no_version(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    let mut watch = s.watch_after(&s.maps(), &map).await?;
    let answer = s.admin.update(&s.map("a"), &map).await?.ok()?;
    assert_eq!(version(&answer), version(&map));
    s.new_map("b").await?;
    assert_eq!(next_of(&mut watch).await?, (Added, "b".to_owned()));
    Ok(())
}

pub(super) async fn setting_the_time_of_deletion_is_invalid(s: &Scene<'_>) -> Result<()> {
    let mut map = s.new_map("a").await?;
    map["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z".into();
    refuses(&s.admin.update(&s.map("a"), &map).await?, 422, "Invalid");
    Ok(())
}

pub(super) async fn removing_the_time_of_deletion_is_ignored(s: &Scene<'_>) -> Result<()> {
    s.new_map_with("a", json!({"finalizers": ["example.test/held"]}))
        .await?;
    s.admin.delete(&s.map("a"), None).await?.ok()?;
    let patch = json!({"metadata": {"deletionTimestamp": null, "deletionGracePeriodSeconds": null}});
    let after = s.admin.patch(&s.map("a"), Patch::Merge, &patch).await?.ok()?;
    assert!(after["metadata"]["deletionTimestamp"].is_string(), "{after}");
    assert_eq!(after["metadata"]["deletionGracePeriodSeconds"], 0);
    Ok(())
}

pub(super) async fn uid_and_time_of_creation_do_not_change(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    let patch = json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}, "data": {"k": "v"}});
    let after = s.admin.patch(&s.map("a"), Patch::Merge, &patch).await?.ok()?;
    assert_eq!(uid(&after), uid(&map));
    assert_eq!(
        after["metadata"]["creationTimestamp"],
        map["metadata"]["creationTimestamp"]
    );
    Ok(())
}

pub(super) async fn the_generation_of_a_pod_moves_with_its_spec_only(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod("a").await?;
    assert_eq!(pod["metadata"]["generation"], 1);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = s.admin.patch(&s.pod("a"), Patch::Merge, &label).await?.ok()?;
    assert_eq!(labelled["metadata"]["generation"], 1);
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "example.test/other"}]);
    let changed = s.admin.patch(&s.pod("a"), Patch::Json, &image).await?.ok()?;
    assert_eq!(changed["metadata"]["generation"], 2);
    Ok(())
}

pub(super) async fn the_node_of_a_pod_does_not_change(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let patch = json!({"spec": {"nodeName": s.other_node}});
    refuses(&s.admin.patch(&s.pod("a"), Patch::Merge, &patch).await?, 422, "Invalid");
    Ok(())
}

pub(super) async fn a_pod_is_pending_and_has_half_a_minute_of_grace_by_default(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod("a").await?;
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod["spec"]["restartPolicy"], "Always");
    Ok(())
}

pub(super) async fn a_recreated_object_has_another_uid(s: &Scene<'_>) -> Result<()> {
    let first = s.new_map("a").await?;
    s.admin.delete(&s.map("a"), None).await?.ok()?;
    let second = s.new_map("a").await?;
    assert_ne!(uid(&first), uid(&second));
    assert!(number(version(&second))? > number(version(&first))?);
    Ok(())
}
