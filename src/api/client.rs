//! The requests themselves. Writes pass the gate for effects; nothing is retried here, because what a retry
//! means differs from caller to caller.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::client::Body;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
};

use super::{
    ApiError, answer::read, connection::Connection, dial::Dial, escape::escape, event::EventWrite, proven::Proof,
    review,
};
use crate::{
    node::{
        checkpoint,
        effects::{Effect, Effects},
    },
    pod::PodRef,
};

/// Pods in one page: a page is held in memory whole.
const PAGE: usize = 50;
/// A line of a watch is one object; etcd takes no object over 1.5 MiB, and JSON may blow one up.
const WATCH_LINE_LIMIT: usize = 16 << 20;

/// A client with the agent's own identity.
#[derive(Clone)]
pub struct ApiClient {
    connection: Arc<Connection>,
    effects: Effects,
    node_name: Arc<str>,
}

/// One page of this node's pods, each still in JSON, so that one that cannot be understood harms no other.
#[derive(Debug, Deserialize)]
pub struct PodPage {
    /// Of the list, not of the objects.
    pub metadata: PageMeta,
    /// The pods.
    #[serde(default)]
    pub items: Vec<Box<RawValue>>,
}

/// `ListMeta`, as far as it is needed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PageMeta {
    /// State of the store that the list shows.
    #[serde(default)]
    pub resource_version: String,
    /// Token of the next page; empty on the last.
    #[serde(default, rename = "continue")]
    pub continue_token: String,
}

/// What a list says of one pod.
#[derive(Debug, Clone, Copy)]
pub struct NamedPods {
    /// State of the store that the list shows, if it can be compared.
    pub version: Option<u64>,
    /// The pod is in it, or something that might be the pod.
    pub shows_it: bool,
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

/// What became of a DELETE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteAnswer {
    /// The object is gone.
    Gone,
    /// It stays until these finalizers are taken off.
    HeldByFinalizers(Vec<String>),
}

