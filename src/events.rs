//! Events in the kubelet's words. They are for people: a full queue or a lost one holds up no teardown. An API that does
//! not answer is waited for.

pub mod told;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::{
    api::ApiError,
    counters::Counters,
    pod::{PodView, Role},
};

/// More than a full node's pods with a few containers each can say at once.
const QUEUE: usize = 1024;
/// Events that the sender has taken from the queue: one that gets errors of its own does not hold up the others.
const IN_HAND: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The API server keeps events for so long; an older one tells nobody anything.
const WORTH_TELLING: Duration = Duration::from_secs(3600);
/// Of any object's name.
const NAME_LIMIT: usize = 253;

/// Why something happened, in the kubelet's spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A container is being stopped.
    Killing,
    /// A preStop hook failed.
    FailedPreStopHook,
    /// Containers or sandboxes could not be stopped.
    FailedKillPod,
    /// Volumes could not be unmounted or removed.
    FailedUnMount,
    /// An owner reference names an object of another namespace.
    OwnerRefInvalidNamespace,
}

/// Brings an event, in JSON, into a namespace.
pub type Create = Arc<dyn Fn(Arc<str>, Bytes) -> BoxFuture<'static, Result<(), ApiError>> + Send + Sync>;

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
    queue: mpsc::Sender<Event>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Event {
    namespace: Arc<str>,
    /// In JSON: thousands may wait for a server, and a tree of values takes five times as much.
    body: Bytes,
    reason: Reason,
    message: String,
    made: Instant,
    tried: bool,
}

/// What an error means for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// An earlier try has got through, though its answer has not.
    Done,
    /// Refused for good: the namespace is gone or ends, or the event is not liked.
    Drop,
    /// No event would fare better now.
    WaitWithAll,
    /// Another one may.
    LetOthersFirst,
}

// === impl Reason ===

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Killing => "Killing",
            Self::FailedPreStopHook => "FailedPreStopHook",
            Self::FailedKillPod => "FailedKillPod",
            Self::FailedUnMount => "FailedUnMount",
            Self::OwnerRefInvalidNamespace => "OwnerRefInvalidNamespace",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Killing => "Normal",
            Self::FailedPreStopHook | Self::FailedKillPod | Self::FailedUnMount | Self::OwnerRefInvalidNamespace => {
                "Warning"
            }
        }
    }
}

// === impl Events ===

impl Events {
    /// Starts the sender.
    pub fn start(create: Create, node_name: &str, counters: Arc<Counters>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(send_all(create, waiting, Arc::clone(&counters)));
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
        self.send(&namespace.into(), &about.name, &involved, reason, message);
    }

    fn put(&self, view: &PodView, field_path: Option<String>, reason: Reason, message: &str) {
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
        self.send(&view.pod.namespace, &view.pod.name, &involved, reason, message);
    }

    fn send(&self, namespace: &Arc<str>, about: &str, involved: &Value, reason: Reason, message: &str) {
        let body = body(
            &self.node_name,
            namespace,
            about,
            involved,
            reason,
            message,
            Timestamp::now(),
        );
        let event = Event {
            namespace: Arc::clone(namespace),
            body: body.to_string().into(),
            reason,
            message: message.to_owned(),
            made: Instant::now(),
            tried: false,
        };
        if self.queue.try_send(event).is_err() {
            self.counters.event_dropped();
            tracing::warn!(
                uid = involved["uid"].as_str(),
                namespace = &**namespace,
                name = about,
                reason = reason.as_str(),
                message,
                "Event is dropped: the queue is full"
            );
        }
    }
}

