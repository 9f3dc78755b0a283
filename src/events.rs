//! Kubernetes Events. A full queue or a lost event blocks no teardown. An unreachable API server is retried.

mod body;
mod correlator;
mod sender;

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

pub use self::sender::SendEvent;
use self::{
    body::Event,
    correlator::{EventAction, EventCorrelator, EventKey},
    sender::{QueuedEvent, Unsent, send_all},
};
use crate::{
    clock::WallClock,
    counters::Counters,
    model::{
        event::Reason,
        foreign::ForeignText,
        pod::{PodView, Role},
    },
    tasks::run_with_restarts,
    teardown::boundary::{Counted, EventSink},
};

/// Capacity of the queue: a full node of pods with a few containers each.
const QUEUE: usize = 1024;

/// The `involvedObject` of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Involved {
    /// Group and version, such as `apps/v1`.
    pub api_version: String,
    /// Kind, such as `Pod`.
    pub kind: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// Records events and sends them in the background. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    node_name: Arc<str>,
    queue: mpsc::Sender<QueuedEvent>,
    correlator: Arc<Mutex<EventCorrelator>>,
    counters: Arc<Counters>,
    wall: WallClock,
}

// === impl Events ===

impl EventSink for Events {
    /// `container` becomes the `fieldPath` of the event.
    fn event(&self, view: &PodView, container: Option<(Role, &str)>, reason: Reason, message: &str) {
        let field_path = container.map(|(role, name)| {
            let list = match role {
                Role::Init | Role::Sidecar => "initContainers",
                Role::Regular => "containers",
                Role::Ephemeral => "ephemeralContainers",
            };
            format!("spec.{list}{{{name}}}")
        });
        self.record_pod_event(view, field_path, reason, message);
    }

    fn count(&self, what: Counted<'_>) {
        match what {
            Counted::Failed(failure) => self.counters.failed(failure),
            Counted::AttemptFailed(failures) => self.counters.attempt_failed(failures),
            Counted::HookFailed => self.counters.hook_failed(),
            Counted::PodDeleted => self.counters.pod_deleted(),
        }
    }
}

impl Events {
    /// The recorder, and the task that sends its events. The task ends when all recorders are dropped and all events are sent.
    pub fn new(
        send_event: SendEvent,
        node_name: &str,
        counters: Arc<Counters>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let unsent = Arc::new(Unsent::new(waiting, Arc::clone(&counters)));
        let counted = Arc::clone(&counters);
        let send = move || send_all(Arc::clone(&send_event), Arc::clone(&unsent), Arc::clone(&counted));
        let sender = run_with_restarts("events", send);
        let events = Self {
            node_name: node_name.into(),
            queue,
            correlator: Arc::default(),
            counters,
            wall: WallClock::default(),
        };
        (events, sender)
    }

    /// Uses this clock for timestamps.
    #[must_use]
    pub fn with_clock(self, wall: WallClock) -> Self {
        Self { wall, ..self }
    }

    /// Records an event about any object. Events about cluster-scoped objects are in namespace `default`.
    pub fn record(&self, object: &Involved, reason: Reason, message: &str) {
        let mut involved = json!({
            "kind": object.kind,
            "apiVersion": object.api_version,
            "name": object.name,
            "uid": object.uid,
        });
        let namespace = if object.namespace.is_empty() {
            "default"
        } else {
            &object.namespace
        };
        if !object.namespace.is_empty() {
            involved["namespace"] = namespace.into();
        }
        self.send(&namespace.into(), &object.name, &involved, None, reason, message);
    }

    fn record_pod_event(&self, view: &PodView, field_path: Option<String>, reason: Reason, message: &str) {
        let mut involved = json!({
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": &*view.pod.namespace,
            "name": &*view.pod.name,
            "uid": view.pod.uid.as_str(),
        });
        if let Some(field_path) = &field_path {
            involved["fieldPath"] = field_path.as_str().into();
        }
        let key = EventKey {
            uid: view.pod.uid.as_str().into(),
            field_path,
            reason,
        };
        self.send(
            &view.pod.namespace,
            &view.pod.name,
            &involved,
            Some(key),
            reason,
            message,
        );
    }

