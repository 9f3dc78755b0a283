//! The requests of the agent. Writes pass the gate for effects. Nothing is retried here: the callers decide.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::client::Body;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tokio::sync::Semaphore;
use tokio_util::{codec::FramedRead, io::StreamReader};

use super::{
    ApiError,
    answer::read,
    connection::Connection,
    dial::Dial,
    durations::RequestLabels,
    escape::escape,
    event::EventWrite,
    items::ListItems,
    lines::{Lines, MAX_OBJECT},
    node_proof::Proof,
    review,
};
use crate::{
    histogram::Snapshot,
    model::pod::{PodObject, PodRef, PodView},
    node::{
        checkpoint,
        effects::{Effect, Effects},
    },
};

/// Pods in the first page of a list. Each later page has as many pods of the average size so far as fill [`PAGE_BYTES`].
const FIRST_PAGE: usize = 10;
const PAGE_BYTES: usize = 4 << 20;
/// Upper limit of pods in a page.
const MAX_PAGE: usize = 500;
/// Largest growth from page to page: the next pods may be larger.
const MAX_PAGE_GROWTH: usize = 4;
/// Simultaneous lists for terminating pods. Each buffers an object, and a hundred pods may need one at once.
const MAX_LISTS: usize = 4;

/// A client with the agent's own identity.
#[derive(Clone)]
pub struct ApiClient {
    connection: Arc<Connection>,
    effects: Effects,
    node_name: Arc<str>,
    lists: Arc<Semaphore>,
}

/// Page of pods, without its items.
#[derive(Debug, Deserialize)]
struct PodPage {
    metadata: PageMeta,
}

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// The used fields of `ListMeta`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    /// resourceVersion of the list.
    #[serde(default)]
    resource_version: String,
    /// Token of the next page; empty on the last.
    #[serde(default, rename = "continue")]
    continue_token: String,
}

/// Result of a list of pods of one name.
#[derive(Debug, Clone, Copy)]
pub struct NamedPods {
    /// resourceVersion of the list, if it is a number.
    pub version: Option<u64>,
    /// The list has the pod, or an unreadable object that may be the pod.
    pub has_pod: bool,
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

/// Result of a DELETE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteAnswer {
    /// The object is deleted.
    Deleted,
    /// The object stays until these finalizers are removed.
    WaitsForFinalizers(Vec<String>),
}

