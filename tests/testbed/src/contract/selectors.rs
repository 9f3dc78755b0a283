//! Claims about field selectors.

use anyhow::Result;
use serde_json::json;

use super::scene::{Scene, names, refuses, says};

async fn selected(s: &Scene<'_>, path: &str, selector: &str) -> Result<Vec<String>> {
    let list = s.admin.list(path, &[("fieldSelector", selector)]).await?.ok()?;
    Ok(names(&list).into_iter().map(str::to_owned).collect())
}

pub(super) async fn pods_are_selected_by_their_node(s: &Scene<'_>) -> Result<()> {
    s.new_pod("here").await?;
    s.new_pod_with("there", json!({}), json!({"nodeName": s.other_node}))
        .await?;
    s.new_pod_with("nowhere", json!({}), json!({})).await?;
    let of_node = format!("spec.nodeName={}", s.node);
    assert_eq!(selected(s, "/api/v1/pods", &of_node).await?, ["here"]);
    assert_eq!(selected(s, &s.pods(), "spec.nodeName=").await?, ["nowhere"]);
    Ok(())
}

pub(super) async fn node_and_name_select_together(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    s.new_pod("b").await?;
    let selector = format!("spec.nodeName={},metadata.name=b", s.node);
    assert_eq!(selected(s, &s.pods(), &selector).await?, ["b"]);
    let selector = format!("spec.nodeName={},metadata.name=c", s.node);
    assert!(selected(s, &s.pods(), &selector).await?.is_empty());
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
