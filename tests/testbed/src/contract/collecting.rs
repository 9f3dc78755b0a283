//! Claims about what a garbage collector does to owners and dependents: policies, references, finalizers.

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{Scene, refuses, uid, version};
use crate::owner_references::TEST_FINALIZER;
use crate::rest::{Answer, Patch};

fn controllers(s: &Scene<'_>) -> String {
    format!("/api/v1/namespaces/{}/replicationcontrollers", s.ns)
}

fn template() -> Value {
    let spec = json!({"containers": [{"name": "main", "image": "example.test/main"}], "restartPolicy": "Always"});
    json!({"metadata": {"labels": {"app": "a"}}, "spec": spec})
}

async fn new_controller(s: &Scene<'_>, metadata: Value) -> Result<Value> {
    let mut controller = json!({"metadata": metadata});
    controller["metadata"]["name"] = "a".into();
    controller["spec"] = json!({"replicas": 0, "selector": {"app": "a"}, "template": template()});
    Ok(s.admin.create(&controllers(s), &controller).await?.ok()?)
}

async fn delete_controller(s: &Scene<'_>, options: Value) -> Result<Answer> {
    Ok(s.admin.delete(&format!("{}/a", controllers(s)), Some(&options)).await?)
}

async fn delete(s: &Scene<'_>, options: Value) -> Result<Answer> {
    Ok(s.admin.delete(&s.map("a"), Some(&options)).await?)
}

async fn patch(s: &Scene<'_>, kind: Patch, metadata: Value) -> Result<Answer> {
    Ok(s.admin.patch(&s.map("a"), kind, &json!({"metadata": metadata})).await?)
}

fn owner(name: &str, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid})
}

fn finalizers(object: &Value) -> &Value {
    &object["metadata"]["finalizers"]
}

fn references(object: &Value) -> &Value {
    &object["metadata"]["ownerReferences"]
}

