//! What one claim has for itself: a namespace, a node, and short words for what it does with them.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, header};
use serde_json::{Value, json};
use tokio::time;

use crate::{
    api::ApiServer,
    rest::{Answer, Client, Event, EventType, Watch},
};

/// Nothing here takes longer than a few seconds, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One claim's part of the server.
pub struct Scene<'a> {
    /// The server, for what concerns all of it.
    pub api: &'a dyn ApiServer,
    /// The administrator.
    pub admin: Client,
    /// The identity of [`Self::node`].
    pub as_node: Client,
    /// A namespace of its own.
    pub ns: String,
    /// A node of its own. There is no object of it until a claim makes one.
    pub node: String,
    /// A node that is not its own, and that no other claim uses.
    pub other_node: String,
}

// === impl Scene ===

impl<'a> Scene<'a> {
    /// Sets the scene for the claim with this number and name.
    pub async fn new(api: &'a dyn ApiServer, index: usize) -> Result<Self> {
        let admin = api.admin()?;
        let ns = format!("claim-{index}");
        let (node, other_node) = (format!("node-{index}"), format!("elsewhere-{index}"));
        let namespace = json!({"metadata": {"name": ns}});
        admin
            .create("/api/v1/namespaces", &namespace)
            .await?
            .ok()
            .context("making the claim's namespace")?;
        let as_node = api.node(&node)?;
        Ok(Self {
            api,
            admin,
            as_node,
            ns,
            node,
            other_node,
        })
    }

    /// What is at a path, in a form that the administrator takes.
    pub async fn get_as(&self, path: &str, accept: &'static str) -> Result<Answer> {
        let call = self.admin.call(Method::GET, path).header(header::ACCEPT, accept);
        Ok(call.send().await?)
    }

    /// The path of the namespace's pods.
    pub fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.ns)
    }

    /// The path of one pod.
    pub fn pod(&self, name: &str) -> String {
        format!("{}/{name}", self.pods())
    }

    /// The path of the namespace's config maps.
    pub fn maps(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.ns)
    }

    /// The path of one config map.
    pub fn map(&self, name: &str) -> String {
        format!("{}/{name}", self.maps())
    }

    /// The path of the namespace's events.
    pub fn events(&self) -> String {
        format!("/api/v1/namespaces/{}/events", self.ns)
    }

    /// An event about a pod of the namespace, whose UID is made up from the event's name.
    pub fn event(&self, name: &str) -> Value {
        let about = json!({"kind": "Pod", "namespace": self.ns, "name": "p", "uid": format!("uid-of-{name}")});
        let metadata = json!({"name": name, "namespace": self.ns});
        json!({"metadata": metadata, "involvedObject": about, "reason": "Tested", "type": "Normal"})
    }

    /// Creates such an event.
    pub async fn new_event(&self, name: &str) -> Result<Value> {
        Ok(self.admin.create(&self.events(), &self.event(name)).await?.ok()?)
    }

    /// Creates a config map without data.
    pub async fn new_map(&self, name: &str) -> Result<Value> {
        self.new_map_with(name, json!({})).await
    }

    /// Creates a config map with this metadata beside its name.
    pub async fn new_map_with(&self, name: &str, metadata: Value) -> Result<Value> {
        Ok(self
            .admin
            .create(&self.maps(), &json!({"metadata": named(name, metadata)}))
            .await?
            .ok()?)
    }

    /// Creates a pod that runs on the scene's node.
    pub async fn new_pod(&self, name: &str) -> Result<Value> {
        self.new_pod_with(name, json!({}), json!({"nodeName": self.node})).await
    }

    /// Creates a pod with this metadata beside its name and this spec beside its container.
    pub async fn new_pod_with(&self, name: &str, metadata: Value, mut spec: Value) -> Result<Value> {
        spec["containers"] = json!([{"name": "main", "image": "example.test/main"}]);
        let pod = json!({"metadata": named(name, metadata), "spec": spec});
        Ok(self.admin.create(&self.pods(), &pod).await?.ok()?)
    }

    /// Watches a collection from the version of an object or list.
    pub async fn watch_after(&self, path: &str, seen: &Value) -> Result<Watch> {
        Ok(self.admin.watch(path, &[("resourceVersion", version(seen))]).await?)
    }
}

fn named(name: &str, mut metadata: Value) -> Value {
    metadata["name"] = name.into();
    metadata
}

/// The resourceVersion of an object or a list.
pub fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

/// The same as a number, to be compared. (Versions of one server are ordered.)
pub fn number(version: &str) -> Result<u64> {
    version.parse().with_context(|| format!("resourceVersion {version:?}"))
}

/// The UID of an object.
pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// The names of a list's items, in order.
pub fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

/// The next event, which has to come.
pub async fn next(watch: &mut Watch) -> Result<Event> {
    let event = time::timeout(PATIENCE, watch.next()).await.context("no event came")??;
    event.context("the watch ended before the event")
}

/// The next event as its type and name.
pub async fn next_of(watch: &mut Watch) -> Result<(EventType, String)> {
    let event = next(watch).await?;
    Ok((event.kind, event.name().to_owned()))
}

/// Asks until it is so, for what a server does in its own time.
pub async fn until(mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let asking = async {
        while !is_so().await? {
            time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    time::timeout(PATIENCE, asking).await.context("it did not come to be")?
}

/// The watch ends, and nothing comes before that.
pub async fn nothing_more(watch: &mut Watch) -> Result<()> {
    let event = time::timeout(PATIENCE, watch.next())
        .await
        .context("the watch did not end")??;
    assert!(event.is_none(), "expected the end of the watch, got {event:?}");
    Ok(())
}

/// The answer refuses, with this code and reason.
#[track_caller]
pub fn refuses(answer: &Answer, code: u16, reason: &str) {
    assert_eq!((answer.code(), answer.reason()), (code, reason), "{}", answer.body);
    if !reason.is_empty() {
        assert_eq!(answer.body["kind"], "Status", "{}", answer.body);
        assert_eq!(answer.body["status"], "Failure", "{}", answer.body);
        assert_eq!(answer.body["code"], code, "{}", answer.body);
    }
}

/// The answer's message has this in it.
#[track_caller]
pub fn says(answer: &Answer, part: &str) {
    assert!(
        answer.message().contains(part),
        "{part:?} is not in {:?}",
        answer.message()
    );
}
