//! Kubernetes' own integration tests of its garbage collector, and requests that only a real API server refuses.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::scene::{ObjectSpec, Scene, found, in_namespace, owned, owners_of, plain, to, wait_for_deletion};

const MAPS: &str = "configmaps/v1";
const SECRETS: &str = "secrets/v1";
const ROLES: &str = "clusterroles.rbac.authorization.k8s.io/v1";
const CONTROLLERS: &str = "replicationcontrollers/v1";
const WRONG_NAMESPACE: &str = "OwnerRefInvalidNamespace";

fn role(name: &str, s: &Scene) -> String {
    format!("{}/{name}", in_namespace(ROLES, "")).replace("NAME", &s.namespace)
}

/// A cluster-scoped object.
async fn new_role(s: &Scene, name: &str, spec: &ObjectSpec) -> Result<Value> {
    let name = name.replace("NAME", &s.namespace);
    Ok(s.admin()
        .create(&in_namespace(ROLES, ""), &plain(&name, spec))
        .await?
        .ok()?)
}

pub async fn an_owner_in_another_namespace_is_absent_and_reported_in_an_event(s: &Scene) -> Result<()> {
    let other = format!("{}-other", s.namespace);
    s.new_namespace(&other).await?;
    let owner = s.map("owner", &ObjectSpec::default()).await?;
    let good = s.secret("good", &owned([to(&owner, false)])).await?;
    s.wait_until_processed(MAPS).await?;
    let secrets = in_namespace(SECRETS, &other);
    let bad = plain("bad", &owned([to(&owner, false)]));
    let bad = s.admin().create(&secrets, &bad).await?.ok()?;
    let event = s.event(&other, WRONG_NAMESPACE, &bad["metadata"]["uid"]).await?;
    let uid = owner["metadata"]["uid"].as_str().unwrap_or_default();
    // Like kube-controller-manager: both namespaces are the dependent's.
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: {other}, name: owner, uid: {uid}] does not exist in namespace \"{other}\""
    );
    ensure!(event["message"] == message && event["type"] == "Warning", "{event}");
    ensure!(event["involvedObject"]["kind"] == "Secret", "{event}");
    wait_for_deletion(s.admin(), &format!("{secrets}/bad")).await?;
    let stays = s.expect_unchanged(SECRETS, "good").await?;
    ensure!(
        stays["metadata"]["resourceVersion"] == good["metadata"]["resourceVersion"],
        "{stays}"
    );
    s.expect_unchanged(MAPS, "owner").await.map(drop)
}

pub async fn a_cluster_scoped_object_with_a_namespaced_owner_stays_and_is_reported(s: &Scene) -> Result<()> {
    let owner = s.map("owner", &ObjectSpec::default()).await?;
    s.secret("child", &owned([to(&owner, false)])).await?;
    s.wait_until_processed(MAPS).await?;
    let bad = new_role(s, "NAME-bad", &owned([to(&owner, true)])).await?;
    let event = s.event("default", WRONG_NAMESPACE, &bad["metadata"]["uid"]).await?;
    let message = event["message"].as_str().unwrap_or_default();
    ensure!(message.ends_with("does not exist in namespace \"\""), "{event}");
    s.delete(MAPS, "owner", "Background").await?;
    s.wait_for_deletion(SECRETS, "child").await?;
    s.wait_until_processed(MAPS).await?;
    let left = found(s.admin(), &role("NAME-bad", s)).await?.unwrap_or_default();
    ensure!(
        owners_of(&left) == ["owner"] && left["metadata"]["deletionTimestamp"].is_null(),
        "{left}"
    );
    Ok(())
}

/// TestStressingCascadingDeletion: finalizers of an owner, options of its deletion, and whether its dependents stay.
pub async fn fifty_owners_deleted_in_five_ways_delete_or_orphan_all_dependents(s: &Scene) -> Result<()> {
    let mixes: [(&[&'static str], Value, bool); 5] = [
        (&[], json!({"orphanDependents": false}), false),
        // The default of replication controllers is to orphan.
        (&[], json!({}), true),
        (&["orphan"], json!({}), true),
        (&["orphan"], json!({"orphanDependents": false}), false),
        (&[], json!({"propagationPolicy": "Foreground"}), false),
    ];
    for number in 0..50 {
        let (finalizers, options, _) = &mixes[number % 5];
        let name = format!("owner-{number}");
        let mut owner = plain(&name, &ObjectSpec::default());
        owner["metadata"]["finalizers"] = json!(finalizers);
        owner["spec"] = json!({"replicas": 0, "selector": {"app": name}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "none"}]},
        }});
        let owner = s.create(CONTROLLERS, &owner).await?;
        for child in 0..3 {
            let child = format!("child-{number}-{child}");
            s.secret(&child, &owned([to(&owner, true)])).await?;
        }
        let path = format!("{}/{name}", s.path(CONTROLLERS));
        s.admin().delete(&path, Some(options)).await?.ok()?;
    }
    s.wait_for_count(0, CONTROLLERS).await?;
    s.wait_until_processed(SECRETS).await?;
    let left = s.wait_for_count(60, SECRETS).await?;
    for secret in left {
        let name = secret["metadata"]["name"].as_str().unwrap_or_default();
        let number: usize = name.split('-').nth(1).unwrap_or_default().parse()?;
        ensure!(mixes[number % 5].2 && owners_of(&secret).is_empty(), "{secret}");
    }
    Ok(())
}
