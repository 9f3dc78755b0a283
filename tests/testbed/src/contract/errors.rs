//! Claims about refusals that tell a missing object from a missing route.

use anyhow::Result;
use serde_json::json;

use super::scene::{Scene, refuses};

pub(super) async fn a_missing_object_is_named_in_the_details(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.get(&s.map("never")).await?;
    refuses(&answer, 404, "NotFound");
    assert_eq!(answer.body["details"], json!({"name": "never", "kind": "configmaps"}));
    let absent_namespace = s.admin.get("/api/v1/namespaces/absent/pods/never").await?;
    refuses(&absent_namespace, 404, "NotFound");
    assert_eq!(
        absent_namespace.body["details"],
        json!({"name": "never", "kind": "pods"})
    );
    Ok(())
}

pub(super) async fn the_details_of_a_group_s_object_name_the_group(s: &Scene<'_>) -> Result<()> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/never", s.ns);
    let answer = s.admin.get(&path).await?;
    refuses(&answer, 404, "NotFound");
    assert_eq!(
        answer.body["details"],
        json!({"name": "never", "group": "coordination.k8s.io", "kind": "leases"})
    );
    Ok(())
}

pub(super) async fn a_missing_route_of_the_core_has_no_details(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.get(&format!("/api/v1/namespaces/{}/unheardof/x", s.ns)).await?;
    refuses(&answer, 404, "NotFound");
    assert_eq!(answer.message(), "the server could not find the requested resource");
    assert_eq!(answer.body["details"], json!({}));
    Ok(())
}

pub(super) async fn a_missing_group_is_plain_text(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.get("/apis/unheardof.test/v1/things/x").await?;
    refuses(&answer, 404, "");
    assert!(
        answer.header("content-type").starts_with("text/plain"),
        "{:?}",
        answer.headers
    );
    assert!(answer.message().starts_with("404 page not found"), "{}", answer.body);
    Ok(())
}

pub(super) async fn a_method_that_a_path_does_not_know_is_not_allowed(s: &Scene<'_>) -> Result<()> {
    refuses(&s.admin.update(&s.maps(), &json!({})).await?, 405, "MethodNotAllowed");
    Ok(())
}

pub(super) async fn an_empty_list_in_an_absent_namespace_is_no_error(s: &Scene<'_>) -> Result<()> {
    let list = s.admin.get("/api/v1/namespaces/absent/pods").await?.ok()?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}

pub(super) async fn a_namespace_that_is_terminating_takes_nothing_new(s: &Scene<'_>) -> Result<()> {
    let path = format!("/api/v1/namespaces/{}", s.ns);
    let namespace = s.admin.delete(&path, None).await?.ok()?;
    assert_eq!(namespace["status"]["phase"], "Terminating");
    let answer = s.admin.create(&s.maps(), &json!({"metadata": {"name": "a"}})).await?;
    refuses(&answer, 403, "Forbidden");
    assert_eq!(answer.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
    Ok(())
}
