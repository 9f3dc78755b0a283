//! Many objects, inserted into the in-memory API server in bulk and without validation.

use std::fmt;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bench_gc::progress::{Progress, thousands};
use crate::http2::{Http2, JSON, PROTOBUF};

/// All objects. Counting those of one namespace would cost the server more.
pub const COLLECTION: &str = "/api/v1/configmaps";
const NAMESPACE: &str = "default";
const BULK: &str = "/testbed/objects";
const REQUEST_LIMIT: &str = "/testbed/request-limit";
/// Objects per request.
const AT_ONCE: u32 = 1000;
/// Requests in flight that keep a single-threaded server busy.
const DELETING: usize = 16;

/// ConfigMaps, some of which own others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ObjectSet {
    /// Number of owners.
    pub owners: u32,
    /// Number of dependents, shared evenly.
    pub owned: u32,
    /// Number of objects.
    pub objects: u32,
}

// === impl ObjectSet ===

impl ObjectSet {
    /// This many owners and dependents, out of this many objects.
    pub fn new(owners: u32, owned: u32, objects: u32) -> Self {
        Self { owners, owned, objects }
    }

    /// Creates them; returns the owners' UIDs.
    pub async fn create(self, client: &Http2) -> Result<Vec<String>> {
        let owners: Vec<_> = (0..self.owners).map(|_| Uuid::new_v4().to_string()).collect();
        let mut progress = Progress::new(format!("creating {} objects", thousands(self.objects)), self.objects);
        let mut first = 0;
        while first < self.objects {
            let until = (first + AT_ONCE).min(self.objects);
            let objects: Vec<_> = (first..until).map(|index| self.object(index, &owners)).collect();
            post(client, &objects).await?;
            progress.at(until);
            first = until;
        }
        Ok(owners)
    }

    /// Owners come first, then dependents, then isolated objects.
    fn object(self, index: u32, owners: &[String]) -> Value {
        if index < self.owners {
            return object(&owner(index), Some(&owners[index as usize]), None);
        }
        let name = format!("object-{index:07}");
        let owned = index - self.owners < self.owned;
        let owner = index % self.owners;
        object(&name, None, owned.then(|| (owner, owners[owner as usize].as_str())))
    }
}

impl fmt::Display for ObjectSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners = if self.owners == 1 { "owner" } else { "owners" };
        write!(
            f,
            "{} objects, {} {owners} of {}",
            thousands(self.objects),
            thousands(self.owners),
            thousands(self.owned)
        )
    }
}

/// Creates dependents of these owners in turn; returns their names.
pub async fn create_dependents(client: &Http2, owners: &[String], count: u32, time: u32) -> Result<Vec<String>> {
    let names: Vec<_> = (0..count).map(|index| format!("guest-{time}-{index:05}")).collect();
    let all = owners.iter().enumerate().cycle();
    let objects: Vec<_> = names
        .iter()
        .zip(all)
        .map(|(name, (index, uid))| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            object(name, None, Some((index, uid.as_str())))
        })
        .collect();
    for some in objects.chunks(AT_ONCE as usize) {
        post(client, some).await?;
    }
    Ok(names)
}

/// Deletes them by name.
pub async fn delete_objects(client: &Http2, names: &[String]) -> Result<()> {
    let answers = stream::iter(names).map(|name| async move {
        let answer = client.send(Method::DELETE, &path(name), PROTOBUF, Bytes::new()).await?;
        answer.ok().with_context(|| format!("delete {name}")).map(drop)
    });
    answers.buffer_unordered(DELETING).try_collect().await
}

/// Limits the collector to this many requests per second.
pub async fn limit_requests(client: &Http2, per_second: u32) -> Result<()> {
    let answer = client
        .send(Method::POST, REQUEST_LIMIT, JSON, per_second.to_string().into())
        .await?;
    answer.ok().context("limit the requests of the collector")?;
    Ok(())
}

/// Path of an owner.
pub fn owner_path(index: u32) -> String {
    path(&owner(index))
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{name}")
}

fn owner(index: u32) -> String {
    format!("owner-{index:05}")
}

fn object(name: &str, uid: Option<&str>, owned_by: Option<(u32, &str)>) -> Value {
    let mut metadata = json!({"name": name, "namespace": NAMESPACE});
    if let Some(uid) = uid {
        metadata["uid"] = uid.into();
    }
    if let Some((index, uid)) = owned_by {
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner(index), "uid": uid}]);
    }
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

async fn post(client: &Http2, objects: &[Value]) -> Result<()> {
    let body = serde_json::to_vec(objects)?;
    let answer = client.send(Method::POST, BULK, JSON, body.into()).await?;
    answer.ok().context("store objects")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_owns_its_share_and_the_rest_is_isolated() {
        let object_set = ObjectSet::new(2, 4, 10);
        let owners = ["uid-0".to_owned(), "uid-1".to_owned()];
        let objects: Vec<_> = (0..object_set.objects)
            .map(|index| object_set.object(index, &owners))
            .collect();
        assert_eq!(objects[1]["metadata"]["uid"], "uid-1");
        let owned_by = |uid: &str| {
            let of_it = |object: &&Value| object["metadata"]["ownerReferences"][0]["uid"] == uid;
            objects.iter().filter(of_it).count()
        };
        assert_eq!((owned_by("uid-0"), owned_by("uid-1")), (2, 2));
        let names: std::collections::BTreeSet<_> = objects
            .iter()
            .map(|object| object["metadata"]["name"].as_str())
            .collect();
        assert_eq!(names.len(), 10);
    }
}