impl ApiClient {
    /// A client for the pods of this node. `kubeconfig` is where `config` was read from. Each connection proves by
    /// `proof` where it leads; without one they are used as they are. They are opened by `dial`, if there is one.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        effects: Effects,
        proof: Option<Proof>,
        dial: Option<Dial>,
        node_name: &str,
    ) -> Result<Self, kube::Error> {
        Ok(Self {
            connection: Arc::new(Connection::new(config, kubeconfig, node_path(node_name), proof, dial)?),
            effects,
            node_name: node_name.into(),
        })
    }

    /// Name of this agent's Node.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// When its credentials end, where they tell.
    pub fn credentials_end(&self) -> Option<jiff::Timestamp> {
        self.connection.credentials_end()
    }

    /// This agent's Node. It is what is asked first wherever a connection begins: by credentials as they are now.
    pub async fn node(&self) -> Result<Node, ApiError> {
        self.connection.follow_files().await;
        self.get_json(&node_path(&self.node_name)).await
    }

    /// What a kubelet changes in this Node's Lease with each renewal, several values in one text; nothing where there is no
    /// Lease.
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

    /// One page of this node's pods, consistent; `name` narrows it to one name.
    pub async fn pods(&self, name: Option<&str>, continue_token: &str) -> Result<PodPage, ApiError> {
        let mut selector = format!("spec.nodeName={}", self.node_name);
        if let Some(name) = name {
            selector = format!("{selector},metadata.name={name}");
        }
        let mut path = format!("/api/v1/pods?fieldSelector={}&limit={PAGE}", escape(&selector));
        if !continue_token.is_empty() {
            path = format!("{path}&continue={}", escape(continue_token));
        }
        self.get_json(&path).await
    }

    /// Watches this node's pods from a resourceVersion on. The server ends the stream after `lifetime`.
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
        let response = self.connection.answered(VERB, &path, request).await?;
        let body = StreamReader::new(response.into_body().into_data_stream().map_err(std::io::Error::other));
        let lines = FramedRead::new(body, LinesCodec::new_with_max_length(WATCH_LINE_LIMIT));
        Ok(lines
            .map(move |line| {
                let line = line.map_err(|error| ApiError::unreachable(VERB, PATH, &error))?;
                read(VERB, PATH, line.as_bytes())
            })
            .boxed())
    }

    /// Strategic merge patch of a pod's status. The body carries the UID, so that no other pod is ever touched.
    pub async fn patch_pod_status(&self, pod: &PodRef, patch: &Value) -> Result<(), ApiError> {
        const TYPE: &str = "application/strategic-merge-patch+json";
        let path = format!("{}/status", pod_path(pod));
        self.write(Method::PATCH, "PATCH", &path, Some(TYPE), patch.to_string().into())
            .await
            .map(drop)
    }

    /// JSON patch of this agent's Node's status, which says by tests what it rests on.
    /// `false` in a dry run, which sends nothing.
    pub async fn patch_node_status(&self, patch: &Value) -> Result<bool, ApiError> {
        const TYPE: &str = "application/json-patch+json";
        let path = format!("{}/status", node_path(&self.node_name));
        let answer = self.write(Method::PATCH, "PATCH", &path, Some(TYPE), patch.to_string().into());
        Ok(!answer.await?.is_empty())
    }

    /// A PersistentVolume; a node may read those that its pods refer to.
    pub async fn persistent_volume(&self, name: &str) -> Result<PersistentVolume, ApiError> {
        self.get_json(&format!("/api/v1/persistentvolumes/{}", escape(name)))
            .await
    }

    /// The final delete: grace 0, and the UID as precondition.
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
        let finalizers = serde_json::from_slice::<Deleted>(&body).map(|object| object.metadata.finalizers);
        Ok(match finalizers {
            Ok(finalizers) if !finalizers.is_empty() => DeleteAnswer::HeldByFinalizers(finalizers),
            _ => DeleteAnswer::Gone,
        })
    }

    /// All pods of this pod's name on this node, in a complete and consistent list.
    pub async fn named(&self, pod: &PodRef) -> Result<NamedPods, ApiError> {
        let mut shows_it = false;
        let version = self.each_named(pod, |item, _| shows_it |= item).await?;
        Ok(NamedPods { version, shows_it })
    }

    /// The pod's object; `None` if a list lacks it, which proves nothing. A node may always list its pods, and may not ask
    /// for one that is gone.
    pub async fn pod(&self, pod: &PodRef) -> Result<Option<Pod>, ApiError> {
        let mut found = None;
        let mut keep = |is_it: bool, item: &RawValue| {
            if is_it {
                found = serde_json::from_str(item.get()).ok();
            }
        };
        self.each_named(pod, &mut keep).await?;
        Ok(found)
    }

    /// Tells of each pod of this name whether it is, or might be, this one. Returns the list's version.
    async fn each_named(&self, pod: &PodRef, mut each: impl FnMut(bool, &RawValue)) -> Result<Option<u64>, ApiError> {
        // One that cannot be read might be the one.
        let is_this = |item: &RawValue| {
            serde_json::from_str::<Deleted>(item.get()).map_or(true, |object| object.metadata.uid == pod.uid.as_str())
        };
        let mut token = String::new();
        loop {
            let page = self.pods(Some(&pod.name), &token).await?;
            page.items.iter().for_each(|item| each(is_this(item), item));
            token = page.metadata.continue_token;
            if token.is_empty() {
                return Ok(page.metadata.resource_version.parse().ok());
            }
        }
    }

    /// All pods of this node, in a complete and consistent list.
    pub async fn all_pods(&self) -> Result<Vec<Pod>, ApiError> {
        let (mut pods, mut token) = (Vec::new(), String::new());
        loop {
            let page = self.pods(None, &token).await?;
            for item in page.items {
                pods.push(read("GET", "/api/v1/pods", item.get().as_bytes())?);
            }
            token = page.metadata.continue_token;
            if token.is_empty() {
                return Ok(pods);
            }
        }
    }

    /// The UID of this ResourceClaim, and the UIDs for which it is reserved.
    pub async fn reserved_for(&self, namespace: &str, name: &str) -> Result<(String, Vec<String>), ApiError> {
        let (namespace, name) = (escape(namespace), escape(name));
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let claim: Value = self.get_json(&path).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let reserved = claim["status"]["reservedFor"].as_array();
        let reserved = reserved.into_iter().flatten().map(|by| text(&by["uid"])).collect();
        Ok((text(&claim["metadata"]["uid"]), reserved))
    }

    /// Records an event, or that it happened again.
    pub async fn record(&self, event: EventWrite) -> Result<(), ApiError> {
        let (verb, path, content_type, body) = event.parts();
        let method = verb.parse().map_err(|error| ApiError::unreadable(verb, &path, error))?;
        self.write(method, verb, &path, Some(content_type), body)
            .await
            .map(drop)
    }

    /// Asks whether this identity may do something. A question, not an effect.
    pub async fn may(&self, attributes: &Value) -> Result<bool, ApiError> {
        let request = request(Method::POST, "POST", review::PATH, None, review::of(attributes))?;
        let answer = self.connection.collected("POST", review::PATH, request).await?;
        read("POST", review::PATH, &answer).map(|review| review::is_granted(&review))
    }

    async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let request = request(Method::GET, "GET", path, None, Bytes::new())?;
        read("GET", path, &self.connection.collected("GET", path, request).await?)
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
        let _place = self.connection.place().await;
        // Whoever waited for a place may find the gate shut by now.
        let allowed = self.effects.allow(&Effect::new(verb, &path));
        if !allowed.map_err(|held| ApiError::held(verb, path, held.reason))? {
            return Ok(Bytes::new());
        }
        let sent = self.connection.collected(verb, path, request);
        let answer = self.effects.as_long_as_allowed(sent).await;
        checkpoint::after(verb, &path);
        answer.map_err(|held| ApiError::held(verb, path, held.reason))?
    }
}

/// As much of an object as tells which one it is and whether it stays.
#[derive(Deserialize)]
struct Deleted {
    #[serde(default)]
    metadata: DeletedMeta,
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
