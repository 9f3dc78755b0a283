//! Claims about deleting what has no grace period: preconditions, finalizers, policies, answers.

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{Scene, next, next_of, number, refuses, says, uid, version};
use crate::owner_references::TEST_FINALIZER;
use crate::rest::{
    Answer,
    EventType::{Added, Deleted, Modified},
    Patch,
};

async fn delete(s: &Scene<'_>, options: Value) -> Result<Answer> {
    Ok(s.admin.delete(&s.map("a"), Some(&options)).await?)
}

async fn held(s: &Scene<'_>) -> Result<Value> {
    s.new_map_with("a", json!({"finalizers": [TEST_FINALIZER]})).await
}

async fn release(s: &Scene<'_>) -> Result<Value> {
    Ok(s.admin
        .patch(&s.map("a"), Patch::Merge, &json!({"metadata": {"finalizers": null}}))
        .await?
        .ok()?)
}

fn finalizers(object: &Value) -> &Value {
    &object["metadata"]["finalizers"]
}

pub(super) async fn the_answer_names_what_was_removed(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    let answer = delete(s, json!({})).await?;
    assert_eq!(
        (answer.code(), &answer.body["kind"], &answer.body["status"]),
        (200, &json!("Status"), &json!("Success"))
    );
    assert_eq!(
        answer.body["details"],
        json!({"name": "a", "kind": "configmaps", "uid": uid(&map)})
    );
    refuses(&s.admin.get(&s.map("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn deletion_of_a_missing_object_is_not_found(s: &Scene<'_>) -> Result<()> {
    let answer = delete(s, json!({"preconditions": {"uid": "another"}})).await?;
    refuses(&answer, 404, "NotFound");
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "configmaps"}));
    assert_eq!(answer.message(), "configmaps \"a\" not found");
    Ok(())
}

pub(super) async fn another_uid_is_a_conflict_that_names_the_kind(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    let answer = delete(s, json!({"preconditions": {"uid": "another"}})).await?;
    refuses(&answer, 409, "Conflict");
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "ConfigMap"}));
    says(
        &answer,
        "the UID in the precondition (another) does not match the UID in record",
    );
    assert_eq!(version(&s.admin.get(&s.map("a")).await?.ok()?), version(&map));
    Ok(())
}

pub(super) async fn another_version_is_a_conflict(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let answer = delete(s, json!({"preconditions": {"resourceVersion": "1"}})).await?;
    refuses(&answer, 409, "Conflict");
    says(
        &answer,
        "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record",
    );
    Ok(())
}