pub(super) async fn replication_controllers_orphan_by_default(s: &Scene<'_>) -> Result<()> {
    new_controller(s, json!({})).await?;
    let waiting = delete_controller(s, json!({})).await?;
    assert_eq!((waiting.code(), finalizers(&waiting.body)), (200, &json!(["orphan"])));
    delete_controller(s, json!({"propagationPolicy": "Background"}))
        .await?
        .ok()?;
    refuses(&s.admin.get(&format!("{}/a", controllers(s))).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn the_old_option_beats_a_finalizer_given_at_birth(s: &Scene<'_>) -> Result<()> {
    new_controller(s, json!({"finalizers": ["orphan"]})).await?;
    let gone = delete_controller(s, json!({"orphanDependents": false})).await?;
    assert_eq!((gone.code(), &gone.body["kind"]), (200, &json!("Status")));
    let held = json!({"finalizers": ["foregroundDeletion", TEST_FINALIZER]});
    s.new_map_with("a", held).await?;
    let waiting = delete(s, json!({"orphanDependents": false})).await?;
    assert_eq!(
        (waiting.code(), finalizers(&waiting.body)),
        (202, &json!([TEST_FINALIZER]))
    );
    Ok(())
}

pub(super) async fn a_finalizer_given_at_birth_is_a_policy(s: &Scene<'_>) -> Result<()> {
    for policy in ["foregroundDeletion", "orphan"] {
        s.new_map_with("a", json!({"finalizers": [policy]})).await?;
        assert_eq!(finalizers(&delete(s, json!({})).await?.ok()?), &json!([policy]));
        delete(s, json!({"propagationPolicy": "Background"})).await?.ok()?;
        refuses(&s.admin.get(&s.map("a")).await?, 404, "NotFound");
    }
    Ok(())
}

pub(super) async fn two_policies_at_once_are_invalid(s: &Scene<'_>) -> Result<()> {
    let both = json!({"finalizers": ["foregroundDeletion", "orphan"]});
    let map = json!({"metadata": {"name": "a", "finalizers": both["finalizers"]}});
    refuses(&s.admin.create(&s.maps(), &map).await?, 422, "Invalid");
    s.new_map("a").await?;
    refuses(&patch(s, Patch::Merge, both).await?, 422, "Invalid");
    Ok(())
}

pub(super) async fn a_deletion_that_waits_is_a_new_generation_once(s: &Scene<'_>) -> Result<()> {
    new_controller(s, json!({"finalizers": [TEST_FINALIZER]})).await?;
    for policy in ["Foreground", "Orphan", "Background"] {
        let waiting = delete_controller(s, json!({"propagationPolicy": policy})).await?.ok()?;
        assert_eq!(waiting["metadata"]["generation"], 2, "{policy}");
    }
    Ok(())
}

pub(super) async fn a_pod_s_policy_is_that_of_its_first_deletion(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let delete = async |options: Value| s.admin.delete(&s.pod("a"), Some(&options)).await;
    let first = delete(json!({"propagationPolicy": "Foreground"})).await?.ok()?;
    assert_eq!(finalizers(&first), &json!(["foregroundDeletion"]));
    assert_eq!(first["metadata"]["deletionGracePeriodSeconds"], 30);
    let second = delete(json!({"propagationPolicy": "Orphan"})).await?.ok()?;
    assert_eq!(second, first);
    // What shortens its grace may bring another one.
    let shorter = json!({"propagationPolicy": "Orphan", "gracePeriodSeconds": 1});
    assert_eq!(finalizers(&delete(shorter).await?.ok()?), &json!(["orphan"]));
    Ok(())
}

pub(super) async fn a_deletion_fits_the_version_that_it_names_and_no_other(s: &Scene<'_>) -> Result<()> {
    let map = s
        .new_map_with("a", json!({"ownerReferences": [owner("x", "1")]}))
        .await?;
    let only = |seen: &Value| json!({"preconditions": {"uid": uid(seen), "resourceVersion": version(seen)}});
    let taken = patch(s, Patch::Merge, json!({"ownerReferences": [owner("y", "2")]}))
        .await?
        .ok()?;
    refuses(&delete(s, only(&map)).await?, 409, "Conflict");
    delete(s, only(&taken)).await?.ok()?;
    // A pod goes in two steps, and the precondition holds for both.
    let pod = s.new_pod("a").await?;
    let mut options = only(&pod);
    options["gracePeriodSeconds"] = 0.into();
    s.admin.delete(&s.pod("a"), Some(&options)).await?.ok()?;
    refuses(&s.admin.get(&s.pod("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn references_may_disagree_about_one_uid_and_go_together(s: &Scene<'_>) -> Result<()> {
    let both = json!([owner("x", "1"), owner("y", "1"), owner("z", "2")]);
    let map = s.new_map_with("a", json!({"ownerReferences": both})).await?;
    assert_eq!(references(&map).as_array().map(Vec::len), Some(3));
    let out = json!({"uid": uid(&map), "ownerReferences": [{"$patch": "delete", "uid": "1"}]});
    let after = patch(s, Patch::Strategic, out.clone()).await?.ok()?;
    assert_eq!(references(&after), &json!([owner("z", "2")]));
    let again = patch(s, Patch::Strategic, out).await?.ok()?;
    assert_eq!(version(&again), version(&after));
    Ok(())
}

pub(super) async fn the_last_reference_leaves_no_list_behind(s: &Scene<'_>) -> Result<()> {
    for (kind, out) in [
        (Patch::Strategic, json!([{"$patch": "delete", "uid": "1"}])),
        (Patch::Merge, Value::Null),
    ] {
        s.new_map_with("a", json!({"ownerReferences": [owner("x", "1")]}))
            .await?;
        let after = patch(s, kind, json!({"ownerReferences": out})).await?.ok()?;
        assert_eq!(references(&after), &Value::Null);
        delete(s, json!({})).await?.ok()?;
    }
    Ok(())
}

pub(super) async fn unblocking_a_reference_that_is_gone_brings_it_back(s: &Scene<'_>) -> Result<()> {
    let map = s
        .new_map_with("a", json!({"ownerReferences": [owner("x", "1")]}))
        .await?;
    let mut unblocked = owner("y", "2");
    unblocked["blockOwnerDeletion"] = false.into();
    let unblock = json!({"uid": uid(&map), "ownerReferences": [unblocked]});
    let after = patch(s, Patch::Strategic, unblock.clone()).await?.ok()?;
    assert_eq!(references(&after).as_array().map(Vec::len), Some(2));
    // With the version at which it was there, it does not.
    let stale = json!({"resourceVersion": version(&map), "ownerReferences": [unblocked]});
    refuses(&patch(s, Patch::Strategic, stale).await?, 409, "Conflict");
    Ok(())
}

pub(super) async fn a_merge_of_references_fits_one_version(s: &Scene<'_>) -> Result<()> {
    let both = json!([owner("x", "1"), owner("y", "2")]);
    let map = s.new_map_with("a", json!({"ownerReferences": both})).await?;
    let keep = json!({"resourceVersion": version(&map), "ownerReferences": [owner("y", "2")]});
    let after = patch(s, Patch::Merge, keep.clone()).await?.ok()?;
    assert_eq!(references(&after), &json!([owner("y", "2")]));
    refuses(&patch(s, Patch::Merge, keep).await?, 409, "Conflict");
    Ok(())
}

pub(super) async fn owners_that_cannot_be_are_invalid(s: &Scene<'_>) -> Result<()> {
    let event = json!({"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1"});
    let mut nameless = owner("", "1");
    nameless["controller"] = true.into();
    let controller = |name: &str| {
        let mut owner = owner(name, name);
        owner["controller"] = true.into();
        owner
    };
    for references in [
        json!([event]),
        json!([nameless]),
        json!([controller("x"), controller("y")]),
    ] {
        let map = json!({"metadata": {"name": "a", "ownerReferences": references}});
        refuses(&s.admin.create(&s.maps(), &map).await?, 422, "Invalid");
    }
    Ok(())
}

pub(super) async fn a_wrong_owner_is_named_by_its_index_and_field(s: &Scene<'_>) -> Result<()> {
    for field in ["apiVersion", "kind", "name", "uid"] {
        let mut second = owner("y", "2");
        second[field] = "".into();
        let map = json!({"metadata": {"name": "a", "ownerReferences": [owner("x", "1"), second]}});
        let answer = s.admin.create(&s.maps(), &map).await?;
        refuses(&answer, 422, "Invalid");
        let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        assert!(!causes.is_empty(), "{}", answer.body);
        for cause in causes {
            assert_eq!(
                (&cause["field"], &cause["reason"]),
                (
                    &json!(format!("metadata.ownerReferences[1].{field}")),
                    &json!("FieldValueRequired")
                )
            );
        }
    }
    Ok(())
}
