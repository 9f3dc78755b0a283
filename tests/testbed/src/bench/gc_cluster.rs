//! ConfigMaps with one owner, and lists of all objects.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::http2::{Http2, JSON, PROTOBUF};
use crate::api::Access;

/// Requests in flight. More are not faster.
const IN_FLIGHT: usize = 64;
/// Some hundred bytes, as ConfigMaps have.
const TEXT: &str = "a line of settings of an application, which no process reads during the measurement..\n";
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PAGE: u32 = 500;
/// A list of one object costs next to nothing at this rate.
const POLL: Duration = Duration::from_millis(20);
/// Fails if no object is deleted for so long.
const STALLED: Duration = Duration::from_secs(90);
/// UID of the one owner of [`object`].
const OWNER: &str = "00000000-0000-4000-8000-000000000000";

/// An owner and its dependents.
pub struct Family {
    collection: String,
    owner: String,
    dependents: u32,
}

impl Family {
    /// Creates all of them; without `owned`, no owner.
    pub async fn create(client: &Http2, namespace: &str, name: &str, dependents: u32, owned: bool) -> Result<Self> {
        let family = Self {
            collection: format!("/api/v1/namespaces/{namespace}/configmaps"),
            owner: format!("{name}-owner"),
            dependents,
        };
        let mut uid = Uuid::new_v4().to_string();
        if owned {
            let body = json!({ "metadata": { "name": family.owner } }).to_string();
            let created = client.send(Method::POST, &family.collection, JSON, body).await?;
            let created: Value = serde_json::from_slice(&created)?;
            uid = created["metadata"]["uid"]
                .as_str()
                .context("the owner has no UID")?
                .to_owned();
        }
        let creates = (0..dependents).map(|index| {
            let owner = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "name": family.owner, "uid": uid, "blockOwnerDeletion": true,
            });
            let metadata = json!({ "name": family.name(index), "ownerReferences": [owner] });
            let body = json!({ "metadata": metadata, "data": { "settings": TEXT.repeat(3) } }).to_string();
            client.send(Method::POST, &family.collection, PROTOBUF, body)
        });
        let created = stream::iter(creates).buffer_unordered(IN_FLIGHT);
        created.try_for_each(async |_| Ok(())).await?;
        Ok(family)
    }

    pub fn owner_path(&self) -> String {
        format!("{}/{}", self.collection, self.owner)
    }

    fn name(&self, index: u32) -> String {
        format!("{}-{index:07}", self.owner)
    }

    /// Deletes all dependents by name: the baseline of collectors. Returns the seconds until all are deleted.
    pub async fn delete_all(&self, client: &Http2, admin: &Http2) -> Result<f64> {
        const OPTIONS: &str = r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;
        let begin = Instant::now();
        let deletes = (0..self.dependents).map(|index| async move {
            let path = format!("{}/{}", self.collection, self.name(index));
            client.send(Method::DELETE, &path, PROTOBUF, OPTIONS).await
        });
        let deleted = stream::iter(deletes).buffer_unordered(IN_FLIGHT);
        let deleted = deleted.try_for_each(async |_| Ok(()));
        let ((), seconds) = tokio::try_join!(deleted, self.wait_until_deleted(admin, begin))?;
        Ok(seconds)
    }

    /// Seconds from `begin` until a list shows no object.
    pub async fn wait_until_deleted(&self, client: &Http2, begin: Instant) -> Result<f64> {
        let path = format!("{}?limit=1", self.collection);
        let mut last = (u32::MAX, Instant::now());
        loop {
            let asked = begin.elapsed();
            let left = client.page(&path).await?.left();
            if left == 0 {
                // The list shows a state between its request and its answer.
                return Ok((asked + begin.elapsed()).as_secs_f64() / 2.0);
            }
            if left < last.0 {
                last = (left, Instant::now());
            } else if last.1.elapsed() > STALLED {
                bail!("{left} are left, and none was deleted in {STALLED:?}");
            }
            sleep(POLL).await;
        }
    }
}

/// Lists the metadata of all objects, kinds in parallel: the baseline of a collector's start. Returns the seconds.
pub async fn list_everything(access: &Access) -> Result<f64> {
    let client = Http2::new(access, 4)?;
    let mut collections = Vec::new();
    for root in ["/api", "/apis"] {
        let answer = client.send(Method::GET, root, DISCOVERY, "").await?;
        let found: Value = serde_json::from_slice(&answer).with_context(|| format!("read {root}"))?;
        let groups = found["items"].as_array().into_iter().flatten();
        collections.extend(groups.flat_map(|group| collections_of(root, group)));
    }
    let begin = Instant::now();
    try_join_all(collections.iter().map(async |collection| {
        let first = format!("{collection}?limit={PAGE}");
        let mut path = first.clone();
        loop {
            let page = client.page(&path).await?;
            let Some(next) = page.next() else { return anyhow::Ok(()) };
            // The token is URL-safe base64.
            path = format!("{first}&continue={next}");
        }
    }))
    .await?;
    Ok(begin.elapsed().as_secs_f64())
}

/// The kinds that a collector watches, in the preferred version of their group.
fn collections_of(root: &str, group: &Value) -> Vec<String> {
    let name = group["metadata"]["name"].as_str().unwrap_or_default();
    let version = &group["versions"][0];
    let base = format!("{root}/{name}/{}", version["version"].as_str().unwrap_or_default()).replace("//", "/");
    let resources = version["resources"].as_array().into_iter().flatten();
    let is_collected = |resource: &&Value| {
        let verbs = resource["verbs"].as_array();
        let has = |verb: &&str| verbs.is_some_and(|verbs| verbs.iter().any(|it| it == verb));
        ["list", "watch", "delete"].iter().all(has) && resource["resource"] != "events"
    };
    let collected = resources.filter(is_collected);
    collected
        .map(|resource| format!("{base}/{}", resource["resource"].as_str().unwrap_or_default()))
        .collect()
}

/// One of `count` objects for the in-memory API server: an owner, its dependents, which are half of all, and others.
pub fn object(index: u32, count: u32) -> Value {
    let mut metadata = json!({ "name": format!("object-{index:07}"), "namespace": "default" });
    if index == 0 {
        metadata["uid"] = OWNER.into();
    } else if index <= count / 2 {
        metadata["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "object-0000000", "uid": OWNER }]);
    }
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata })
}
