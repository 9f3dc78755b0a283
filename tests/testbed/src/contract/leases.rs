//! Claims about leases, and what a node may do with them.

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{Scene, refuses, version};
use crate::rest::{Client, Patch};

const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const SIX_DIGITS: &str = "2026-11-21T08:00:00.000001Z";

fn leases(s: &Scene<'_>) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", s.ns)
}

fn lease(name: &str, renew_time: &str) -> Value {
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renew_time});
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn create(client: &Client, path: &str, lease: &Value) -> Result<Value> {
    Ok(client.create(path, lease).await?.ok()?)
}

pub(super) async fn a_time_has_six_digits_or_is_refused(s: &Scene<'_>) -> Result<()> {
    let path = leases(s);
    assert_eq!(
        create(&s.admin, &path, &lease("a", SIX_DIGITS)).await?["spec"]["renewTime"],
        SIX_DIGITS
    );
    for wrong in [
        "2026-11-21T08:00:00Z",
        "2026-11-21T08:00:00.000Z",
        "2026-11-21T08:00:00.000000001Z",
    ] {
        refuses(&s.admin.create(&path, &lease("b", wrong)).await?, 400, "BadRequest");
        let patch = json!({"spec": {"renewTime": wrong}});
        refuses(
            &s.admin.patch(&format!("{path}/a"), Patch::Merge, &patch).await?,
            422,
            "Invalid",
        );
    }
    Ok(())
}

pub(super) async fn putting_an_absent_one_creates_it(s: &Scene<'_>) -> Result<()> {
    let answer = s
        .admin
        .update(&format!("{}/a", leases(s)), &lease("a", SIX_DIGITS))
        .await?;
    assert_eq!(answer.code(), 201, "{}", answer.body);
    Ok(())
}

pub(super) async fn putting_a_present_one_needs_its_version(s: &Scene<'_>) -> Result<()> {
    let path = leases(s);
    let stored = create(&s.admin, &path, &lease("a", SIX_DIGITS)).await?;
    let blind = s
        .admin
        .update(&format!("{path}/a"), &lease("a", "2026-11-21T08:00:10.000000Z"))
        .await?;
    refuses(&blind, 422, "Invalid");
    let mut renewed = lease("a", "2026-11-21T08:00:10.000000Z");
    renewed["metadata"]["resourceVersion"] = version(&stored).into();
    s.admin.update(&format!("{path}/a"), &renewed).await?.ok()?;
    refuses(&s.admin.update(&format!("{path}/a"), &renewed).await?, 409, "Conflict");
    Ok(())
}

pub(super) async fn a_lease_of_no_time_is_invalid(s: &Scene<'_>) -> Result<()> {
    let path = leases(s);
    let mut none = lease("b", SIX_DIGITS);
    none["spec"]["leaseDurationSeconds"] = 0.into();
    refuses(&s.admin.create(&path, &none).await?, 422, "Invalid");
    create(&s.admin, &path, &lease("a", SIX_DIGITS)).await?;
    for spec in [json!({"leaseDurationSeconds": 0}), json!({"leaseTransitions": -1})] {
        let answer = s
            .admin
            .patch(&format!("{path}/a"), Patch::Merge, &json!({"spec": spec}))
            .await?;
        refuses(&answer, 422, "Invalid");
    }
    Ok(())
}

pub(super) async fn a_node_keeps_its_own_lease(s: &Scene<'_>) -> Result<()> {
    let path = format!("{NODE_LEASES}/{}", s.node);
    let mut stored = create(&s.as_node, NODE_LEASES, &lease(&s.node, SIX_DIGITS)).await?;
    assert_eq!(version(&s.as_node.get(&path).await?.ok()?), version(&stored));
    stored["spec"]["renewTime"] = "2026-11-21T08:00:10.000000Z".into();
    s.as_node.update(&path, &stored).await?.ok()?;
    s.as_node
        .patch(&path, Patch::Merge, &json!({"spec": {"leaseTransitions": 1}}))
        .await?
        .ok()?;
    s.as_node.delete(&path, None).await?.ok()?;
    refuses(&s.as_node.get(&path).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn a_node_keeps_no_other_lease(s: &Scene<'_>) -> Result<()> {
    let other = lease(&s.other_node, SIX_DIGITS);
    refuses(&s.as_node.create(NODE_LEASES, &other).await?, 403, "Forbidden");
    create(&s.admin, NODE_LEASES, &other).await?;
    refuses(
        &s.as_node.get(&format!("{NODE_LEASES}/{}", s.other_node)).await?,
        403,
        "Forbidden",
    );
    refuses(
        &s.as_node.create(&leases(s), &lease(&s.node, SIX_DIGITS)).await?,
        403,
        "Forbidden",
    );
    Ok(())
}

pub(super) async fn a_node_does_not_list_leases(s: &Scene<'_>) -> Result<()> {
    refuses(&s.as_node.list(NODE_LEASES, &[]).await?, 403, "Forbidden");
    let by_name = format!("metadata.name={}", s.node);
    refuses(
        &s.as_node.list(NODE_LEASES, &[("fieldSelector", &by_name)]).await?,
        403,
        "Forbidden",
    );
    Ok(())
}
