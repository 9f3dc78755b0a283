//! One namespace of a control plane and its objects.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testbed::{
    api::ApiServer,
    control_plane::ControlPlane,
    rest::{Client, Patch},
    wait::eventually,
};

/// Limit of any wait on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A namespace and an administrator.
pub struct Cluster {
    admin: Client,
    namespace: &'static str,
}

// === impl Cluster ===

impl Cluster {
    pub async fn new(plane: &ControlPlane, namespace: &'static str) -> Result<Self> {
        let admin = plane.admin()?;
        let object = json!({"metadata": {"name": namespace}});
        admin.create("/api/v1/namespaces", &object).await?.ok()?;
        Ok(Self { admin, namespace })
    }

    pub fn admin(&self) -> &Client {
        &self.admin
    }

    pub async fn create(&self, resource: &str, object: &Value) -> Result<Value> {
        Ok(self.admin.create(&self.path(resource), object).await?.ok()?)
    }

    pub async fn merge(&self, object: &str, patch: &Value) -> Result<Value> {
        Ok(self.admin.patch(&self.path(object), Patch::Merge, patch).await?.ok()?)
    }

    /// Returns once it is deleted, which in the background is at once.
    pub async fn delete_in_the_background(&self, resource: &str, name: &str) -> Result<()> {
        let path = self.path(&format!("{resource}/{name}"));
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
        self.admin.delete(&path, Some(&options)).await?.ok()?;
        let code = self.admin.get(&path).await?.code();
        ensure!(code == 404, "{path}: {code} after its deletion");
        Ok(())
    }

    /// Waits until exactly one object of that resource exists.
    pub async fn one(&self, resource: &str) -> Result<Value> {
        self.exactly(1, resource)
            .await?
            .pop()
            .context("one was there a moment ago")
    }

    /// Waits until exactly this many exist.
    pub async fn exactly(&self, count: usize, resource: &str) -> Result<Vec<Value>> {
        let path = self.path(resource);
        eventually(LIMIT, &format!("{count} of {resource}"), async || {
            let mut list = self.admin.list(&path, &[]).await?.ok()?;
            let Value::Array(items) = list["items"].take() else {
                bail!("{list}")
            };
            Ok((items.len() == count).then_some(items))
        })
        .await
    }

    fn path(&self, resource: &str) -> String {
        let api = match resource.split('/').next() {
            Some("deployments" | "replicasets") => "apis/apps/v1",
            Some("jobs" | "cronjobs") => "apis/batch/v1",
            _ => "api/v1",
        };
        format!("/{api}/namespaces/{}/{resource}", self.namespace)
    }
}