    fn send(
        &self,
        namespace: &Arc<str>,
        name_of: &str,
        involved: &Value,
        key: Option<EventKey>,
        reason: Reason,
        message: &str,
    ) {
        let message = &*ForeignText::new(message);
        let (now, wall) = (Instant::now(), self.wall.now());
        let new: Arc<str> = body::name(name_of, wall).into();
        let action = key.map_or(EventAction::Create, |key| {
            let mut correlator = self.correlator.lock().unwrap_or_else(PoisonError::into_inner);
            correlator.correlate(key, message, &new, wall, now)
        });
        let (name, count, first_timestamp, patch) = match action {
            EventAction::Create => (new, 1, wall, false),
            EventAction::Patch {
                name,
                count,
                first_timestamp,
            } => (name, count, first_timestamp, true),
            EventAction::Skip => return,
        };
        let event = Event {
            host: &self.node_name,
            namespace,
            name: &name,
            involved,
            reason,
            message,
            count,
            first_timestamp,
            last_timestamp: wall,
        };
        let waiting = QueuedEvent {
            namespace: Arc::clone(namespace),
            uid: involved["uid"].as_str().unwrap_or_default().to_owned(),
            create: event.create().to_string().into(),
            patch: patch.then(|| event.patch().to_string().into()),
            name,
            reason,
            message: message.to_owned(),
            recorded_at: now,
            was_tried: false,
        };
        if self.queue.try_send(waiting).is_err() {
            self.counters.event_dropped();
            tracing::warn!(
                uid = involved["uid"].as_str(),
                namespace = &**namespace,
                name = name_of,
                reason = reason.as_str(),
                event_message = message,
                "Event is dropped: the queue is full"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use futures::FutureExt as _;
    use serde_json::Value;
    use tokio::sync::mpsc;

    use super::*;
    use crate::api::EventWrite;

    #[tokio::test]
    async fn event_about_a_node_has_its_uid_and_is_in_namespace_default() {
        let (sent, mut events) = mpsc::channel(1);
        let send_event: SendEvent = Arc::new(move |event: EventWrite| {
            let (EventWrite::Create { body, .. } | EventWrite::Patch { body, .. }) = event;
            sent.try_send(serde_json::from_slice::<Value>(&body).unwrap()).unwrap();
            async { Ok(()) }.boxed()
        });
        let (recorder, sender) = Events::new(send_event, "n1", Arc::default());
        tokio::spawn(sender);
        let node = Involved {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            namespace: String::new(),
            name: "n1".to_owned(),
            uid: "uid-of-n1".to_owned(),
        };
        recorder.record(&node, Reason::TeardownBlocked, "message");
        let event = events.recv().await.unwrap();
        assert_eq!(
            (&event["involvedObject"]["kind"], &event["involvedObject"]["uid"]),
            (&"Node".into(), &"uid-of-n1".into())
        );
        assert_eq!(event["metadata"]["namespace"], "default");
    }

    const DOCS: &str = include_str!("../docs/reference/events.md");
    const CODE: &str = include_str!("model/event.rs");

    /// The reasons are read from the source of the enum.
    #[test]
    fn docs_list_all_event_reasons() {
        let rows = DOCS
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let documented: BTreeSet<_> = rows.map(|(reason, _)| reason).collect();
        let arm = |line: &'static str| {
            let (variant, rest) = line.trim().strip_prefix("Self::")?.split_once(" => \"")?;
            rest.strip_suffix("\",").filter(|reason| *reason == variant)
        };
        let sent: BTreeSet<_> = CODE.lines().filter_map(arm).collect();
        assert!(sent.len() > 10 && documented == sent, "{documented:?} and {sent:?}");
    }
}
