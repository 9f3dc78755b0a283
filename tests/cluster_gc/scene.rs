//! A claim's namespace, with its helpers.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testbed::rest::{Client, Patch};
pub use testbed::{
    owner_references::{ObjectSpec, TEST_FINALIZER, owned, owners_of, to},
    wait::eventually,
};

use crate::cluster::Cluster;

/// Maximum wait on a machine under load. New kinds are discovered within 30 s.
pub const LIMIT: Duration = Duration::from_secs(120);

/// See the module's documentation.
pub struct Scene {
    pub cluster: Arc<Cluster>,
    pub namespace: String,
}

impl Scene {
    pub async fn new(cluster: Arc<Cluster>, namespace: String) -> Result<Self> {
        let scene = Self { cluster, namespace };
        scene.new_namespace(&scene.namespace).await?;
        Ok(scene)
    }

    pub fn admin(&self) -> &Client {
        &self.cluster.admin
    }

    pub async fn new_namespace(&self, name: &str) -> Result<()> {
        let object = json!({"metadata": {"name": name}});
        self.admin().create("/api/v1/namespaces", &object).await?.ok()?;
        Ok(())
    }

    /// URL path of a resource such as `deployments.apps/v1` or `pods/v1`.
    pub fn path(&self, resource: &str) -> String {
        in_namespace(resource, &self.namespace)
    }

    /// Creates an object; returns it with apiVersion and kind.
    pub async fn create(&self, resource: &str, object: &Value) -> Result<Value> {
        Ok(self.admin().create(&self.path(resource), object).await?.ok()?)
    }

    /// Creates an object with metadata only.
    pub async fn create_plain(&self, resource: &str, name: &str, spec: &ObjectSpec) -> Result<Value> {
        self.create(resource, &plain(name, spec)).await
    }

    pub async fn map(&self, name: &str, spec: &ObjectSpec) -> Result<Value> {
        self.create_plain("configmaps/v1", name, spec).await
    }

    pub async fn secret(&self, name: &str, spec: &ObjectSpec) -> Result<Value> {
        self.create_plain("secrets/v1", name, spec).await
    }

    pub async fn get(&self, resource: &str, name: &str) -> Result<Option<Value>> {
        let path = format!("{}/{name}", self.path(resource));
        found(self.admin(), &path).await
    }

    pub async fn change(&self, resource: &str, name: &str, patch: &Value) -> Result<Value> {
        let path = format!("{}/{name}", self.path(resource));
        Ok(self.admin().patch(&path, Patch::Merge, patch).await?.ok()?)
    }

    /// Deletes with a policy, or with the default one if it is empty.
    pub async fn delete(&self, resource: &str, name: &str, policy: &str) -> Result<()> {
        delete(self.admin(), &format!("{}/{name}", self.path(resource)), policy).await
    }

    pub async fn wait_for_deletion(&self, resource: &str, name: &str) -> Result<()> {
        wait_for_deletion(self.admin(), &format!("{}/{name}", self.path(resource))).await
    }

    /// Objects of a resource; without the ConfigMap that every namespace has.
    pub async fn list(&self, resource: &str) -> Result<Vec<Value>> {
        let mut list = self.admin().list(&self.path(resource), &[]).await?.ok()?;
        let Value::Array(mut items) = list["items"].take() else {
            bail!("{list}")
        };
        items.retain(|item| item["metadata"]["name"] != "kube-root-ca.crt");
        Ok(items)
    }

    /// Waits until there are exactly this many.
    pub async fn wait_for_count(&self, count: usize, resource: &str) -> Result<Vec<Value>> {
        let what = format!("{count} of {resource} in {}", self.namespace);
        eventually(LIMIT, &what, async || {
            let items = self.list(resource).await?;
            Ok((items.len() == count).then_some(items))
        })
        .await
    }

    /// Waits until the collector has processed earlier events of this resource: it creates garbage and waits for its
    /// deletion. Items with a backoff may still wait.
    pub async fn wait_until_processed(&self, resource: &str) -> Result<()> {
        let owner = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "never",
            "uid": "00000000-0000-4000-8000-000000000000",
        });
        for time in 0..2 {
            let name = format!("probe-{time}");
            self.create_plain(resource, &name, &owned([owner.clone()])).await?;
            self.wait_for_deletion(resource, &name).await?;
        }
        Ok(())
    }

    /// Waits for an event with this reason about an object; returns it.
    pub async fn event(&self, namespace: &str, reason: &str, uid: &Value) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let what = format!("an event {reason} of {uid}");
        eventually(LIMIT, &what, async || {
            let list = self.admin().get(&path).await?.ok()?;
            let events = list["items"].as_array().context("no events")?;
            let it = events
                .iter()
                .find(|event| event["reason"] == reason && event["involvedObject"]["uid"] == *uid);
            Ok(it.cloned())
        })
        .await
    }

    /// The object exists and is still unchanged when other garbage of its kind is deleted.
    pub async fn expect_unchanged(&self, resource: &str, name: &str) -> Result<Value> {
        self.wait_until_processed("configmaps/v1").await?;
        let object = self.get(resource, name).await?;
        let object = object.with_context(|| format!("{resource} {name} is gone"))?;
        let wait_for_deletion = &object["metadata"]["deletionTimestamp"];
        ensure!(wait_for_deletion.is_null(), "{resource} {name} is being deleted");
        Ok(object)
    }
}

/// An object with metadata only.
pub fn plain(name: &str, spec: &ObjectSpec) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": spec.owners, "finalizers": spec.finalizers}})
}

/// URL path of a resource in a namespace; without one if it is empty.
pub fn in_namespace(resource: &str, namespace: &str) -> String {
    let (name, version) = resource.split_once('/').unwrap_or((resource, "v1"));
    let space = match namespace {
        "" => String::new(),
        namespace => format!("namespaces/{namespace}/"),
    };
    match name.split_once('.') {
        None => format!("/api/{version}/{space}{name}"),
        Some((plural, group)) => format!("/apis/{group}/{version}/{space}{plural}"),
    }
}

pub async fn found(admin: &Client, path: &str) -> Result<Option<Value>> {
    let answer = admin.get(path).await?;
    if answer.code() == 404 {
        return Ok(None);
    }
    Ok(Some(answer.ok()?))
}

/// Deletes with a policy, or with the default one if it is empty.
pub async fn delete(admin: &Client, path: &str, policy: &str) -> Result<()> {
    let options = match policy {
        "" => json!({}),
        policy => json!({"propagationPolicy": policy}),
    };
    admin.delete(path, Some(&options)).await?.ok()?;
    Ok(())
}

/// Waits until no object has this path.
pub async fn wait_for_deletion(admin: &Client, path: &str) -> Result<()> {
    eventually(LIMIT, &format!("{path} to be gone"), async || {
        Ok(found(admin, path).await?.is_none().then_some(()))
    })
    .await
}