pub(super) async fn matching_uid_and_version_allow_the_deletion(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    let preconditions = json!({"uid": uid(&map), "resourceVersion": version(&map)});
    delete(s, json!({"preconditions": preconditions})).await?.ok()?;
    refuses(&s.admin.get(&s.map("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn preconditions_hold_for_what_is_being_deleted_too(s: &Scene<'_>) -> Result<()> {
    held(s).await?;
    delete(s, json!({})).await?.ok()?;
    refuses(
        &delete(s, json!({"preconditions": {"uid": "another"}})).await?,
        409,
        "Conflict",
    );
    Ok(())
}

pub(super) async fn object_is_deleted_with_its_last_finalizer(s: &Scene<'_>) -> Result<()> {
    let map = held(s).await?;
    let mut watch = s.watch_after(&s.maps(), &map).await?;
    let answer = delete(s, json!({})).await?;
    assert_eq!((answer.code(), uid(&answer.body)), (200, uid(&map)));
    assert!(answer.body["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(answer.body["metadata"]["deletionGracePeriodSeconds"], 0);
    let change = next(&mut watch).await?;
    assert_eq!((change.kind, change.rv()), (Modified, version(&answer.body)));

    let patched = release(s).await?;
    assert_eq!(
        (uid(&patched), version(&patched)),
        (uid(&map), change.rv()),
        "the answer is the object as patched"
    );
    assert_eq!(finalizers(&patched), &Value::Null);
    let end = next(&mut watch).await?;
    assert_eq!(
        (end.kind, finalizers(&end.object)),
        (Deleted, &json!([TEST_FINALIZER])),
        "the last event is the last stored state"
    );
    assert!(number(end.rv())? > number(change.rv())?);
    refuses(&s.admin.get(&s.map("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn object_is_kept_with_one_of_two_finalizers(s: &Scene<'_>) -> Result<()> {
    s.new_map_with("a", json!({"finalizers": [TEST_FINALIZER, "example.test/too"]}))
        .await?;
    delete(s, json!({})).await?.ok()?;
    let out = json!({"metadata": {"finalizers": ["example.test/too"]}});
    s.admin.patch(&s.map("a"), Patch::Merge, &out).await?.ok()?;
    assert_eq!(
        finalizers(&s.admin.get(&s.map("a")).await?.ok()?),
        &json!(["example.test/too"])
    );
    Ok(())
}

pub(super) async fn update_without_finalizers_completes_the_deletion(s: &Scene<'_>) -> Result<()> {
    held(s).await?;
    let mut map = delete(s, json!({})).await?.ok()?;
    map["metadata"]["finalizers"] = json!([]);
    s.admin.update(&s.map("a"), &map).await?.ok()?;
    refuses(&s.admin.get(&s.map("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn deleting_again_changes_nothing(s: &Scene<'_>) -> Result<()> {
    held(s).await?;
    let first = delete(s, json!({})).await?.ok()?;
    let mut watch = s.watch_after(&s.maps(), &first).await?;
    assert_eq!(delete(s, json!({})).await?.ok()?, first);
    s.new_map("b").await?;
    assert_eq!(next_of(&mut watch).await?, (Added, "b".to_owned()));
    Ok(())
}

pub(super) async fn no_finalizer_is_added_during_deletion(s: &Scene<'_>) -> Result<()> {
    held(s).await?;
    delete(s, json!({})).await?.ok()?;
    let more = json!({"metadata": {"finalizers": [TEST_FINALIZER, "example.test/late"]}});
    let answer = s.admin.patch(&s.map("a"), Patch::Merge, &more).await?;
    refuses(&answer, 422, "Invalid");
    says(&answer, "metadata.finalizers");
    Ok(())
}

pub(super) async fn a_policy_is_a_finalizer_until_its_work_is_done(s: &Scene<'_>) -> Result<()> {
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        s.new_map("a").await?;
        let waiting = delete(s, json!({"propagationPolicy": policy})).await?.ok()?;
        assert_eq!(finalizers(&waiting), &json!([finalizer]));
        assert_eq!(
            finalizers(&delete(s, json!({})).await?.ok()?),
            &json!([finalizer]),
            "no policy keeps it"
        );
        release(s).await?;
        refuses(&s.admin.get(&s.map("a")).await?, 404, "NotFound");
    }
    Ok(())
}

pub(super) async fn a_later_policy_replaces_an_earlier_one(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    delete(s, json!({"propagationPolicy": "Foreground"})).await?.ok()?;
    let orphaning = delete(s, json!({"propagationPolicy": "Orphan"})).await?.ok()?;
    assert_eq!(finalizers(&orphaning), &json!(["orphan"]));
    delete(s, json!({"propagationPolicy": "Background"})).await?.ok()?;
    refuses(&s.admin.get(&s.map("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn options_that_contradict_are_invalid(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let both = json!({"orphanDependents": true, "propagationPolicy": "Background"});
    refuses(&delete(s, both).await?, 422, "Invalid");
    refuses(
        &delete(s, json!({"propagationPolicy": "Sideways"})).await?,
        422,
        "Invalid",
    );
    Ok(())
}

pub(super) async fn options_of_another_kind_are_bad(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    refuses(
        &delete(s, json!({"kind": "Pod", "apiVersion": "v1"})).await?,
        400,
        "BadRequest",
    );
    Ok(())
}
