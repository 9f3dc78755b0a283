//! Events in the kubelet's words. They are for people: a full queue or a lost one holds up no teardown. An API that does
//! not answer is waited for.

mod body;
mod sender;
mod told;

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

pub use self::sender::Bring;
use self::{
    body::Event,
    sender::{OnTheWay, Waiting, send_all},
    told::{About, Next, Told},
};
use crate::{
    clock::WallClock,
    counters::Counters,
    model::{
        event::Reason,
        foreign::ForeignText,
        pod::{PodView, Role},
    },
    tasks::restarted,
    teardown::boundary::{Counted, EventSink},
};

/// More than a full node's pods with a few containers each can say at once.
const QUEUE: usize = 1024;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Involved {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace, empty if it is in none.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// Where events go.
#[derive(Debug, Clone)]
pub struct Events {
    node_name: Arc<str>,
    queue: mpsc::Sender<Waiting>,
    told: Arc<Mutex<Told>>,
    counters: Arc<Counters>,
    wall: WallClock,
}

// === impl Events ===

impl EventSink for Events {
    /// About a container of a pod; one that is not in the spec is spoken of as the pod.
    fn event(&self, view: &PodView, container: Option<(Role, &str)>, reason: Reason, message: &str) {
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
    /// And who brings them, which ends once the last of them is brought and no more can come.
    pub fn new(
        bring: Bring,
        node_name: &str,
        counters: Arc<Counters>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (on_the_way, counted) = (Arc::new(OnTheWay::new(waiting)), Arc::clone(&counters));
        let send = move || send_all(Arc::clone(&bring), Arc::clone(&on_the_way), Arc::clone(&counted));
        let sender = restarted("events", send);
        let events = Self {
            node_name: node_name.into(),
            queue,
            told: Arc::default(),
            counters,
            wall: WallClock::default(),
        };
        (events, sender)
    }

    /// The same, by this clock.
    #[must_use]
    pub fn by(self, wall: WallClock) -> Self {
        Self { wall, ..self }
    }

    /// About any object. What is in no namespace is spoken of in `default`.
    pub fn object(&self, about: &Involved, reason: Reason, message: &str) {
        let mut involved = json!({
            "kind": about.kind,
            "apiVersion": about.api_version,
            "name": about.name,
            "uid": about.uid,
        });
        let namespace = if about.namespace.is_empty() {
            "default"
        } else {
            &about.namespace
        };
        if !about.namespace.is_empty() {
            involved["namespace"] = namespace.into();
        }
        self.send(&namespace.into(), &about.name, &involved, None, reason, message);
    }

    fn put(&self, view: &PodView, field_path: Option<String>, reason: Reason, message: &str) {
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
        let about = About {
            uid: view.pod.uid.as_str().into(),
            field_path,
            reason,
        };
        self.send(
            &view.pod.namespace,
            &view.pod.name,
            &involved,
            Some(about),
            reason,
            message,
        );
    }

    fn send(
        &self,
        namespace: &Arc<str>,
        name_of: &str,
        involved: &Value,
        about: Option<About>,
        reason: Reason,
        message: &str,
    ) {
        let message = &*ForeignText::new(message);
        let (now, wall) = (Instant::now(), self.wall.now());
        let new: Arc<str> = body::name(name_of, wall).into();
        let next = about.map_or(Next::New, |about| {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.next(about, message, &new, wall, now)
        });
        let (name, count, first, again) = match next {
            Next::New => (new, 1, wall, false),
            Next::Again { name, count, first } => (name, count, first, true),
            Next::Nothing => return,
        };
        let event = Event {
            host: &self.node_name,
            namespace,
            name: &name,
            involved,
            reason,
            message,
            count,
            first,
            last: wall,
        };
        let waiting = Waiting {
            namespace: Arc::clone(namespace),
            uid: involved["uid"].as_str().unwrap_or_default().to_owned(),
            whole: event.whole().to_string().into(),
            again: again.then(|| event.again().to_string().into()),
            name,
            reason,
            message: message.to_owned(),
            made: now,
            tried: false,
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
    async fn event_about_a_node_carries_the_uid_of_the_node_and_lies_in_default() {
        let (brought, mut events) = mpsc::channel(1);
        let bring: Bring = Arc::new(move |event: EventWrite| {
            let (EventWrite::Create { body, .. } | EventWrite::Patch { body, .. }) = event;
            brought
                .try_send(serde_json::from_slice::<Value>(&body).unwrap())
                .unwrap();
            async { Ok(()) }.boxed()
        });
        let (about, sender) = Events::new(bring, "n1", Arc::default());
        tokio::spawn(sender);
        let node = Involved {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            namespace: String::new(),
            name: "n1".to_owned(),
            uid: "uid-of-n1".to_owned(),
        };
        about.object(&node, Reason::TeardownBlocked, "message");
        let event = events.recv().await.unwrap();
        assert_eq!(
            (&event["involvedObject"]["kind"], &event["involvedObject"]["uid"]),
            (&"Node".into(), &"uid-of-n1".into())
        );
        assert_eq!(event["metadata"]["namespace"], "default");
    }

    const DOCS: &str = include_str!("../docs/events.md");
    const CODE: &str = include_str!("model/event.rs");

    /// Nothing enumerates the reasons but the code itself.
    #[test]
    fn the_documented_events_are_those_that_are_told() {
        let rows = DOCS
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let documented: BTreeSet<_> = rows.map(|(reason, _)| reason).collect();
        let arm = |line: &'static str| {
            let (variant, rest) = line.trim().strip_prefix("Self::")?.split_once(" => \"")?;
            rest.strip_suffix("\",").filter(|reason| *reason == variant)
        };
        let told: BTreeSet<_> = CODE.lines().filter_map(arm).collect();
        assert!(told.len() > 10 && documented == told, "{documented:?} and {told:?}");
    }
}
