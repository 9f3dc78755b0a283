//! Kubernetes' own integration tests of its garbage collector, and requests that only a real API server refuses.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::scene::{
    LIMIT, ObjectSpec, Scene, TEST_FINALIZER, delete, eventually, found, in_namespace, owned, owners_of, plain, to,
    wait_for_deletion, with_finalizer,
};

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

pub async fn an_object_with_an_owner_that_never_existed_is_deleted(s: &Scene) -> Result<()> {
    let never = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "0b9a8230-aace-4480-91d0-db24e46eb609",
    });
    let owner = s.map("owner", &ObjectSpec::default()).await?;
    s.secret("child", &owned([never.clone()])).await?;
    s.secret("other", &owned([never, to(&owner, false)])).await?;
    s.wait_for_deletion(SECRETS, "child").await?;
    eventually(LIMIT, "the reference to be gone", async || {
        let other = s.get(SECRETS, "other").await?.unwrap_or_default();
        Ok((owners_of(&other) == ["owner"]).then_some(()))
    })
    .await
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

pub async fn cluster_scoped_owners_have_dependents_in_all_namespaces(s: &Scene) -> Result<()> {
    let other = format!("{}-other", s.namespace);
    s.new_namespace(&other).await?;
    for policy in ["Background", "Foreground", "Orphan"] {
        let owner = new_role(s, "NAME-owner", &ObjectSpec::default()).await?;
        new_role(s, "NAME-child", &owned([to(&owner, true)])).await?;
        let mut children = vec![role("NAME-child", s)];
        for namespace in [&s.namespace, &other] {
            let secrets = in_namespace(SECRETS, namespace);
            let name = format!("child-{}", policy.to_lowercase());
            let child = plain(&name, &owned([to(&owner, true)]));
            s.admin().create(&secrets, &child).await?.ok()?;
            children.push(format!("{secrets}/{name}"));
        }
        let path = role("NAME-owner", s);
        delete(s.admin(), &path, policy).await?;
        for path in [&[path], children.as_slice()].concat() {
            eventually(LIMIT, &format!("{path} to be as it should, {policy}"), async || {
                let object = found(s.admin(), &path).await?;
                let is_child = path.contains("child");
                Ok(match object {
                    None => !(policy == "Orphan" && is_child),
                    Some(object) => policy == "Orphan" && is_child && owners_of(&object).is_empty(),
                }
                .then_some(()))
            })
            .await?;
        }
    }
    Ok(())
}

/// TestBlockingOwnerRefDoesBlock, TestNonBlockingOwnerRefDoesNotBlock, and two other ways to unblock.
pub async fn a_dependent_with_a_finalizer_delays_its_owner_only_with_block_owner_deletion(s: &Scene) -> Result<()> {
    let owner = s.map("open", &ObjectSpec::default()).await?;
    let mut unset = to(&owner, false);
    unset.as_object_mut().map(|unset| unset.remove("blockOwnerDeletion"));
    s.secret("unset", &with_finalizer([unset])).await?;
    s.secret("false", &with_finalizer([to(&owner, false)])).await?;
    s.delete(MAPS, "open", "Foreground").await?;
    s.wait_for_deletion(MAPS, "open").await?;

    for (name, left) in [("named", Some(false)), ("unnamed", None)] {
        let owner = s.map(name, &ObjectSpec::default()).await?;
        let child = format!("of-{name}");
        s.secret(&child, &with_finalizer([to(&owner, true)])).await?;
        s.delete(MAPS, name, "Foreground").await?;
        eventually(LIMIT, "the child to be deleted", async || {
            let child = s.get(SECRETS, &child).await?.unwrap_or_default();
            Ok(child["metadata"]["deletionTimestamp"].is_string().then_some(()))
        })
        .await?;
        s.wait_until_processed(MAPS).await?;
        ensure!(
            s.get(MAPS, name).await?.is_some(),
            "{name} went before its blocking dependent"
        );
        let references: Vec<Value> = left.map(|blocking| to(&owner, blocking)).into_iter().collect();
        let patch = json!({"metadata": {"ownerReferences": references}});
        s.change(SECRETS, &child, &patch).await?;
        s.wait_for_deletion(MAPS, name).await?;
    }
    Ok(())
}

pub async fn two_foreground_deletions_remove_the_finalizer_twice(s: &Scene) -> Result<()> {
    s.map("held", &with_finalizer([])).await?;
    for _ in 0..2 {
        s.delete(MAPS, "held", "Foreground").await?;
        eventually(LIMIT, "the finalizer to be off", async || {
            let map = s.get(MAPS, "held").await?.unwrap_or_default();
            Ok((map["metadata"]["finalizers"] == json!([TEST_FINALIZER])).then_some(()))
        })
        .await?;
    }
    s.change(MAPS, "held", &json!({"metadata": {"finalizers": null}}))
        .await?;
    s.wait_for_deletion(MAPS, "held").await
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

pub async fn dependents_created_while_their_owner_is_deleted_are_collected(s: &Scene) -> Result<()> {
    for policy in ["Background", "Foreground"] {
        let owner = s.map("owner", &ObjectSpec::default()).await?;
        for number in 0..60 {
            if number == 20 {
                s.delete(MAPS, "owner", policy).await?;
            }
            let name = format!("child-{number}");
            s.secret(&name, &owned([to(&owner, number % 2 == 0)])).await?;
        }
        s.wait_for_deletion(MAPS, "owner").await?;
        s.wait_for_count(0, SECRETS).await?;
    }
    Ok(())
}
