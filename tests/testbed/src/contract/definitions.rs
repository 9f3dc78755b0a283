//! Claims about custom kinds, which come and go with their definitions.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::discovery::AGGREGATED;
use super::scene::{Scene, names, next, nothing_more, refuses, uid, until};
use super::things::Things;
use crate::owner_references::TEST_FINALIZER;
use crate::rest::{Answer, EventType::Deleted, Patch};
use crate::things::{DEFINITIONS, definition};

fn is_missing_route(answer: &Answer) {
    assert_eq!(answer.code(), 404, "{}", answer.body);
    assert!(
        answer.header("content-type").starts_with("text/plain"),
        "{:?}",
        answer.headers
    );
    assert!(answer.message().starts_with("404 page not found"), "{}", answer.body);
}

pub(super) async fn defined_kind_is_served_and_discovered(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let definition = s.admin.get(&things.definition()).await?.ok()?;
    let conditions = definition["status"]["conditions"].as_array().context("no conditions")?;
    let established = conditions.iter().find(|condition| condition["type"] == "Established");
    assert_eq!(established.context("not established")?["status"], "True");
    let path = format!("/apis/{}/v1", things.group);
    things.answers(&path, 200).await?;
    let list = s.admin.get(&path).await?.ok()?;
    let resource = &list["resources"][0];
    assert_eq!(
        (&resource["name"], &resource["kind"]),
        (&json!("things"), &json!("Thing"))
    );
    assert_eq!(
        (&resource["singularName"], &resource["namespaced"]),
        (&json!("thing"), &json!(true))
    );
    for verb in ["delete", "list", "patch", "watch"] {
        assert!(resource["verbs"].to_string().contains(verb), "{resource}");
    }
    Ok(())
}

pub(super) async fn all_at_once_its_kind_is_named_with_group_and_version(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, false, &["v1", "v2beta1"], Value::Null).await?;
    let mut found = Value::Null;
    until(async || {
        let all = s.get_as("/apis", AGGREGATED).await?.ok()?;
        let groups = all["items"].as_array().cloned().unwrap_or_default();
        let group = groups
            .into_iter()
            .find(|group| group["metadata"]["name"] == things.group);
        found = group.unwrap_or_default();
        Ok(found["versions"].as_array().is_some_and(|versions| versions.len() == 2))
    })
    .await?;
    // The stable version is preferred, whatever its number.
    assert_eq!(found["versions"][0]["version"], "v1");
    let resource = &found["versions"][1]["resources"][0];
    assert_eq!(
        resource["responseKind"],
        json!({"group": things.group, "version": "v2beta1", "kind": "Thing"})
    );
    assert_eq!(
        (&resource["resource"], &resource["scope"]),
        (&json!("things"), &json!("Cluster"))
    );
    Ok(())
}

pub(super) async fn a_cluster_wide_kind_has_no_namespaces_and_the_other_way_round(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, false, &["v1"], Value::Null).await?;
    assert_eq!(things.create("a").await?["metadata"]["namespace"], Value::Null);
    let elsewhere = format!("/apis/{}/v1/namespaces/{}/things/a", things.group, s.ns);
    is_missing_route(&s.admin.get(&elsewhere).await?);
    is_missing_route(&s.admin.get(&format!("/apis/{}/v1/others", things.group)).await?);
    let missing = s.admin.get(&things.one("v1", "never")).await?;
    refuses(&missing, 404, "NotFound");
    assert_eq!(
        missing.body["details"],
        json!({"name": "never", "group": things.group, "kind": "things"})
    );
    Ok(())
}

pub(super) async fn a_version_that_is_no_longer_served_has_no_route(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, true, &["v1", "v1beta1"], Value::Null).await?;
    let thing = things.create("a").await?;
    things.serve_second(false).await?;
    things.answers(&things.all("v1beta1"), 404).await?;
    things.answers(&format!("/apis/{}/v1beta1", things.group), 404).await?;
    is_missing_route(&s.admin.get(&things.one("v1beta1", "a")).await?);
    is_missing_route(&s.admin.get(&format!("/apis/{}/v1beta1", things.group)).await?);
    things.answers(&things.one("v1", "a"), 200).await?;
    assert_eq!(uid(&s.admin.get(&things.one("v1", "a")).await?.ok()?), uid(&thing));
    things.serve_second(true).await?;
    things.answers(&things.one("v1beta1", "a"), 200).await
}