impl ApiClient {
    /// A client for the pods of this node. `config` was read from `kubeconfig`. With a `proof`, each new connection has to
    /// show this agent's Node first. `dial`, if given, opens the connections.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        effects: Effects,
        proof: Option<Proof>,
        dial: Option<Dial>,
        node_name: &str,
    ) -> Result<Self, kube::Error> {
        let blocking = effects.blocking();
        let connection = Connection::new(config, kubeconfig, node_path(node_name), proof, dial, blocking)?;
        Ok(Self {
            connection: Arc::new(connection),
            effects,
            node_name: node_name.into(),
            lists: Arc::new(Semaphore::new(MAX_LISTS)),
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

    /// Durations of its requests by verb and result.
    pub fn request_durations(&self) -> Snapshot<RequestLabels> {
        self.connection.request_durations()
    }

    /// When its credentials expire, if they show it.
    pub fn credentials_expiry(&self) -> Option<jiff::Timestamp> {
        self.connection.credentials_expiry()
    }

    /// This agent's Node. It is the first request of a connection, so changed credentials are read before it.
    pub async fn node(&self) -> Result<Node, ApiError> {
        self.connection.reload_if_changed().await;
        self.get_json(&node_path(&self.node_name)).await
    }

    /// The fields of this Node's Lease that a kubelet's renewal changes, as one text; `None` without a Lease.
    pub async fn node_lease(&self) -> Result<Option<String>, ApiError> {
        let name = &self.node_name;
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}",
            escape(name)
        );
        match self.get_json::<Value>(&path).await {
            Ok(lease) => {
                let spec = &lease["spec"];
                let renewed = [&lease["metadata"]["uid"], &spec["holderIdentity"], &spec["renewTime"]];
                Ok(Some(renewed.map(ToString::to_string).join(" ")))
            }
            Err(error) if error.is_absence_of("coordination.k8s.io", "leases", name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Version that the server reports, such as `v1.36.3`.
    pub async fn version(&self) -> Result<String, ApiError> {
        let info: Value = self.get_json("/version").await?;
        Ok(info["gitVersion"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Calls `each` with each of this node's pods (of this `name`, if given) in a complete, consistent list. Returns the
    /// list's resourceVersion. At most one object is in memory at a time.
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
            let request = request(Method::GET, "GET", &path, None, Bytes::new())?;
            let (mut items, mut pods, mut bytes, mut decode_error) = (ListItems::new(MAX_OBJECT), 0, 0, None);
            let mut take = |chunk: Bytes| {
                bytes += chunk.len();
                let taken = items.push(&chunk, |item| {
                    pods += 1;
                    match serde_json::from_slice(item) {
                        Ok(item) => each(item),
                        Err(error) => decode_error = Some(error),
                    }
                });
                taken.map_err(|error| ApiError::unreadable("GET", &path, error))
            };
            self.connection.fetch_streamed("GET", &path, request, &mut take).await?;
            if let Some(error) = decode_error {
                return Err(ApiError::unreadable("GET", &path, error));
            }
            let PodPage { metadata } = read("GET", &path, &items.into_remainder())?;
            if metadata.continue_token.is_empty() {
                return Ok(metadata.resource_version);
            }
            (token, limit) = (metadata.continue_token, next_page(limit, pods, bytes));
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
        let request = request(Method::GET, VERB, &path, None, Bytes::new())?;
        let response = self.connection.fetch_start(VERB, &path, request).await?;
        let body = StreamReader::new(response.into_body().into_data_stream().map_err(std::io::Error::other));
        let lines = FramedRead::new(body, Lines::default());
        Ok(lines
            .map(move |line| {
                let line = line.map_err(|error| ApiError::unreachable(VERB, PATH, &error))?;
                read(VERB, PATH, &line)
            })
            .boxed())
    }

    /// Strategic merge patch of a pod's status. The patch contains the UID, so that it cannot change another pod.
    pub async fn patch_pod_status(&self, pod: &PodRef, patch: &Value) -> Result<(), ApiError> {
        let path = format!("{}/status", pod_path(pod));
        let patch = patch.to_string().into();
        self.write(Method::PATCH, "PATCH", &path, Some(STRATEGIC_MERGE), patch)
            .await
            .map(drop)
    }

    /// JSON patch of this agent's Node's status; its `test` operations are the preconditions.
    pub async fn patch_node_status(&self, patch: &Value) -> Result<(), ApiError> {
        const TYPE: &str = "application/json-patch+json";
        let path = format!("{}/status", node_path(&self.node_name));
        let answer = self.write(Method::PATCH, "PATCH", &path, Some(TYPE), patch.to_string().into());
        answer.await.map(drop)
    }

    /// Strategic merge patch of this agent's Node's status, which merges its conditions by type. The patch contains the Node's UID.
    pub async fn patch_own_condition(&self, patch: &Value) -> Result<(), ApiError> {
        let path = format!("{}/status", node_path(&self.node_name));
        let patch = patch.to_string().into();
        self.write(Method::PATCH, "PATCH", &path, Some(STRATEGIC_MERGE), patch)
            .await
            .map(drop)
    }

    /// A PersistentVolume. A node may read only those that its pods refer to.
    pub async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, ApiError> {
        self.get_json(&format!("/api/v1/persistentvolumes/{}", escape(name)))
            .await
    }

    /// The final delete: grace period 0 and the UID as precondition.
    pub async fn delete_pod(&self, pod: &PodRef) -> Result<DeleteAnswer, ApiError> {
        let options = json!({
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": { "uid": pod.uid.as_str() },
        });
        let body = self
            .write(
                Method::DELETE,
                "DELETE",
                &pod_path(pod),
                None,
                options.to_string().into(),
            )
            .await?;
        let finalizers = serde_json::from_slice::<DeletedObject>(&body).map(|object| object.metadata.finalizers);
        Ok(match finalizers {
            Ok(finalizers) if !finalizers.is_empty() => DeleteAnswer::WaitsForFinalizers(finalizers),
            _ => DeleteAnswer::Deleted,
        })
    }

    /// All pods of this pod's name on this node, in a complete and consistent list.
    pub async fn pods_named(&self, pod: &PodRef) -> Result<NamedPods, ApiError> {
        let mut has_pod = false;
        let version = self.for_each_named(pod, |item, _| has_pod |= item).await?;
        Ok(NamedPods { version, has_pod })
    }

    /// The pod's object; `None` if a list lacks it, which does not prove its absence. By list, since a node may not GET a
    /// deleted pod.
    ///
    /// # Errors
    /// The list failed, or the object is unreadable.
    pub async fn pod(&self, pod: &PodRef) -> Result<Option<PodObject>, ApiError> {
        let mut found = None;
        let mut read = |may_be_pod: bool, item: &RawValue| {
            if may_be_pod {
                found = Some(PodObject::read(item));
            }
        };
        self.for_each_named(pod, &mut read).await?;
        let found = found.transpose();
        found.map_err(|why| ApiError::unreadable("GET", &pod_path(pod), why))
    }

    /// Calls `each` with each pod of this name and whether it is, or may be, this pod. Returns the list's version.
    async fn for_each_named(
        &self,
        pod: &PodRef,
        mut each: impl FnMut(bool, &RawValue) + Send,
    ) -> Result<Option<u64>, ApiError> {
        // An unreadable object may be this pod.
        let may_be_pod = |item: &RawValue| {
            serde_json::from_str::<DeletedObject>(item.get())
                .map_or(true, |object| object.metadata.uid == pod.uid.as_str())
        };
        // Never closed, so it cannot fail.
        let _list = self.lists.acquire().await.ok();
        let version = self
            .each_pod(Some(&pod.name), |item| each(may_be_pod(item), item))
            .await?;
        Ok(version.parse().ok())
    }

    /// Results of `project` for the pods of this node in a complete, consistent list. An unreadable object is skipped; the
    /// watch reports it.
    pub async fn all_pods<T: Send>(
        &self,
        mut project: impl FnMut(PodView) -> Option<T> + Send,
    ) -> Result<Vec<T>, ApiError> {
        let _list = self.lists.acquire().await.ok();
        let mut pods = Vec::new();
        let each = |item: &RawValue| match PodObject::read(item) {
            Ok(object) => pods.extend(project(PodView::whole(object, false))),
            Err(error) => tracing::debug!(error, "Pod cannot be read; skipped"),
        };
        self.each_pod(None, each).await?;
        Ok(pods)
    }

    /// The UID of this ResourceClaim and the UIDs of its `status.reservedFor`.
    pub async fn reserved_for(&self, namespace: &str, name: &str) -> Result<(String, Vec<String>), ApiError> {
        let (namespace, name) = (escape(namespace), escape(name));
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let ResourceClaim { metadata, status } = self.get_json(&path).await?;
        let reserved = status.unwrap_or_default().reserved_for.into_iter().map(|by| by.uid);
        Ok((metadata.uid, reserved.collect()))
    }

    /// Creates an event, or updates its count.
    pub async fn write_event(&self, event: EventWrite) -> Result<(), ApiError> {
        let (verb, path, content_type, body) = event.parts();
        let method = verb.parse().map_err(|error| ApiError::unreadable(verb, &path, error))?;
        self.write(method, verb, &path, Some(content_type), body)
            .await
            .map(drop)
    }

    /// Whether this identity may do something (SelfSubjectAccessReview).
    pub async fn is_allowed(&self, attributes: &Value) -> Result<bool, ApiError> {
        let request = request(Method::POST, "POST", review::PATH, None, review::body(attributes))?;
        let answer = self.connection.fetch("POST", review::PATH, request).await?;
        read("POST", review::PATH, &answer).map(|review| review::is_granted(&review))
    }

    async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let request = request(Method::GET, "GET", path, None, Bytes::new())?;
        read("GET", path, &self.connection.fetch("GET", path, request).await?)
    }

    async fn write(
        &self,
        method: Method,
        verb: &'static str,
        path: &str,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Bytes, ApiError> {
        let request = request(method, verb, path, content_type, body)?;
        let _slot = self.connection.write_slot().await;
        // The gate may have closed during the wait.
        let allowed = self.effects.allow(&Effect::new(verb, &path));
        allowed.map_err(|held| ApiError::blocked(verb, path, held.reason))?;
        let sent = self.connection.fetch(verb, path, request);
        let answer = self.effects.run_checked(sent).await;
        checkpoint::after(verb, &path);
        answer.map_err(|held| ApiError::blocked(verb, path, held.reason))?
    }
}

/// Limit of the page after one with this limit, number of pods and bytes.
fn next_page(limit: usize, pods: usize, bytes: usize) -> usize {
    let fitting = PAGE_BYTES * pods / bytes.max(1);
    fitting.clamp(1, (limit * MAX_PAGE_GROWTH).min(MAX_PAGE))
}

/// The fields of an object that show its identity and its finalizers.
#[derive(Deserialize)]
struct DeletedObject {
    #[serde(default)]
    metadata: DeletedMeta,
}

/// The used fields of a ResourceClaim, which may be large.
#[derive(Deserialize)]
struct ResourceClaim {
    #[serde(default)]
    metadata: UidOnly,
    #[serde(default)]
    status: Option<ResourceClaimStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceClaimStatus {
    #[serde(default)]
    reserved_for: Vec<UidOnly>,
}

#[derive(Default, Deserialize)]
struct UidOnly {
    #[serde(default)]
    uid: String,
}

#[derive(Default, Deserialize)]
struct DeletedMeta {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    finalizers: Vec<String>,
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{}", escape(name))
}

fn pod_path(pod: &PodRef) -> String {
    format!(
        "/api/v1/namespaces/{}/pods/{}",
        escape(&pod.namespace),
        escape(&pod.name)
    )
}

fn request(
    method: Method,
    verb: &'static str,
    path: &str,
    content_type: Option<&'static str>,
    body: Bytes,
) -> Result<Request<Body>, ApiError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, content_type.unwrap_or("application/json"))
        .body(Body::from(body))
        .map_err(|error| ApiError::unreadable(verb, path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_about_the_same_bytes_for_pods_of_any_size() {
        for (limit, pods, bytes, expected) in [
            (10, 10, 30_000, 40),
            (40, 40, 120_000, 160),
            (500, 500, 1_500_000, 500),
            (160, 160, 16 << 20, 40),
            (10, 10, 15 << 20, 2),
            (2, 2, 18 << 20, 1),
            (1, 1, 3_000, 4),
            (10, 0, 100, 1),
        ] {
            assert_eq!(next_page(limit, pods, bytes), expected, "{limit} {pods} {bytes}");
        }
    }
}
