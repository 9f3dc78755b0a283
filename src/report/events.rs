//! Events in the kubelet's words. They are for people: a full queue or a lost one holds up no teardown.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::sleep};

use crate::{
    api::ApiClient,
    counters::Counters,
    pod::{PodView, Role},
};

/// More than a full node's pods with a few containers each can say at once.
const QUEUE: usize = 1024;
/// An event that the API does not take within these tries is counted and dropped.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Why something happened, in the kubelet's spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A container is being stopped.
    Killing,
    /// A preStop hook failed.
    FailedPreStopHook,
    /// Containers or sandboxes could not be stopped.
    FailedKillPod,
}

/// Where events go.
#[derive(Debug, Clone)]
pub struct Events {
    node_name: Arc<str>,
    queue: mpsc::Sender<Event>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Event {
    namespace: String,
    body: Value,
}

// === impl Reason ===

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Killing => "Killing",
            Self::FailedPreStopHook => "FailedPreStopHook",
            Self::FailedKillPod => "FailedKillPod",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Killing => "Normal",
            Self::FailedPreStopHook | Self::FailedKillPod => "Warning",
        }
    }
}

// === impl Events ===

impl Events {
    /// Starts the sender.
    pub fn start(api: ApiClient, node_name: &str, counters: Arc<Counters>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(send_all(api, waiting, Arc::clone(&counters)));
        Self {
            node_name: node_name.into(),
            queue,
            counters,
        }
    }

    /// About a container of a pod; one that is not in the spec is spoken of as the pod.
    pub fn container(&self, view: &PodView, container: Option<(Role, &str)>, reason: Reason, message: &str) {
        let field_path = container.map(|(role, name)| {
            let list = match role {
                Role::Init | Role::Sidecar => "initContainers",
                Role::Regular => "containers",
                Role::Ephemeral => "ephemeralContainers",
            };
            format!("spec.{list}{{{name}}}")
        });
        self.put(view, field_path, reason, message);
    }

    /// About a pod.
    pub fn pod(&self, view: &PodView, reason: Reason, message: &str) {
        self.put(view, None, reason, message);
    }

    fn put(&self, view: &PodView, field_path: Option<String>, reason: Reason, message: &str) {
        let event = Event {
            namespace: view.pod.namespace.to_string(),
            body: body(&self.node_name, view, field_path, reason, message, Timestamp::now()),
        };
        if self.queue.try_send(event).is_err() {
            self.counters.event_dropped();
            tracing::warn!(pod.uid = %view.pod.uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, reason = reason.as_str(), message, "Event is dropped: the queue is full");
        }
    }
}

fn body(
    node_name: &str,
    view: &PodView,
    field_path: Option<String>,
    reason: Reason,
    message: &str,
    now: Timestamp,
) -> Value {
    let host = node_name;
    let seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut involved = json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": &*view.pod.namespace,
        "name": &*view.pod.name,
        "uid": view.pod.uid.as_str(),
    });
    if let Some(field_path) = field_path {
        involved["fieldPath"] = field_path.into();
    }
    json!({
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {
            "namespace": &*view.pod.namespace,
            "name": format!("{}.{:x}", view.pod.name, now.as_nanosecond()),
        },
        "involvedObject": involved,
        "reason": reason.as_str(),
        "message": message,
        "type": reason.kind(),
        "source": { "component": "pod-teardown", "host": host },
        "reportingComponent": "pod-teardown",
        "reportingInstance": host,
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "count": 1,
    })
}

async fn send_all(api: ApiClient, mut waiting: mpsc::Receiver<Event>, counters: Arc<Counters>) {
    while let Some(Event { namespace, body }) = waiting.recv().await {
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=TRIES {
            let Err(error) = api.create_event(&namespace, &body).await else {
                break;
            };
            // Refused for good: the namespace is gone or ends, or the event is not liked.
            let refused = error
                .code()
                .is_some_and(|code| (400..500).contains(&code) && code != 429 && code != 401);
            if refused || attempt == TRIES {
                counters.event_dropped();
                tracing::warn!(%error, reason = %body["reason"], message = %body["message"], "Event is dropped");
                break;
            }
            sleep(error.retry_after().unwrap_or(pause)).await;
            pause *= 2;
        }
    }
}
