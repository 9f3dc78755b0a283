//! ConfigMaps with one owner, which is a ConfigMap as well.

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::progress::{Progress, thousands};
use crate::http2::{Http2, JSON, PROTOBUF};

/// Requests in flight that keep the server busy while objects are created.
const CREATING: usize = 64;
/// Some hundred bytes, as ConfigMaps have.
const TEXT: &str = "a line of settings of an application, which no process reads during the measurement..\n";

/// An owner and its dependents.
#[derive(Debug)]
pub struct Family {
    /// Path of their collection.
    pub collection: String,
    /// The owner's name.
    pub owner: String,
    /// Number of dependents.
    pub dependents: u32,
}

// === impl Family ===

impl Family {
    /// Creates all of them. Without `owned`, the owner does not exist.
    pub async fn create(client: &Http2, namespace: &str, name: &str, dependents: u32, owned: bool) -> Result<Self> {
        let family = Self {
            collection: format!("/api/v1/namespaces/{namespace}/configmaps"),
            owner: format!("{name}-owner"),
            dependents,
        };
        let uid = if owned {
            let body = json!({"metadata": {"name": family.owner}});
            let created = client
                .send(Method::POST, &family.collection, JSON, body.to_string().into())
                .await?;
            let created: Value = serde_json::from_slice(&created.ok().context("create the owner")?)?;
            created["metadata"]["uid"]
                .as_str()
                .context("the owner has no UID")?
                .to_owned()
        } else {
            Uuid::new_v4().to_string()
        };
        let mut progress = Progress::new(format!("creating {} ConfigMaps", thousands(dependents)), dependents);
        let mut created = stream::iter(0..dependents)
            .map(|index| {
                let body = family.dependent(index, &uid);
                async {
                    let answer = client.send(Method::POST, &family.collection, PROTOBUF, body).await?;
                    answer.ok().context("create a dependent")
                }
            })
            .buffer_unordered(CREATING);
        let mut done = 0;
        while created.try_next().await?.is_some() {
            done += 1;
            progress.at(done);
        }
        drop(created);
        Ok(family)
    }

    /// Path of the owner.
    pub fn owner_path(&self) -> String {
        format!("{}/{}", self.collection, self.owner)
    }

    /// Path of a dependent.
    pub fn path(&self, index: u32) -> String {
        format!("{}/{}", self.collection, self.name(index))
    }

    fn name(&self, index: u32) -> String {
        format!("{}-{index:07}", self.owner)
    }

    fn dependent(&self, index: u32, uid: &str) -> Bytes {
        let (name, owner, text) = (self.name(index), &self.owner, TEXT.repeat(3));
        let object = json!({
            "metadata": {
                "name": name,
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": owner,
                    "uid": uid,
                    "blockOwnerDeletion": true,
                }],
            },
            "data": {"settings": text},
        });
        object.to_string().into()
    }
}
