//! Claims about custom kinds, which come and go with their definitions.

use anyhow::{Context, Result};
use http::{Method, header};
use serde_json::{Value, json};

use super::scene::{Scene, names, next, nothing_more, refuses, uid, until, version};
use crate::proto::{self, PartialObjectMetadata, PartialObjectMetadataList};
use crate::rest::{Answer, EventType::Deleted, Patch};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ONE_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const HELD: &str = "example.test/held";

/// The kind of one claim: `Thing`, in a group of the claim's own.
struct Things<'s> {
    s: &'s Scene<'s>,
    group: String,
    namespaced: bool,
}

// === impl Things ===

impl<'s> Things<'s> {
    /// Defines things with these versions, the first of which is stored, and returns once they are served.
    async fn define(s: &'s Scene<'_>, namespaced: bool, versions: &[&str], version_more: Value) -> Result<Things<'s>> {
        let things = Things {
            s,
            group: format!("{}.test", s.ns),
            namespaced,
        };
        let versions: Vec<Value> = versions
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
                let mut version = json!({"name": name, "served": true, "storage": index == 0});
                version["schema"] = json!({"openAPIV3Schema": schema});
                if version_more.is_object() {
                    version["subresources"] = version_more.clone();
                }
                version
            })
            .collect();
        let spec = json!({
            "group": things.group, "scope": if namespaced { "Namespaced" } else { "Cluster" },
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"}, "versions": versions,
        });
        let definition = json!({"metadata": {"name": things.name()}, "spec": spec});
        s.admin.create(DEFINITIONS, &definition).await?.ok()?;
        for version in &versions {
            let name = version["name"].as_str().unwrap_or_default();
            things.answers(&things.all(name), 200).await?;
        }
        Ok(things)
    }

    async fn simple(s: &'s Scene<'_>) -> Result<Things<'s>> {
        Things::define(s, true, &["v1"], Value::Null).await
    }

    /// The name of the definition.
    fn name(&self) -> String {
        format!("things.{}", self.group)
    }

    /// The path of the definition.
    fn definition(&self) -> String {
        format!("{DEFINITIONS}/{}", self.name())
    }

    /// The path of the claim's things.
    fn all(&self, version: &str) -> String {
        let place = if self.namespaced {
            format!("namespaces/{}/", self.s.ns)
        } else {
            String::new()
        };
        format!("/apis/{}/{version}/{place}things", self.group)
    }

    /// The path of one thing.
    fn one(&self, version: &str, name: &str) -> String {
        format!("{}/{name}", self.all(version))
    }

    /// A thing to be sent.
    fn thing(&self, version: &str, name: &str) -> Value {
        json!({"apiVersion": format!("{}/{version}", self.group), "kind": "Thing", "metadata": {"name": name}})
    }

    async fn create(&self, name: &str) -> Result<Value> {
        self.create_with(self.thing("v1", name)).await
    }

    async fn create_with(&self, thing: Value) -> Result<Value> {
        Ok(self.s.admin.create(&self.all("v1"), &thing).await?.ok()?)
    }

    async fn get(&self, path: &str, accept: &'static str) -> Result<Answer> {
        let call = self.s.admin.call(Method::GET, path).header(header::ACCEPT, accept);
        Ok(call.send().await?)
    }

    /// Waits until a path is answered with this code. The real server takes a moment to follow a definition.
    async fn answers(&self, path: &str, code: u16) -> Result<()> {
        until(async || Ok(self.s.admin.get(path).await?.code() == code))
            .await
            .with_context(|| format!("{path} is not answered with {code}"))
    }

    /// Changes whether the second version is served.
    async fn serve_second(&self, served: bool) -> Result<()> {
        let patch = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": served}]);
        self.s
            .admin
            .patch(&self.definition(), Patch::Json, &patch)
            .await?
            .ok()?;
        Ok(())
    }
}

fn is_missing_route(answer: &Answer) {
    assert_eq!(answer.code(), 404, "{}", answer.body);
    assert!(
        answer.header("content-type").starts_with("text/plain"),
        "{:?}",
        answer.headers
    );
    assert!(answer.message().starts_with("404 page not found"), "{}", answer.body);
}

pub(super) async fn what_is_defined_is_served_and_discovered(s: &Scene<'_>) -> Result<()> {
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
        let all = things.get("/apis", AGGREGATED).await?.ok()?;
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

pub(super) async fn what_does_not_say_what_it_is_is_bad(s: &Scene<'_>) -> Result<()> {
    let things = Things::define(s, true, &["v1", "v2"], Value::Null).await?;
    let nameless = json!({"metadata": {"name": "a"}});
    for thing in [nameless, things.thing("v2", "a")] {
        refuses(&s.admin.create(&things.all("v1"), &thing).await?, 400, "BadRequest");
    }
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

pub(super) async fn their_metadata_comes_in_protobuf_but_nothing_else_does(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let before = things.create("before").await?;
    let thing = things.create("a").await?;
    let answer = things.get(&things.one("v1", "a"), ONE_PROTOBUF).await?;
    assert_eq!((answer.code(), answer.header("content-type")), (200, PROTOBUF));
    let one: PartialObjectMetadata = proto::decode(&answer.bytes)?;
    let one = one.metadata.context("no metadata")?;
    assert_eq!((one.uid(), one.generation), (uid(&thing), Some(1)));
    let answer = things.get(&things.all("v1"), LIST_PROTOBUF).await?;
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
    let answer = things.get(&things.one("v1", "a"), PROTOBUF).await?;
    assert_eq!((answer.code(), answer.header("content-type")), (406, PROTOBUF));
    Ok(())
}

pub(super) async fn they_take_no_strategic_patch(s: &Scene<'_>) -> Result<()> {
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

pub(super) async fn putting_one_needs_its_version_and_creates_none(s: &Scene<'_>) -> Result<()> {
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

pub(super) async fn their_generation_moves_with_all_but_their_metadata(s: &Scene<'_>) -> Result<()> {
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

pub(super) async fn a_status_of_their_own_is_all_that_comes_in_through_it(s: &Scene<'_>) -> Result<()> {
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

pub(super) async fn instances_go_with_their_definition(s: &Scene<'_>) -> Result<()> {
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

pub(super) async fn a_definition_waits_for_an_instance_that_is_held(s: &Scene<'_>) -> Result<()> {
    let things = Things::simple(s).await?;
    let mut thing = things.thing("v1", "a");
    thing["metadata"]["finalizers"] = json!([HELD]);
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
    let spec = json!({
        "group": "example.test", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{
            "name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        }],
    });
    let definition = json!({"metadata": {"name": format!("others.{}.test", s.ns)}, "spec": spec});
    refuses(&s.admin.create(DEFINITIONS, &definition).await?, 422, "Invalid");
    Ok(())
}
