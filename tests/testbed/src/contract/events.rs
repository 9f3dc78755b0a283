//! Claims about events, and what a node may do with them.

use anyhow::Result;
use serde_json::json;

use super::scene::{Scene, refuses, says, version};
use crate::rest::Patch;

pub(super) async fn a_node_creates_and_changes_events(s: &Scene<'_>) -> Result<()> {
    let event = s.as_node.create(&s.events(), &s.event("a")).await?.ok()?;
    let again = json!({"count": 2, "lastTimestamp": "2026-11-21T08:00:00Z"});
    let path = format!("{}/a", s.events());
    let after = s.as_node.patch(&path, Patch::Strategic, &again).await?.ok()?;
    assert_eq!(after["count"], 2);
    assert_ne!(version(&after), version(&event));
    Ok(())
}

pub(super) async fn a_node_does_not_read_or_delete_events(s: &Scene<'_>) -> Result<()> {
    s.new_event("a").await?;
    let path = format!("{}/a", s.events());
    refuses(&s.as_node.get(&path).await?, 403, "Forbidden");
    refuses(&s.as_node.list(&s.events(), &[]).await?, 403, "Forbidden");
    refuses(&s.as_node.delete(&path, None).await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn an_event_lies_where_its_object_is(s: &Scene<'_>) -> Result<()> {
    let mut event = s.event("a");
    event["involvedObject"]["namespace"] = "default".into();
    let answer = s.admin.create(&s.events(), &event).await?;
    refuses(&answer, 422, "Invalid");
    says(&answer, "involvedObject.namespace");
    Ok(())
}

pub(super) async fn an_event_about_a_node_lies_in_the_default_namespace(s: &Scene<'_>) -> Result<()> {
    let about = json!({"kind": "Node", "name": s.node, "uid": s.node});
    let event = |ns: &str| {
        let metadata = json!({"name": format!("about-{}", s.node), "namespace": ns});
        json!({"metadata": metadata, "involvedObject": about, "reason": "Tested", "type": "Normal"})
    };
    s.as_node
        .create("/api/v1/namespaces/default/events", &event("default"))
        .await?
        .ok()?;
    refuses(&s.as_node.create(&s.events(), &event(&s.ns)).await?, 422, "Invalid");
    Ok(())
}

pub(super) async fn an_event_keeps_its_micro_time(s: &Scene<'_>) -> Result<()> {
    let mut event = s.event("a");
    event["eventTime"] = "2026-11-21T08:00:00.000001Z".into();
    event["reportingComponent"] = "example.test/agent".into();
    event["reportingInstance"] = s.node.as_str().into();
    event["action"] = "Killing".into();
    let stored = s.as_node.create(&s.events(), &event).await?.ok()?;
    assert_eq!(stored["eventTime"], "2026-11-21T08:00:00.000001Z");
    let mut wrong = s.event("b");
    wrong["eventTime"] = "2026-11-21T08:00:00Z".into();
    refuses(&s.as_node.create(&s.events(), &wrong).await?, 400, "BadRequest");
    Ok(())
}

pub(super) async fn an_event_has_no_dependents_to_wait_for(s: &Scene<'_>) -> Result<()> {
    s.new_event("a").await?;
    let path = format!("{}/a", s.events());
    s.admin
        .delete(&path, Some(&json!({"propagationPolicy": "Foreground"})))
        .await?
        .ok()?;
    refuses(&s.admin.get(&path).await?, 404, "NotFound");
    Ok(())
}
