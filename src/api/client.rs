//! The requests themselves. Writes pass the gate for effects; nothing is retried here, because what a retry
//! means differs from caller to caller.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::client::Body;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tokio::sync::Semaphore;
use tokio_util::{
    codec::{Decoder, FramedRead},
    io::StreamReader,
};

use super::{
    ApiError, answer::read, connection::Connection, dial::Dial, escape::escape, event::EventWrite, items::Items,
    proven::Proof, review,
};
use crate::{
    model::pod::{PodObject, PodRef, PodView},
    node::{
        checkpoint,
        effects::{Effect, Effects},
    },
};

/// Pods in the first page of a list. Each later one has as many as fill [`PAGE_BYTES`], if they are like those before.
const FIRST_PAGE: usize = 10;
const PAGE_BYTES: usize = 4 << 20;
/// Pods in one page, however small they are.
const LARGEST_PAGE: usize = 500;
/// A page is at most so many times as long as the one before: its pods may be larger.
const PAGE_GROWTH: usize = 4;
/// Bytes of one object. etcd takes none over 1.5 MiB, and JSON may blow one up.
const LARGEST_OBJECT: usize = 16 << 20;
/// Lists at once for terminating pods. Each holds an object, and a hundred pods may ask together.
const LISTS_AT_ONCE: usize = 4;
/// A watch keeps the memory of a shorter line for the next one.
const LONG_LINE: usize = 256 << 10;

/// A client with the agent's own identity.
#[derive(Clone)]
pub struct ApiClient {
    connection: Arc<Connection>,
    effects: Effects,
    node_name: Arc<str>,
    lists: Arc<Semaphore>,
}

/// One page of pods, without them.
#[derive(Debug, Deserialize)]
struct PodPage {
    metadata: PageMeta,
}