fn body(
    host: &str,
    namespace: &str,
    about: &str,
    involved: &Value,
    reason: Reason,
    message: &str,
    now: Timestamp,
) -> Value {
    let seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {
            "namespace": namespace,
            "name": name(about, now),
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

/// The pod's name, shortened if need be, and the moment. No part of a name may end with a dash or be empty.
fn name(pod: &str, now: Timestamp) -> String {
    let moment = format!("{:x}", now.as_nanosecond());
    let kept = &pod[..pod.floor_char_boundary(NAME_LIMIT - 1 - moment.len())];
    format!("{}.{moment}", kept.trim_end_matches(['-', '.']))
}

async fn send_all(create: Create, mut waiting: mpsc::Receiver<Event>, counters: Arc<Counters>) {
    let mut in_hand = VecDeque::new();
    let mut pause = FIRST_PAUSE;
    loop {
        while in_hand.len() < IN_HAND
            && let Ok(event) = waiting.try_recv()
        {
            in_hand.push_back(event);
        }
        let event = match in_hand.pop_front() {
            Some(event) => Some(event),
            None => waiting.recv().await,
        };
        let Some(mut event) = event else { return };
        let Err(error) = create(Arc::clone(&event.namespace), event.body.clone()).await else {
            pause = FIRST_PAUSE;
            continue;
        };
        let (reason, message) = (event.reason.as_str(), &event.message);
        let next = next(&error, event.made.elapsed());
        match next {
            Next::Done => continue,
            Next::Drop => {
                counters.event_dropped();
                tracing::warn!(%error, reason, message, "Event is dropped");
                continue;
            }
            Next::WaitWithAll | Next::LetOthersFirst if event.tried => {}
            Next::WaitWithAll | Next::LetOthersFirst => tracing::warn!(%error, reason, message, "Event has to wait"),
        }
        event.tried = true;
        if next == Next::WaitWithAll {
            in_hand.push_front(event);
        } else {
            in_hand.push_back(event);
        }
        sleep(error.retry_after().unwrap_or(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn next(error: &ApiError, age: Duration) -> Next {
    match error {
        ApiError::Refused { code: 409, .. } => Next::Done,
        _ if age > WORTH_TELLING => Next::Drop,
        ApiError::Unreachable { .. }
        | ApiError::Unproven { .. }
        | ApiError::Timeout { .. }
        | ApiError::Held { .. }
        | ApiError::Refused { code: 401 | 429, .. } => Next::WaitWithAll,
        // Perhaps a webhook that answers for one namespace only.
        ApiError::Refused { code: 500.., .. } => Next::LetOthersFirst,
        ApiError::Refused { .. } | ApiError::Unreadable { .. } => Next::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> ApiError {
        ApiError::Refused {
            verb: "POST",
            path: String::new(),
            code,
            reason: String::new(),
            message: String::new(),
            retry_after: None,
            about: None,
        }
    }

    #[test]
    fn an_event_is_given_up_when_it_is_refused_for_good_or_too_old() {
        let unreachable = ApiError::Unreachable {
            verb: "POST",
            path: String::new(),
            cause: String::new(),
        };
        let young = Duration::from_secs(3000);
        assert_eq!(next(&unreachable, young), Next::WaitWithAll);
        for (code, expected) in [
            (401, Next::WaitWithAll),
            (403, Next::Drop),
            (404, Next::Drop),
            (409, Next::Done),
            (422, Next::Drop),
            (429, Next::WaitWithAll),
            (500, Next::LetOthersFirst),
            (503, Next::LetOthersFirst),
        ] {
            assert_eq!(next(&refused(code), young), expected, "{code}");
        }
        assert_eq!(next(&unreachable, Duration::from_secs(3601)), Next::Drop);
    }

    #[test]
    fn a_long_pod_name_is_shortened_to_what_a_name_may_be() {
        let now = Timestamp::now();
        let moment = format!(".{:x}", now.as_nanosecond());
        assert_eq!(name("web-0", now), format!("web-0{moment}"));
        let long = name(&"a".repeat(253), now);
        assert_eq!(long.len(), NAME_LIMIT);
        assert!(long.ends_with(&moment));
        let cut_at_dashes = name(&format!("{}{}", "a".repeat(230), "-.".repeat(10)), now);
        assert_eq!(cut_at_dashes, format!("{}{moment}", "a".repeat(230)));
    }
}
