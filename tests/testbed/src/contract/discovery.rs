//! Claims about what a server says that it serves.

use anyhow::{Context, Result};
use http::{HeaderValue, Method, header};
use serde_json::{Value, json};

use super::scene::{Scene, refuses, until};

pub(super) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The entry of a list that has this at `field`.
fn entry<'a>(list: &'a Value, field: &str, wanted: &str) -> Result<&'a Value> {
    let found = list
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry[field] == wanted);
    found.with_context(|| format!("no entry with {field} {wanted}"))
}

/// A group in an aggregated answer; the core group has no name.
fn group<'a>(all: &'a Value, name: &str) -> Result<&'a Value> {
    let groups = all["items"].as_array().into_iter().flatten();
    let mut named = groups.filter(|group| group["metadata"]["name"].as_str().unwrap_or_default() == name);
    named.next().with_context(|| format!("no group {name:?}"))
}

fn has_verbs(resource: &Value, verbs: &[&str]) -> bool {
    let given = resource["verbs"].as_array().map(Vec::as_slice).unwrap_or_default();
    given.len() == verbs.len() && verbs.iter().all(|verb| given.contains(&json!(verb)))
}

const ALL: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

pub(super) async fn the_core_has_its_one_version(s: &Scene<'_>) -> Result<()> {
    let core = s.admin.get("/api").await?.ok()?;
    assert_eq!(
        (&core["kind"], &core["versions"]),
        (&json!("APIVersions"), &json!(["v1"]))
    );
    Ok(())
}

pub(super) async fn a_group_names_its_versions_and_the_preferred_one(s: &Scene<'_>) -> Result<()> {
    let all = s.admin.get("/apis").await?.ok()?;
    assert_eq!(all["kind"], "APIGroupList");
    let version = json!({"groupVersion": "apps/v1", "version": "v1"});
    let apps = json!({"name": "apps", "versions": [version], "preferredVersion": version});
    assert_eq!(entry(&all["groups"], "name", "apps")?, &apps);
    let mut one = s.admin.get("/apis/apps").await?.ok()?;
    assert_eq!(
        (one["kind"].take(), one["apiVersion"].take()),
        (json!("APIGroup"), json!("v1"))
    );
    assert_eq!((&one["name"], &one["versions"]), (&apps["name"], &apps["versions"]));
    Ok(())
}

pub(super) async fn a_version_lists_its_resources(s: &Scene<'_>) -> Result<()> {
    let apps = s.admin.get("/apis/apps/v1").await?.ok()?;
    assert_eq!(
        (&apps["kind"], &apps["groupVersion"]),
        (&json!("APIResourceList"), &json!("apps/v1"))
    );
    let deployments = entry(&apps["resources"], "name", "deployments")?;
    assert_eq!(
        (&deployments["kind"], &deployments["namespaced"]),
        (&json!("Deployment"), &json!(true))
    );
    assert_eq!(deployments["singularName"], "deployment");
    assert!(has_verbs(deployments, ALL), "{deployments}");
    let core = s.admin.get("/api/v1").await?.ok()?;
    assert_eq!(core["groupVersion"], "v1");
    let namespaces = entry(&core["resources"], "name", "namespaces")?;
    assert_eq!(namespaces["namespaced"], false);
    assert!(
        !namespaces["verbs"].to_string().contains("deletecollection"),
        "{namespaces}"
    );
    Ok(())
}

pub(super) async fn subresource_has_its_own_entry(s: &Scene<'_>) -> Result<()> {
    let core = s.admin.get("/api/v1").await?.ok()?;
    let status = entry(&core["resources"], "name", "pods/status")?;
    assert_eq!((&status["kind"], &status["singularName"]), (&json!("Pod"), &json!("")));
    assert!(has_verbs(status, &["get", "patch", "update"]), "{status}");
    let eviction = entry(&core["resources"], "name", "pods/eviction")?;
    assert_eq!(
        (&eviction["group"], &eviction["version"]),
        (&json!("policy"), &json!("v1"))
    );
    assert_eq!(eviction["kind"], "Eviction");
    Ok(())
}

pub(super) async fn unstored_resource_can_only_be_created(s: &Scene<'_>) -> Result<()> {
    let list = s.admin.get("/apis/authorization.k8s.io/v1").await?.ok()?;
    let review = entry(&list["resources"], "name", "selfsubjectaccessreviews")?;
    assert!(has_verbs(review, &["create"]), "{review}");
    Ok(())
}

