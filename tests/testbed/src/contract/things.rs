//! The custom kind that a claim has for itself.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::scene::{Scene, until};
use crate::rest::Patch;
use crate::things::{DEFINITIONS, definition};

/// The kind of one claim: `Thing`, in a group of the claim's own.
pub(super) struct Things<'s> {
    s: &'s Scene<'s>,
    /// Their group.
    pub(super) group: String,
    namespaced: bool,
}

// === impl Things ===

impl<'s> Things<'s> {
    /// Defines things with these versions, the first of which is stored, and these subresources, if any; returns once
    /// they are served.
    pub(super) async fn define(
        s: &'s Scene<'_>,
        namespaced: bool,
        versions: &[&str],
        subresources: Value,
    ) -> Result<Things<'s>> {
        let things = Things {
            s,
            group: format!("{}.test", s.ns),
            namespaced,
        };
        let mut definition = definition(&things.group, namespaced, versions);
        if subresources.is_object() {
            for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
                version["subresources"] = subresources.clone();
            }
        }
        s.admin.create(DEFINITIONS, &definition).await?.ok()?;
        for version in versions {
            things.answers(&things.all(version), 200).await?;
        }
        Ok(things)
    }

    pub(super) async fn simple(s: &'s Scene<'_>) -> Result<Things<'s>> {
        Things::define(s, true, &["v1"], Value::Null).await
    }

    /// The path of the definition.
    pub(super) fn definition(&self) -> String {
        format!("{DEFINITIONS}/things.{}", self.group)
    }

    /// The path of the claim's things.
    pub(super) fn all(&self, version: &str) -> String {
        let place = if self.namespaced {
            format!("namespaces/{}/", self.s.ns)
        } else {
            String::new()
        };
        format!("/apis/{}/{version}/{place}things", self.group)
    }

    /// The path of one thing.
    pub(super) fn one(&self, version: &str, name: &str) -> String {
        format!("{}/{name}", self.all(version))
    }

    /// A thing to be sent.
    pub(super) fn thing(&self, version: &str, name: &str) -> Value {
        json!({"apiVersion": format!("{}/{version}", self.group), "kind": "Thing", "metadata": {"name": name}})
    }

    pub(super) async fn create(&self, name: &str) -> Result<Value> {
        self.create_with(self.thing("v1", name)).await
    }

    pub(super) async fn create_with(&self, thing: Value) -> Result<Value> {
        Ok(self.s.admin.create(&self.all("v1"), &thing).await?.ok()?)
    }

    /// Waits until a path is answered with this code. The real server takes a moment to follow a definition.
    pub(super) async fn answers(&self, path: &str, code: u16) -> Result<()> {
        until(async || Ok(self.s.admin.get(path).await?.code() == code))
            .await
            .with_context(|| format!("{path} is not answered with {code}"))
    }

    /// Changes whether the second version is served.
    pub(super) async fn serve_second(&self, served: bool) -> Result<()> {
        let patch = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": served}]);
        self.s
            .admin
            .patch(&self.definition(), Patch::Json, &patch)
            .await?
            .ok()?;
        Ok(())
    }
}
