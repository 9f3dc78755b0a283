//! Claims about what a node may learn of volumes and claims, and about its list of volumes in use.

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{Scene, refuses, uid};
use crate::rest::Patch;

const GIBIBYTE: &str = "1Gi";

/// A PersistentVolume of a driver, and a claim bound to it; returns the volume's name.
async fn bound(s: &Scene<'_>, claim: &str) -> Result<String> {
    let name = format!("{}-{claim}", s.ns);
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": GIBIBYTE },
            "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": "driver.test", "volumeHandle": format!("handle-of-{name}") },
            "claimRef": { "namespace": s.ns, "name": claim },
        },
    });
    s.admin.create("/api/v1/persistentvolumes", &volume).await?.ok()?;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": claim },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeName": name,
            "resources": { "requests": { "storage": GIBIBYTE } },
        },
    });
    let claims = format!("/api/v1/namespaces/{}/persistentvolumeclaims", s.ns);
    s.admin.create(&claims, &claim).await?.ok()?;
    Ok(name)
}

/// The Node of the scene, with these volumes in use.
async fn node_with(s: &Scene<'_>, name: &str, in_use: &Value) -> Result<Value> {
    let node = json!({ "metadata": { "name": name } });
    s.admin.create("/api/v1/nodes", &node).await?.ok()?;
    let status = json!({ "status": { "volumesInUse": in_use } });
    let path = format!("/api/v1/nodes/{name}/status");
    Ok(s.admin.patch(&path, Patch::Merge, &status).await?.ok()?)
}

fn exchange(uid: &str, before: &Value, after: &Value) -> Value {
    json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": "/status/volumesInUse", "value": before },
        { "op": "replace", "path": "/status/volumesInUse", "value": after },
    ])
}

pub(super) async fn a_node_takes_one_out_of_its_list_if_that_is_still_as_it_was_seen(s: &Scene<'_>) -> Result<()> {
    let before = json!(["kubernetes.io/csi/driver.test^a", "kubernetes.io/csi/driver.test^b"]);
    let (node, other) = (
        node_with(s, &s.node, &before).await?,
        node_with(s, &s.other_node, &before).await?,
    );
    let after = json!([before[1]]);
    let path = |name: &str| format!("/api/v1/nodes/{name}/status");
    let of_old = exchange("of-old", &before, &after);
    refuses(
        &s.as_node.patch(&path(&s.node), Patch::Json, &of_old).await?,
        422,
        "Invalid",
    );
    let exchange = |node: &Value| exchange(uid(node), &before, &after);
    let node = s
        .as_node
        .patch(&path(&s.node), Patch::Json, &exchange(&node))
        .await?
        .ok()?;
    assert_eq!(node["status"]["volumesInUse"], after);
    // The list is another one by now.
    let again = s.as_node.patch(&path(&s.node), Patch::Json, &exchange(&node)).await?;
    refuses(&again, 422, "Invalid");
    let others = s
        .as_node
        .patch(&path(&s.other_node), Patch::Json, &exchange(&other))
        .await?;
    refuses(&others, 403, "Forbidden");
    Ok(())
}

pub(super) async fn the_last_one_leaves_no_list(s: &Scene<'_>) -> Result<()> {
    let before = json!(["kubernetes.io/csi/driver.test^a"]);
    let node = node_with(s, &s.node, &before).await?;
    let patch = exchange(uid(&node), &before, &json!([]));
    let path = format!("/api/v1/nodes/{}/status", s.node);
    let node = s.as_node.patch(&path, Patch::Json, &patch).await?.ok()?;
    assert_eq!(node["status"]["volumesInUse"], Value::Null, "{node}");
    Ok(())
}

pub(super) async fn a_node_reads_the_persistent_volumes_of_its_pods_only(s: &Scene<'_>) -> Result<()> {
    let (used, unused) = (bound(s, "used").await?, bound(s, "unused").await?);
    let path = |name: &str| format!("/api/v1/persistentvolumes/{name}");
    let claim = json!({ "name": "v", "persistentVolumeClaim": { "claimName": "used" } });
    let spec = json!({ "nodeName": s.node, "volumes": [claim] });
    s.new_pod_with("own", json!({}), spec).await?;
    while s.as_node.get(&path(&used)).await?.code() == 403 {
        tokio::task::yield_now().await;
    }
    let volume = s.as_node.get(&path(&used)).await?.ok()?;
    assert_eq!(volume["spec"]["csi"]["volumeHandle"], format!("handle-of-{used}"));
    refuses(&s.as_node.get(&path(&unused)).await?, 403, "Forbidden");
    refuses(&s.as_node.get(&path("never")).await?, 403, "Forbidden");
    let list = s.as_node.list("/api/v1/persistentvolumes", &[]).await?;
    refuses(&list, 403, "Forbidden");
    // Once the pod is gone it is nothing to this node.
    let gone = s
        .admin
        .delete(&s.pod("own"), Some(&json!({ "gracePeriodSeconds": 0 })))
        .await?;
    gone.ok()?;
    while s.as_node.get(&path(&used)).await?.code() == 200 {
        tokio::task::yield_now().await;
    }
    refuses(&s.as_node.get(&path(&used)).await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn a_node_reads_the_resource_claims_of_its_pods_only(s: &Scene<'_>) -> Result<()> {
    let claims = format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims", s.ns);
    for name in ["used", "unused"] {
        let claim = json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": name }, "spec": {} });
        s.admin.create(&claims, &claim).await?.ok()?;
    }
    let spec = json!({ "nodeName": s.node, "resourceClaims": [{ "name": "gpu", "resourceClaimName": "used" }] });
    s.new_pod_with("own", json!({}), spec).await?;
    let path = |name: &str| format!("{claims}/{name}");
    while s.as_node.get(&path("used")).await?.code() == 403 {
        tokio::task::yield_now().await;
    }
    let claim = s.as_node.get(&path("used")).await?.ok()?;
    assert_eq!(claim["metadata"]["name"], "used");
    for name in ["unused", "never"] {
        refuses(&s.as_node.get(&path(name)).await?, 403, "Forbidden");
    }
    refuses(&s.as_node.list(&claims, &[]).await?, 403, "Forbidden");
    Ok(())
}
