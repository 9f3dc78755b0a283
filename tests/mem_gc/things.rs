//! A kind that is defined by a CustomResourceDefinition.

use testbed::things::{DEFINITIONS, definition};

use crate::prelude::*;

/// Things of one group, in the namespace `default` or cluster-scoped.
#[derive(Clone)]
pub struct Things {
    pub group: &'static str,
    pub namespaced: bool,
    versions: Vec<&'static str>,
}

impl Things {
    /// Defines them. The first version is the stored one.
    pub async fn define(cluster: &Cluster, group: &'static str, namespaced: bool, versions: &[&'static str]) -> Self {
        let things = Self {
            group,
            namespaced,
            versions: versions.to_vec(),
        };
        things.define_now(cluster).await;
        things
    }

    pub async fn define_now(&self, cluster: &Cluster) {
        let definition = definition(self.group, self.namespaced, &self.versions);
        let created = cluster.admin.create(DEFINITIONS, &definition).await;
        created.unwrap().ok().unwrap();
    }

    /// Deletes the definition, and with it all things.
    pub async fn undefine(&self, cluster: &Cluster) {
        cluster.delete(&self.definition(), "Background").await;
        until!(cluster.get(&self.definition()).await.is_none());
    }

    /// Sets whether a version is served.
    pub async fn serve(&self, cluster: &Cluster, version: usize, served: bool) {
        let path = format!("/spec/versions/{version}/served");
        let patch = json!([{ "op": "replace", "path": path, "value": served }]);
        let patched = cluster.admin.patch(&self.definition(), Patch::Json, &patch).await;
        patched.unwrap().ok().unwrap();
    }

    pub async fn create(&self, cluster: &Cluster, name: &str, spec: ObjectSpec) -> Value {
        let version = format!("{}/{}", self.group, self.versions[0]);
        cluster.object(&self.all(), &version, "Thing", name, spec).await
    }

    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.all())
    }

    fn definition(&self) -> String {
        format!("{DEFINITIONS}/things.{}", self.group)
    }

    fn all(&self) -> String {
        let space = if self.namespaced { "namespaces/default/" } else { "" };
        format!("/apis/{}/{}/{space}things", self.group, self.versions[0])
    }

    pub async fn exists(&self, cluster: &Cluster, name: &str) -> bool {
        cluster.get(&self.path(name)).await.is_some()
    }

    pub async fn wait_for_deletion(&self, cluster: &Cluster, name: &str) {
        until!(!self.exists(cluster, name).await);
    }

    /// Waits until the collector watches them.
    pub async fn watched(&self, cluster: &Cluster) {
        let resource = format!("things.{}/", self.group);
        until("they are watched", async || {
            let kinds = cluster.report().kinds;
            kinds.iter().any(|it| it.resource.starts_with(&resource) && it.synced)
        })
        .await;
    }
}