/// `ListMeta`, as far as it is needed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    /// State of the store that the list shows.
    #[serde(default)]
    resource_version: String,
    /// Token of the next page; empty on the last.
    #[serde(default, rename = "continue")]
    continue_token: String,
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
        let blocking = effects.blocking();
        let connection = Connection::new(config, kubeconfig, node_path(node_name), proof, dial, blocking)?;
        Ok(Self {
            connection: Arc::new(connection),
            effects,
            node_name: node_name.into(),
            lists: Arc::new(Semaphore::new(LISTS_AT_ONCE)),
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

    /// Gives each of this node's pods to `each`, in a complete and consistent list; `name` narrows it to one name. Returns
    /// the list's resourceVersion. At most one object is held at a time.
    ///
    /// # Errors
    /// When a page fails; what `each` was given is then half a list.
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
            let (mut items, mut pods, mut bytes, mut broken) = (Items::new(LARGEST_OBJECT), 0, 0, None);
            let mut take = |chunk: Bytes| {
                bytes += chunk.len();
                let taken = items.push(&chunk, |item| {
                    pods += 1;
                    match serde_json::from_slice(item) {
                        Ok(item) => each(item),
                        Err(error) => broken = Some(error),
                    }
                });
                taken.map_err(|error| ApiError::unreadable("GET", &path, error))
            };
            self.connection.streamed("GET", &path, request, &mut take).await?;
            if let Some(error) = broken {
                return Err(ApiError::unreadable("GET", &path, error));
            }
            let PodPage { metadata } = read("GET", &path, &items.into_rest())?;
            if metadata.continue_token.is_empty() {
                return Ok(metadata.resource_version);
            }
            (token, limit) = (metadata.continue_token, next_page(limit, pods, bytes));
        }
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
        let lines = FramedRead::new(body, Lines::default());
        Ok(lines
            .map(move |line| {
                let line = line.map_err(|error| ApiError::unreachable(VERB, PATH, &error))?;
                read(VERB, PATH, &line)
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
    ///
    /// # Errors
    /// When the list fails, or the object cannot be read.
    pub async fn pod(&self, pod: &PodRef) -> Result<Option<PodObject>, ApiError> {
        let mut found = None;
        let mut keep = |is_it: bool, item: &RawValue| {
            if is_it {
                found = Some(PodObject::read(item));
            }
        };
        self.each_named(pod, &mut keep).await?;
        let found = found.transpose();
        found.map_err(|why| ApiError::unreadable("GET", &pod_path(pod), why))
    }

    /// Calls `each` for each pod of this name, with whether it is, or might be, this one. Returns the list's version.
    async fn each_named(
        &self,
        pod: &PodRef,
        mut each: impl FnMut(bool, &RawValue) + Send,
    ) -> Result<Option<u64>, ApiError> {
        // One that cannot be read might be the one.
        let is_this = |item: &RawValue| {
            serde_json::from_str::<Deleted>(item.get()).map_or(true, |object| object.metadata.uid == pod.uid.as_str())
        };
        // Never closed: an error cannot come.
        let _list = self.lists.acquire().await.ok();
        let version = self.each_pod(Some(&pod.name), |item| each(is_this(item), item)).await?;
        Ok(version.parse().ok())
    }

    /// What `project` makes of the pods of this node, in a complete and consistent list. An object that cannot be read is
    /// left out; the watch reports it.
    pub async fn all_pods<T: Send>(
        &self,
        mut project: impl FnMut(PodView) -> Option<T> + Send,
    ) -> Result<Vec<T>, ApiError> {
        let _list = self.lists.acquire().await.ok();
        let mut pods = Vec::new();
        let each = |item: &RawValue| match PodObject::read(item) {
            Ok(object) => pods.extend(project(PodView::whole(object, false))),
            Err(error) => tracing::debug!(error, "Pod cannot be read and is left out"),
        };
        self.each_pod(None, each).await?;
        Ok(pods)
    }

    /// The UID of this ResourceClaim, and the UIDs for which it is reserved.
    pub async fn reserved_for(&self, namespace: &str, name: &str) -> Result<(String, Vec<String>), ApiError> {
        let (namespace, name) = (escape(namespace), escape(name));
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let ResourceClaim { metadata, status } = self.get_json(&path).await?;
        let reserved = status.unwrap_or_default().reserved_for.into_iter().map(|by| by.uid);
        Ok((metadata.uid, reserved.collect()))
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
        let answer = self.effects.run_checked(sent).await;
        checkpoint::after(verb, &path);
        answer.map_err(|held| ApiError::held(verb, path, held.reason))?
    }
}

/// Pods in the page after one of `limit`, which had so many pods and bytes.
fn next_page(limit: usize, pods: usize, bytes: usize) -> usize {
    let fitting = PAGE_BYTES * pods / bytes.max(1);
    fitting.clamp(1, (limit * PAGE_GROWTH).min(LARGEST_PAGE))
}

/// Lines of a watch. Unlike tokio's own decoder it copies none, and returns the memory of a long one.
#[derive(Default)]
struct Lines {
    /// How far the buffer was searched.
    searched: usize,
}

impl Decoder for Lines {
    type Item = BytesMut;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<BytesMut>> {
        let Some(end) = buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = buffer.len();
            if buffer.len() > LARGEST_OBJECT {
                return Err(io::Error::other(format!(
                    "more than {LARGEST_OBJECT} bytes for one event"
                )));
            }
            return Ok(None);
        };
        let line = buffer.split_to(self.searched + end + 1);
        self.searched = 0;
        if line.len() > LONG_LINE {
            *buffer = BytesMut::from(&buffer[..]);
        }
        Ok(Some(line))
    }
}

/// As much of an object as tells which one it is and whether it stays.
#[derive(Deserialize)]
struct Deleted {
    #[serde(default)]
    metadata: DeletedMeta,
}

/// As much of a ResourceClaim as is used: all of it may be large.
#[derive(Deserialize)]
struct ResourceClaim {
    #[serde(default)]
    metadata: Reserved,
    #[serde(default)]
    status: Option<ResourceClaimStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceClaimStatus {
    #[serde(default)]
    reserved_for: Vec<Reserved>,
}

#[derive(Default, Deserialize)]
struct Reserved {
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
    fn a_page_holds_about_the_same_bytes_whatever_the_size_of_pods() {
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

    #[test]
    fn a_line_is_found_however_it_arrives() {
        let (mut lines, mut buffer, mut found) = (Lines::default(), BytesMut::new(), Vec::new());
        let long = "x".repeat(LONG_LINE);
        for piece in ["{\"a\"", ":1}\n{", "}\n\n", &long, "\n{\"b\":", "2}\n"] {
            buffer.extend_from_slice(piece.as_bytes());
            while let Some(line) = lines.decode(&mut buffer).unwrap() {
                found.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        assert_eq!(
            found,
            ["{\"a\":1}\n", "{}\n", "\n", &format!("{long}\n"), "{\"b\":2}\n"]
        );
        buffer.extend_from_slice(&vec![b'x'; LARGEST_OBJECT + 1]);
        assert!(lines.decode(&mut buffer).is_err());
    }
}
