//! The requests of the agent. Writes pass the gate for effects. Nothing is retried here: the callers decide.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http_body_util::BodyExt as _;
use k8s_openapi::{
    api::core::v1::{Node, PersistentVolume},
    apimachinery::pkg::apis::meta::v1::ListMeta,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tokio::sync::Semaphore;
use tokio_util::{
    codec::{AnyDelimiterCodec, FramedRead},
    io::StreamReader,
};

use super::{
    ApiError,
    connection_pool::{Evidence, JSON, Proof, RequestParts},
    dial::Dial,
    error::read,
    escape::escape,
    requests::{EventWrite, Requests},
};
use crate::{
    model::pod::{PodObject, PodRef, PodView},
    node::{checkpoint, effects::Effects},
    why::Why,
};

/// Limit of an object in bytes. etcd accepts 1.5 MiB, and JSON is larger.
const MAX_OBJECT: usize = 16 << 20;
/// Pods in the first page of a list. Each later page has as many pods of the average size so far as fill [`PAGE_BYTES`].
const FIRST_PAGE: usize = 10;
const PAGE_BYTES: usize = 1 << 20;
/// Upper limit of pods in a page.
const MAX_PAGE: usize = 500;
/// Largest growth from page to page: the next pods may be larger.
const MAX_PAGE_GROWTH: usize = 4;
/// Simultaneous writes: a node full of terminating pods would send a hundred at once. Reads are few and not limited, since a read
/// of the Node must not wait for writes.
const MAX_WRITES: usize = 8;
/// Simultaneous lists for terminating pods. Each buffers a page, and a hundred pods may need one at once.
const MAX_LISTS: usize = 4;

/// A client with the agent's own identity.
#[derive(Clone)]
pub struct ApiClient {
    requests: Arc<Requests>,
    effects: Effects,
    node_name: Arc<str>,
    lists: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

/// Page of pods.
#[derive(Debug, Deserialize)]
struct PodPage<'a> {
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
/// All requests share one connection.
const LANE: usize = 0;

/// Result of a list of pods of one name.
#[derive(Debug)]
pub struct NamedPods {
    /// resourceVersion of the list, if it is a number.
    pub version: Option<u64>,
    /// The pod, or why an object that may be the pod is unreadable; `None` if the list has neither.
    pub pod: Option<Result<PodObject, Why>>,
}

/// Metadata of an object that may otherwise be unreadable. What cannot be read is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(missing_docs, reason = "as in the API")]
pub struct RawMetadata {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub resource_version: String,
}

/// One line of a watch.
#[derive(Debug, Deserialize)]
pub struct WatchLine {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The object, or the `Status` of an error.
    pub object: Box<RawValue>,
}

/// Lines of a running watch.
pub type WatchStream = BoxStream<'static, Result<WatchLine, ApiError>>;

impl RawMetadata {
    /// Reads the metadata of an object in JSON.
    pub fn read(object: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Object {
            metadata: RawMetadata,
        }
        serde_json::from_slice(object).map_or_else(|_| Self::default(), |Object { metadata }| metadata)
    }
}

impl ApiClient {
    /// A client for the pods of the Node with this name. `config` was read from `kubeconfig`. Each new connection has to show the
    /// Node first, which passes the `proof`. `dial`, if given, opens the connections.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        effects: Effects,
        (node_name, proof): (&str, Proof),
        dial: Option<Dial>,
    ) -> Result<Self, kube::Error> {
        let evidence = Evidence::Node(node_path(node_name), proof);
        let requests = Requests::new(config, kubeconfig, evidence, dial, effects.blocking())?;
        Ok(Self {
            requests: Arc::new(requests),
            effects,
            node_name: node_name.into(),
            lists: Arc::new(Semaphore::new(MAX_LISTS)),
            writes: Arc::new(Semaphore::new(MAX_WRITES)),
        })
    }

    /// The same client behind these effects.
    #[must_use]
    pub fn with_effects(self, effects: Effects) -> Self {
        Self { effects, ..self }
    }

    /// Name of this agent's Node.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// When its credentials expire, if they show it.
    pub fn credentials_expiry(&self) -> Option<jiff::Timestamp> {
        self.requests.credentials.pool().expires_at
    }

    /// This agent's Node. It is the first request of a connection, so changed credentials are read before it.
    pub async fn node(&self) -> Result<Node, ApiError> {
        self.requests.credentials.reload_if_changed().await;
        self.get_json(&node_path(&self.node_name)).await
    }

    /// The fields of this Node's Lease that a kubelet's renewal changes, as one text; `None` without a Lease.
    pub async fn node_lease(&self) -> Result<Option<String>, ApiError> {
        let name = escape(&self.node_name);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}");
        match self.get_json::<Value>(&path).await {
            Ok(lease) => {
                let spec = &lease["spec"];
                let renewed = [&lease["metadata"]["uid"], &spec["holderIdentity"], &spec["renewTime"]];
                Ok(Some(renewed.map(ToString::to_string).join(" ")))
            }
            Err(error) if error.is_absence_of("coordination.k8s.io", "leases", &self.node_name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Version that the server reports, such as `v1.36.3`.
    pub async fn version(&self) -> Result<String, ApiError> {
        let info: Value = self.get_json("/version").await?;
        Ok(info["gitVersion"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Calls `each` with each of this node's pods (of this `name`, if given) in a complete, consistent list. Returns the
    /// list's resourceVersion. At most one page is in memory at a time.
    ///
    /// # Errors
    /// A page failed; `each` got a partial list.
    pub async fn each_pod(
        &self,
        name: Option<&str>,
        mut each: impl FnMut(&RawValue) + Send,
    ) -> Result<String, ApiError> {
        let mut selector = format!("spec.nodeName={}", self.node_name);
        if let Some(name) = name {
            selector = format!("{selector},metadata.name={name}");
        }
        let (mut token, mut limit) = (String::new(), FIRST_PAGE);
        loop {
            let mut path = format!("/api/v1/pods?fieldSelector={}&limit={limit}", escape(&selector));
            if !token.is_empty() {
                path = format!("{path}&continue={}", escape(&token));
            }
            let page = self.requests.fetch(LANE, get("GET", &path)).await?;
            let PodPage { metadata, items } = read("GET", &path, &page)?;
            let items = items.unwrap_or_default();
            items.iter().copied().for_each(&mut each);
            token = metadata.continue_.unwrap_or_default();
            if token.is_empty() {
                return Ok(metadata.resource_version.unwrap_or_default());
            }
            limit = next_page(limit, items.len(), page.len());
        }
    }

    /// Watches this node's pods from a resourceVersion. The server ends the stream after `lifetime`.
    pub async fn watch_pods(&self, from: &str, lifetime: Duration) -> Result<WatchStream, ApiError> {
        const VERB: &str = "WATCH";
        const PATH: &str = "/api/v1/pods";
        let selector = escape(&format!("spec.nodeName={}", self.node_name));
        let path = format!(
            "{PATH}?watch=true&allowWatchBookmarks=true&fieldSelector={selector}&resourceVersion={}&timeoutSeconds={}",
            escape(from),
            lifetime.as_secs(),
        );
        let (answer, _) = self.requests.start(LANE, &get(VERB, &path)).await?;
        let body = answer.into_body().into_data_stream();
        let body = StreamReader::new(body.map_err(std::io::Error::other));
        let lines = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), MAX_OBJECT);
        let lines = FramedRead::new(body, lines).map(move |line| {
            let line = line.map_err(|error| ApiError::unreachable(VERB, PATH, &error))?;
            read(VERB, PATH, &line)
        });
        Ok(lines.boxed())
    }

    /// Strategic merge patch of a pod's status. The patch contains the UID, so that it cannot change another pod.
    pub async fn patch_pod_status(&self, pod: &PodRef, patch: &Value) -> Result<(), ApiError> {
        let path = format!("{}/status", pod_path(pod));
        let patch = patch.to_string().into();
        self.write("PATCH", &path, STRATEGIC_MERGE, patch).await.map(drop)
    }

    /// Patch of this agent's Node's status. An array is a JSON patch, whose `test` operations are the preconditions. An object is a
    /// strategic merge patch, which merges the Node's conditions by type; it contains the Node's UID.
    pub async fn patch_node_status(&self, patch: &Value) -> Result<(), ApiError> {
        let content_type = match patch {
            Value::Array(_) => "application/json-patch+json",
            _ => STRATEGIC_MERGE,
        };
        let path = format!("{}/status", node_path(&self.node_name));
        let patch = patch.to_string().into();
        self.write("PATCH", &path, content_type, patch).await.map(drop)
    }

    /// A PersistentVolume. A node may read only those that its pods refer to.
    pub async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, ApiError> {
        self.get_json(&format!("/api/v1/persistentvolumes/{}", escape(name)))
            .await
    }

    /// The final delete: grace period 0 and the UID as precondition. Returns the finalizers that keep the object; none if it is
    /// deleted.
    pub async fn delete_pod(&self, pod: &PodRef) -> Result<Vec<String>, ApiError> {
        let options = json!({
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": { "uid": pod.uid.as_str() },
        });
        let options = options.to_string().into();
        let body = self.write("DELETE", &pod_path(pod), JSON, options).await?;
        let object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        Ok(finalizers.filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Lists all pods of this pod's name on this node, completely and consistently.
    pub async fn pods_named(&self, pod: &PodRef) -> Result<NamedPods, ApiError> {
        let mut found = None;
        let each = |item: &RawValue| {
            let uid = RawMetadata::read(item.get().as_bytes()).uid;
            // An object that is unreadable or has no UID may be this pod.
            if uid.is_empty() || uid == pod.uid.as_str() {
                found = Some(PodObject::read(item));
            }
        };
        // Never closed, so it cannot fail.
        let _list = self.lists.acquire().await.ok();
        let version = self.each_pod(Some(&pod.name), each).await?.parse().ok();
        Ok(NamedPods { version, pod: found })
    }

    /// The pod's object; `None` if a list lacks it, which does not prove its absence. By list, since a node may not GET a
    /// deleted pod.
    ///
    /// # Errors
    /// The list failed, or the object is unreadable.
    pub async fn pod(&self, pod: &PodRef) -> Result<Option<PodObject>, ApiError> {
        let found = self.pods_named(pod).await?.pod.transpose();
        found.map_err(|why| ApiError::unreadable("GET", &pod_path(pod), why))
    }

    /// Calls `each_view` with each pod of this node in a complete, consistent list. An unreadable object is skipped; the watch
    /// reports it.
    pub async fn each_pod_view(&self, mut each_view: impl FnMut(PodView) + Send) -> Result<(), ApiError> {
        let _list = self.lists.acquire().await.ok();
        let each = |item: &RawValue| match PodObject::read(item) {
            Ok(object) => each_view(PodView::whole(object, false)),
            Err(error) => tracing::debug!(%error, "Pod cannot be read; skipped"),
        };
        self.each_pod(None, each).await.map(drop)
    }

    /// The UID of this ResourceClaim and the UIDs of its `status.reservedFor`.
    pub async fn reserved_for(&self, namespace: &str, name: &str) -> Result<(String, Vec<String>), ApiError> {
        let (namespace, name) = (escape(namespace), escape(name));
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let claim: Value = self.get_json(&path).await?;
        let uid = |object: &Value| object["uid"].as_str().unwrap_or_default().to_owned();
        let reserved = claim["status"]["reservedFor"].as_array().into_iter().flatten();
        Ok((uid(&claim["metadata"]), reserved.map(uid).collect()))
    }

    /// Creates an event, or updates its count.
    pub async fn write_event(&self, event: EventWrite) -> Result<(), ApiError> {
        let (verb, path, content_type, body) = event.parts();
        self.write(verb, &path, content_type, body).await.map(drop)
    }

    /// Whether this identity may do something (SelfSubjectAccessReview).
    pub async fn is_allowed(&self, attributes: &Value) -> Result<bool, ApiError> {
        self.requests.is_allowed(attributes).await
    }

    async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        read("GET", path, &self.requests.fetch(LANE, get("GET", path)).await?)
    }

    async fn write(
        &self,
        verb: &'static str,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Bytes, ApiError> {
        // Never closed, so it cannot fail.
        let _slot = self.writes.acquire().await.ok();
        // The gate may have closed during the wait.
        let allowed = self.effects.allow(verb, &path);
        allowed.map_err(|held| ApiError::blocked(verb, path, held.to_string()))?;
        let parts = RequestParts {
            content_type: Some(content_type),
            body,
            ..get(verb, path)
        };
        let sent = self.requests.fetch(LANE, parts);
        let answer = self.effects.run_checked(sent).await;
        checkpoint::after(verb, &path);
        answer.map_err(|held| ApiError::blocked(verb, path, held.to_string()))?
    }
}

/// Limit of the page after one with this limit, number of pods and bytes.
fn next_page(limit: usize, pods: usize, bytes: usize) -> usize {
    let fitting = PAGE_BYTES * pods / bytes.max(1);
    fitting.clamp(1, (limit * MAX_PAGE_GROWTH).min(MAX_PAGE))
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{}", escape(name))
}

fn pod_path(pod: &PodRef) -> String {
    let (namespace, name) = (escape(&pod.namespace), escape(&pod.name));
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

fn get<'a>(verb: &'static str, path: &'a str) -> RequestParts<'a> {
    RequestParts::get(verb, path, JSON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_about_the_same_bytes_for_pods_of_any_size() {
        for (limit, pods, bytes, expected) in [
            (10, 10, 30_000, 40),
            (40, 40, 120_000, 160),
            (500, 500, 1_500_000, 349),
            (160, 160, 16 << 20, 10),
            (10, 10, 4 << 20, 2),
            (2, 2, 18 << 20, 1),
            (1, 1, 3_000, 4),
            (10, 0, 100, 1),
        ] {
            assert_eq!(next_page(limit, pods, bytes), expected, "{limit} {pods} {bytes}");
        }
    }
}