pub(super) async fn aggregated_discovery_is_served_on_request(s: &Scene<'_>) -> Result<()> {
    let core = s.get_as("/api", AGGREGATED).await?;
    assert_eq!(core.header("content-type"), AGGREGATED);
    let core = core.ok()?;
    assert_eq!(
        (&core["kind"], &core["apiVersion"]),
        (&json!("APIGroupDiscoveryList"), &json!("apidiscovery.k8s.io/v2"))
    );
    let version = &group(&core, "")?["versions"][0];
    assert_eq!(
        (&version["version"], &version["freshness"]),
        (&json!("v1"), &json!("Current"))
    );
    let pods = entry(&version["resources"], "resource", "pods")?;
    // Where group and version are empty, they are those of the list around.
    assert_eq!(pods["responseKind"], json!({"group": "", "version": "", "kind": "Pod"}));
    assert_eq!(
        (&pods["scope"], &pods["singularResource"]),
        (&json!("Namespaced"), &json!("pod"))
    );
    assert!(has_verbs(pods, ALL), "{pods}");
    let groups = s.get_as("/apis", AGGREGATED).await?.ok()?;
    let leases = &group(&groups, "coordination.k8s.io")?["versions"][0]["resources"];
    assert_eq!(entry(leases, "resource", "leases")?["responseKind"]["kind"], "Lease");
    Ok(())
}

pub(super) async fn the_aggregated_form_is_preferred_wherever_it_stands(s: &Scene<'_>) -> Result<()> {
    for accept in [
        "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io,application/json",
        "application/json,application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
         application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
    ] {
        assert_eq!(
            s.get_as("/apis", accept).await?.header("content-type"),
            AGGREGATED,
            "{accept}"
        );
    }
    Ok(())
}

pub(super) async fn known_etag_is_not_modified(s: &Scene<'_>) -> Result<()> {
    let first = s.get_as("/api", AGGREGATED).await?;
    let etag = first.headers.get(header::ETAG).context("no ETag")?;
    assert_eq!(first.header("vary"), "Accept");
    let ask = async |known: HeaderValue| {
        let call = s.admin.call(Method::GET, "/api").header(header::ACCEPT, AGGREGATED);
        call.if_none_match(known).send().await
    };
    let again = ask(etag.clone()).await?;
    assert_eq!((again.code(), again.headers.get(header::ETAG)), (304, Some(etag)));
    assert!(again.bytes.is_empty());
    assert_eq!(ask(HeaderValue::from_static("\"another\"")).await?.code(), 200);
    Ok(())
}

pub(super) async fn unknown_aggregated_form_is_not_acceptable(s: &Scene<'_>) -> Result<()> {
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    refuses(&s.get_as("/apis", old).await?, 406, "NotAcceptable");
    refuses(&s.get_as("/apis/apps/v1", AGGREGATED).await?, 406, "NotAcceptable");
    let fallback = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    assert_eq!(s.get_as("/apis", fallback).await?.ok()?["kind"], "APIGroupList");
    Ok(())
}

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// Adds a group whose server is away, and returns its name once discovery has it.
async fn add_group_away(s: &Scene<'_>) -> Result<String> {
    let name = format!("{}.away.test", s.ns);
    let spec = json!({
        "group": name, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
        "service": {"name": "nobody", "namespace": s.ns}, "insecureSkipTLSVerify": true,
    });
    let service = json!({"metadata": {"name": format!("v1.{name}")}, "spec": spec});
    s.admin.create(SERVICES, &service).await?.ok()?;
    until(async || Ok(group(&s.get_as("/apis", AGGREGATED).await?.ok()?, &name).is_ok())).await?;
    Ok(name)
}

pub(super) async fn a_version_whose_server_is_away_is_stale(s: &Scene<'_>) -> Result<()> {
    let name = add_group_away(s).await?;
    let all = s.get_as("/apis", AGGREGATED).await?.ok()?;
    let version = &group(&all, &name)?["versions"][0];
    assert_eq!(
        (&version["version"], &version["freshness"]),
        (&json!("v1"), &json!("Stale"))
    );
    assert_eq!(group(&all, "apps")?["versions"][0]["freshness"], "Current");
    let answer = s.admin.get(&format!("/apis/{name}/v1/things")).await?;
    assert_eq!(answer.code(), 503, "{}", answer.body);
    assert!(answer.message().starts_with("service unavailable"), "{}", answer.body);
    s.admin.delete(&format!("{SERVICES}/v1.{name}"), None).await?.ok()?;
    until(async || Ok(group(&s.get_as("/apis", AGGREGATED).await?.ok()?, &name).is_err())).await
}

pub(super) async fn a_version_whose_server_is_away_fails_alone(s: &Scene<'_>) -> Result<()> {
    let name = add_group_away(s).await?;
    // The group is still listed, and only its resources are missing.
    entry(&s.admin.get("/apis").await?.ok()?["groups"], "name", &name)?;
    let answer = s.admin.get(&format!("/apis/{name}/v1")).await?;
    assert_eq!(answer.code(), 503, "{}", answer.body);
    assert!(answer.message().starts_with("service unavailable"), "{}", answer.body);
    s.admin.delete(&format!("{SERVICES}/v1.{name}"), None).await?.ok()?;
    Ok(())
}
