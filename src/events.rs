//! Kubernetes Events. A full queue or a lost event blocks no teardown. An unreachable API server is retried.

mod correlator;
mod sender;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

pub use self::sender::SendEvent;
use self::{
    correlator::{EventCorrelator, EventCount, EventKey},
    sender::{QueuedEvent, send_all},
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
/// Maximum length of an object's name (DNS subdomain, RFC 1123).
const NAME_LIMIT: usize = 253;

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
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(view.pod.namespace.to_string()).filter(|it| !it.is_empty()),
            name: Some(view.pod.name.to_string()),
            uid: Some(view.pod.uid.to_string()),
            field_path,
            resource_version: None,
        };
        self.send(&involved, true, reason, message);
    }

    fn count(&self, what: Counted<'_>) {
        match what {
            Counted::Failed(failure) => self.counters.failed(failure),
            Counted::AttemptFailed(failures) => self.counters.attempt_failed(failures),
            Counted::HookFailed => self.counters.count(|counts| counts.hooks_failed += 1),
            Counted::WorkerPanicked => self.counters.count(|counts| counts.workers_panicked += 1),
            Counted::PodDeleted => self.counters.count(|counts| counts.deleted += 1),
        }
    }
}

impl Events {
    /// The recorder, and the task that sends its events. The task ends when all recorders are dropped and all events are sent.
    pub fn new(
        send_event: SendEvent,
        node_name: &str,
        counters: Arc<Counters>,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (waiting, weak) = (Arc::new(tokio::sync::Mutex::new(waiting)), queue.downgrade());
        let send = move || send_all(Arc::clone(&send_event), Arc::clone(&waiting), weak.clone());
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

    /// Records an event about any object. It is not correlated with others.
    pub fn record(&self, object: &ObjectReference, reason: Reason, message: &str) {
        self.send(object, false, reason, message);
    }

    fn send(&self, involved: &ObjectReference, is_correlated: bool, reason: Reason, message: &str) {
        let message = &*ForeignText::new(message);
        let (now, wall) = (Instant::now(), self.wall.now());
        let [namespace, object, uid] =
            [&involved.namespace, &involved.name, &involved.uid].map(|it| it.as_deref().unwrap_or_default());
        let mut event = EventCount {
            name: name(object, wall).into(),
            count: 1,
            first_timestamp: wall,
        };
        if is_correlated {
            let key = EventKey {
                uid: uid.into(),
                field_path: involved.field_path.clone(),
                reason,
            };
            let mut correlator = self.correlator.lock();
            match correlator.correlate(key, message, event, now) {
                Some(counted) => event = counted,
                None => return,
            }
        }
        // Events about cluster-scoped objects are in namespace `default`.
        let namespace: Arc<str> = if namespace.is_empty() { "default" } else { namespace }.into();
        let create = json!({
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": { "namespace": &*namespace, "name": &*event.name },
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": reason.kind(),
            "source": { "component": "pod-teardown", "host": &*self.node_name },
            "reportingComponent": "pod-teardown",
            "reportingInstance": &*self.node_name,
            "firstTimestamp": seconds(event.first_timestamp),
            "lastTimestamp": seconds(wall),
            "count": event.count,
        });
        let patch = json!({ "message": message, "lastTimestamp": seconds(wall), "count": event.count });
        let event = QueuedEvent {
            namespace,
            name: event.name,
            uid: uid.to_owned(),
            create: create.to_string().into(),
            patch: (event.count > 1).then(|| patch.to_string().into()),
            reason,
            message: message.to_owned(),
            recorded_at: now,
            was_tried: false,
            counters: Arc::clone(&self.counters),
            unsent: Some("the agent has stopped".to_owned()),
        };
        if let Err(dropped) = self.queue.try_send(event) {
            dropped.into_inner().unsent = Some("the queue is full".to_owned());
        }
    }
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Name of an event: the object's name, truncated if it is too long, and the time in hex. No label of a name may end with a dash.
fn name(object: &str, now: Timestamp) -> String {
    let moment = format!("{:x}", now.as_nanosecond());
    let kept = &object[..object.floor_char_boundary(NAME_LIMIT - 1 - moment.len())];
    format!("{}.{moment}", kept.trim_end_matches(['-', '.']))
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
            sent.try_send(serde_json::from_slice::<Value>(&event.body).unwrap())
                .unwrap();
            async { Ok(()) }.boxed()
        });
        let (recorder, sender) = Events::new(send_event, "n1", Arc::default());
        tokio::spawn(sender);
        let node = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some("n1".to_owned()),
            uid: Some("uid-of-n1".to_owned()),
            ..ObjectReference::default()
        };
        recorder.record(&node, Reason::TeardownBlocked, "message");
        let event = events.recv().await.unwrap();
        assert_eq!(
            (&event["involvedObject"]["kind"], &event["involvedObject"]["uid"]),
            (&"Node".into(), &"uid-of-n1".into())
        );
        assert_eq!(event["metadata"]["namespace"], "default");
    }

    #[test]
    fn long_pod_name_is_truncated_to_a_valid_name() {
        let now = Timestamp::now();
        let moment = format!(".{:x}", now.as_nanosecond());
        assert_eq!(name("web-0", now), format!("web-0{moment}"));
        let long = name(&"a".repeat(253), now);
        assert_eq!(long.len(), NAME_LIMIT);
        assert!(long.ends_with(&moment));
        let cut_at_dashes = name(&format!("{}{}", "a".repeat(230), "-.".repeat(10)), now);
        assert_eq!(cut_at_dashes, format!("{}{moment}", "a".repeat(230)));
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
        let variant = |line: &'static str| line.strip_prefix("    ")?.strip_suffix(',');
        let (_, variants) = CODE.split_once("pub enum Reason {").unwrap();
        let (variants, _) = variants.split_once("\n}").unwrap();
        let sent: BTreeSet<_> = variants.lines().filter_map(variant).collect();
        assert!(sent.len() > 10 && documented == sent, "{documented:?} and {sent:?}");
    }
}
