//! Claims about field and label selectors.

use anyhow::Result;
use serde_json::json;

use super::scene::{Scene, names, refuses, says};

async fn selected(s: &Scene<'_>, path: &str, kind: &str, selector: &str) -> Result<Vec<String>> {
    let list = s.admin.list(path, &[(kind, selector)]).await?.ok()?;
    Ok(names(&list).into_iter().map(str::to_owned).collect())
}

pub(super) async fn pods_are_selected_by_their_node(s: &Scene<'_>) -> Result<()> {
    s.new_pod("here").await?;
    s.new_pod_with("there", json!({}), json!({"nodeName": s.other_node}))
        .await?;
    s.new_pod_with("nowhere", json!({}), json!({})).await?;
    let of_node = format!("spec.nodeName={}", s.node);
    assert_eq!(selected(s, "/api/v1/pods", "fieldSelector", &of_node).await?, ["here"]);
    assert_eq!(
        selected(s, &s.pods(), "fieldSelector", "spec.nodeName=").await?,
        ["nowhere"]
    );
    Ok(())
}

pub(super) async fn node_and_name_select_together(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    s.new_pod("b").await?;
    let selector = format!("spec.nodeName={},metadata.name=b", s.node);
    assert_eq!(selected(s, &s.pods(), "fieldSelector", &selector).await?, ["b"]);
    let selector = format!("spec.nodeName={},metadata.name=c", s.node);
    assert!(selected(s, &s.pods(), "fieldSelector", &selector).await?.is_empty());
    Ok(())
}

pub(super) async fn a_field_may_differ(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    s.new_map("b").await?;
    assert_eq!(
        selected(s, &s.maps(), "fieldSelector", "metadata.name!=a").await?,
        ["b"]
    );
    assert_eq!(
        selected(s, &s.maps(), "fieldSelector", "metadata.name==a").await?,
        ["a"]
    );
    Ok(())
}

pub(super) async fn pods_are_selected_by_their_phase(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    assert_eq!(
        selected(s, &s.pods(), "fieldSelector", "status.phase=Pending").await?,
        ["a"]
    );
    assert!(
        selected(s, &s.pods(), "fieldSelector", "status.phase=Running")
            .await?
            .is_empty()
    );
    Ok(())
}

pub(super) async fn the_namespace_is_a_field(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let selector = format!("metadata.namespace={}", s.ns);
    assert_eq!(
        selected(s, "/api/v1/configmaps", "fieldSelector", &selector).await?,
        ["a"]
    );
    Ok(())
}

pub(super) async fn a_field_that_a_kind_does_not_know_is_bad(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.list(&s.pods(), &[("fieldSelector", "spec.nodename=x")]).await?;
    refuses(&answer, 400, "BadRequest");
    says(&answer, "field label not supported: spec.nodename");
    let answer = s.admin.list(&s.maps(), &[("fieldSelector", "data.x=y")]).await?;
    refuses(&answer, 400, "BadRequest");
    says(&answer, "\"data.x\" is not a known field selector");
    Ok(())
}

pub(super) async fn labels_select_by_equality(s: &Scene<'_>) -> Result<()> {
    s.new_map_with("a", json!({"labels": {"tier": "x", "app": "one"}}))
        .await?;
    s.new_map_with("b", json!({"labels": {"tier": "y", "app": "one"}}))
        .await?;
    s.new_map("c").await?;
    assert_eq!(selected(s, &s.maps(), "labelSelector", "app=one,tier=y").await?, ["b"]);
    assert_eq!(selected(s, &s.maps(), "labelSelector", "tier!=x").await?, ["b", "c"]);
    Ok(())
}

pub(super) async fn labels_select_by_sets(s: &Scene<'_>) -> Result<()> {
    s.new_map_with("a", json!({"labels": {"tier": "x"}})).await?;
    s.new_map_with("b", json!({"labels": {"tier": "y"}})).await?;
    s.new_map("c").await?;
    assert_eq!(selected(s, &s.maps(), "labelSelector", "tier in (x, z)").await?, ["a"]);
    assert_eq!(
        selected(s, &s.maps(), "labelSelector", "tier notin (x)").await?,
        ["b", "c"]
    );
    assert_eq!(selected(s, &s.maps(), "labelSelector", "tier").await?, ["a", "b"]);
    assert_eq!(selected(s, &s.maps(), "labelSelector", "!tier").await?, ["c"]);
    Ok(())
}

pub(super) async fn a_label_selector_that_cannot_be_read_is_bad(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.list(&s.maps(), &[("labelSelector", "tier in (")]).await?;
    refuses(&answer, 400, "BadRequest");
    Ok(())
}

pub(super) async fn events_are_selected_by_what_they_are_about(s: &Scene<'_>) -> Result<()> {
    s.new_event("first").await?;
    s.new_event("second").await?;
    let about = "involvedObject.uid=uid-of-second,reason=Told";
    assert_eq!(selected(s, &s.events(), "fieldSelector", about).await?, ["second"]);
    Ok(())
}
