//! Operations on pods for demo, tests and benchmarks.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time;

use super::{Client, Error, EventType, Result};

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

impl Client {
    /// Creates a pod in the namespace that it names (else in `default`) and returns it as stored.
    pub async fn create_pod(&self, pod: &Value) -> Result<Value> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
        self.create(&format!("/api/v1/namespaces/{namespace}/pods"), pod)
            .await?
            .ok()
    }

    /// Asks for a pod's deletion, with the pod's own grace period unless one is given.
    pub async fn delete_pod(&self, namespace: &str, name: &str, grace_seconds: Option<i64>) -> Result<Value> {
        let options = match grace_seconds {
            Some(seconds) => json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": seconds}),
            None => json!({"kind": "DeleteOptions", "apiVersion": "v1"}),
        };
        self.delete(&path(namespace, name), Some(&options)).await?.ok()
    }

    /// Waits until no pod with this UID exists; a pod of the same name with another UID does not count.
    pub async fn wait_gone(&self, namespace: &str, name: &str, uid: &str, timeout: Duration) -> Result<()> {
        let gone = async {
            // A watch may end at any time for reasons of its own; the read before the next one shows what was missed.
            while let Some(rv) = self.version_of(namespace, name, uid).await? {
                self.watch_until_deleted(namespace, name, uid, &rv).await?;
            }
            Ok(())
        };
        let late = || Error::TimedOut {
            what: format!("pod {namespace}/{name} to be gone"),
            seconds: timeout.as_secs(),
        };
        time::timeout(timeout, gone).await.map_err(|_| late())?
    }

    async fn version_of(&self, namespace: &str, name: &str, uid: &str) -> Result<Option<String>> {
        let answer = self.get(&path(namespace, name)).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let pod = answer.ok()?;
        let is_it = pod["metadata"]["uid"] == uid;
        Ok(is_it.then(|| {
            pod["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        }))
    }

    async fn watch_until_deleted(&self, namespace: &str, name: &str, uid: &str, rv: &str) -> Result<()> {
        let selector = format!("metadata.name={name}");
        let options = [("fieldSelector", selector.as_str()), ("resourceVersion", rv)];
        let mut watch = self
            .watch(&format!("/api/v1/namespaces/{namespace}/pods"), &options)
            .await?;
        while let Some(event) = watch.next().await? {
            let ours = event.object["metadata"]["uid"] == uid;
            if event.kind == EventType::Error || (event.kind == EventType::Deleted && ours) {
                break;
            }
        }
        Ok(())
    }
}