pub(super) async fn a_change_of_what_is_served_ends_the_watches(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, true, &["v1", "v1beta1"], Value::Null).await?;
    let thing = things.create("a").await?;
    let mut watch = s.watch_after(&things.all("v1"), &thing).await?;
    things.serve_second(false).await?;
    nothing_more(&mut watch).await
}

pub(super) async fn instances_are_deleted_with_their_definition(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    things.create("a").await?;
    let last = things.create("b").await?;
    let mut watch = s.watch_after(&things.all("v1"), &last).await?;
    let deleted = s.admin.delete(&things.definition(), None).await?.ok()?;
    assert_eq!(
        deleted["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    let mut gone = Vec::new();
    for _ in 0..2 {
        let event = next(&mut watch).await?;
        assert_eq!(event.kind, Deleted);
        gone.push(event.name().to_owned());
    }
    gone.sort();
    assert_eq!(gone, ["a", "b"]);
    nothing_more(&mut watch).await?;
    things.answers(&things.definition(), 404).await?;
    things.answers(&things.all("v1"), 404).await?;
    is_missing_route(&s.admin.get(&things.one("v1", "a")).await?);
    Ok(())
}

pub(super) async fn definition_waits_for_an_instance_with_a_finalizer(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let mut thing = things.thing("v1", "a");
    thing["metadata"]["finalizers"] = json!([TEST_FINALIZER]);
    things.create_with(thing).await?;
    s.admin.delete(&things.definition(), None).await?.ok()?;
    until(async || {
        let seen = s.admin.get(&things.one("v1", "a")).await?.body;
        Ok(seen["metadata"]["deletionTimestamp"].is_string())
    })
    .await?;
    let late = s.admin.create(&things.all("v1"), &things.thing("v1", "late")).await?;
    refuses(&late, 403, "Forbidden");
    assert_eq!(s.admin.get(&things.definition()).await?.code(), 200);
    let patch = json!({"metadata": {"finalizers": null}});
    s.admin
        .patch(&things.one("v1", "a"), Patch::Merge, &patch)
        .await?
        .ok()?;
    things.answers(&things.definition(), 404).await?;
    things.answers(&things.all("v1"), 404).await
}

/// Even if its instances are deleted and only another finalizer keeps it.
pub(super) async fn a_deleted_definition_takes_no_new_instance_as_long_as_it_is_there(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    things.create("a").await?;
    let hold = json!({"metadata": {"finalizers": [TEST_FINALIZER]}});
    let held = s.admin.patch(&things.definition(), Patch::Merge, &hold).await?.ok()?;
    assert_eq!(held["metadata"]["finalizers"], json!([TEST_FINALIZER]));
    s.admin.delete(&things.definition(), None).await?.ok()?;
    until(async || {
        let definition = s.admin.get(&things.definition()).await?.ok()?;
        Ok(definition["metadata"]["finalizers"] == json!([TEST_FINALIZER]))
    })
    .await?;
    until(async || {
        let late = s.admin.create(&things.all("v1"), &things.thing("v1", "late")).await?;
        if late.code() == 201 {
            bail!("an instance was created although its definition is being deleted");
        }
        Ok(late.code() == 403)
    })
    .await?;
    let release = json!({"metadata": {"finalizers": null}});
    s.admin
        .patch(&things.definition(), Patch::Merge, &release)
        .await?
        .ok()?;
    things.answers(&things.definition(), 404).await
}

pub(super) async fn a_definition_that_comes_back_brings_nothing_back(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    things.create("a").await?;
    s.admin.delete(&things.definition(), None).await?.ok()?;
    things.answers(&things.definition(), 404).await?;
    things.answers(&things.all("v1"), 404).await?;
    let again = Things::simple(s).await?;
    assert!(names(&s.admin.get(&again.all("v1")).await?.ok()?).is_empty());
    again.create("a").await?;
    Ok(())
}

pub(super) async fn a_definition_is_named_after_what_it_defines(s: &Scene<'_>) -> Result<()> {
    let mut definition = definition("example.test", false, &["v1"]);
    definition["metadata"]["name"] = format!("others.{}.test", s.ns).into();
    refuses(&s.admin.create(DEFINITIONS, &definition).await?, 422, "Invalid");
    Ok(())
}
