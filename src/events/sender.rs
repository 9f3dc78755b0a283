//! Sends events to the API server, one after another, with retries.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::{
    sync::{Mutex, mpsc},
    time::{Instant, sleep},
};

use crate::{
    api::{ApiError, EventWrite},
    counters::Counters,
    model::event::Reason,
};

/// Events that the sender takes from the queue at once, so that an event that fails does not block the others.
const MAX_TAKEN: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// The API server keeps events for this long (`--event-ttl`). Older ones are dropped.
const EVENT_TTL: Duration = Duration::from_secs(3600);

/// Sends a request to the API server.
pub type SendEvent = Arc<dyn Fn(EventWrite) -> BoxFuture<'static, Result<(), ApiError>> + Send + Sync>;

/// A queued event.
#[derive(Debug)]
pub(super) struct QueuedEvent {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// UID of the involved object.
    pub uid: String,
    /// Body of a create request, in JSON: thousands may be queued, and a `Value` is five times as large.
    pub create: Bytes,
    /// Body of a patch, if the event was created before.
    pub patch: Option<Bytes>,
    pub reason: Reason,
    pub message: String,
    pub recorded_at: Instant,
    pub was_tried: bool,
}

// === impl QueuedEvent ===

impl QueuedEvent {
    fn request(&self) -> EventWrite {
        let namespace = Arc::clone(&self.namespace);
        match &self.patch {
            None => EventWrite::Create {
                namespace,
                body: self.create.clone(),
            },
            Some(body) => EventWrite::Patch {
                namespace,
                name: Arc::clone(&self.name),
                body: body.clone(),
            },
        }
    }
}

/// Events that are not sent yet. They survive a panic of the sender.
pub(super) struct Unsent {
    queues: Mutex<(mpsc::Receiver<QueuedEvent>, VecDeque<QueuedEvent>)>,
    counters: Arc<Counters>,
}

// === impl Unsent ===

impl Unsent {
    pub fn new(waiting: mpsc::Receiver<QueuedEvent>, counters: Arc<Counters>) -> Self {
        Self {
            queues: Mutex::new((waiting, VecDeque::new())),
            counters,
        }
    }
}

impl Drop for Unsent {
    /// Counts and logs the events that are not sent.
    fn drop(&mut self) {
        let (waiting, taken) = self.queues.get_mut();
        let unsent = waiting.len() + taken.len();
        if unsent > 0 {
            tracing::warn!(
                events = unsent,
                "Events were not sent before the agent stopped; dropped"
            );
            for _ in 0..unsent {
                self.counters.event_dropped();
            }
        }
    }
}

/// A request in progress. If it is interrupted, its event is dropped.
struct Attempt<'a> {
    event: Option<QueuedEvent>,
    counters: &'a Counters,
}

// === impl Attempt ===

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(event) = &self.event {
            let (reason, event_message) = (event.reason.as_str(), &event.message);
            let (uid, namespace, name) = (&event.uid, &*event.namespace, &*event.name);
            self.counters.event_dropped();
            tracing::warn!(
                uid,
                namespace,
                name,
                reason,
                event_message,
                "Event is dropped: its request was interrupted"
            );
        }
    }
}

/// What follows from an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryDecision {
    /// An earlier attempt was accepted, but its response was lost.
    Done,
    /// Rejected permanently: the namespace is deleted or terminating, or the event is invalid.
    Drop,
    /// All events would fail now.
    Backoff,
    /// Other events may succeed.
    Requeue,
}

pub(super) async fn send_all(send_event: SendEvent, unsent: Arc<Unsent>, counters: Arc<Counters>) {
    let mut unsent = unsent.queues.lock().await;
    let (waiting, taken) = &mut *unsent;
    let mut pause = FIRST_PAUSE;
    loop {
        while taken.len() < MAX_TAKEN
            && let Ok(event) = waiting.try_recv()
        {
            taken.push_back(event);
        }
        let event = match taken.pop_front() {
            Some(event) => Some(event),
            None => waiting.recv().await,
        };
        let Some(event) = event else { return };
        let request = event.request();
        let mut attempt = Attempt {
            event: Some(event),
            counters: &counters,
        };
        let result = send_event(request).await;
        let Some(mut event) = attempt.event.take() else { return };
        let Err(error) = result else {
            pause = FIRST_PAUSE;
            continue;
        };
        if error.code() == Some(404) && event.patch.take().is_some() {
            // The API server has deleted the event: create it again.
            taken.push_front(event);
            continue;
        }
        // Not as `message`: that is the field of the log line's text.
        let (reason, event_message) = (event.reason.as_str(), &event.message);
        let (uid, namespace, name) = (&event.uid, &*event.namespace, &*event.name);
        let decision = decide_retry(&error, event.recorded_at.elapsed());
        match decision {
            RetryDecision::Done => continue,
            RetryDecision::Drop => {
                counters.event_dropped();
                tracing::warn!(%error, uid, namespace, name, reason, event_message, "Event is dropped");
                continue;
            }
            RetryDecision::Backoff | RetryDecision::Requeue if event.was_tried => {}
            RetryDecision::Backoff | RetryDecision::Requeue => {
                tracing::warn!(%error, uid, namespace, name, reason, event_message, "Event cannot be sent; will retry");
            }
        }
        event.was_tried = true;
        if decision == RetryDecision::Backoff {
            taken.push_front(event);
        } else {
            taken.push_back(event);
        }
        sleep(error.retry_after().unwrap_or(pause)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn decide_retry(error: &ApiError, age: Duration) -> RetryDecision {
    match error {
        ApiError::Refused { code: 409, .. } => RetryDecision::Done,
        _ if age > EVENT_TTL => RetryDecision::Drop,
        ApiError::Unreachable { .. }
        | ApiError::UnverifiedServer { .. }
        | ApiError::Timeout { .. }
        | ApiError::Blocked { .. }
        | ApiError::Refused { code: 401 | 429, .. } => RetryDecision::Backoff,
        // It may be a webhook for one namespace only.
        ApiError::Refused { code: 500.., .. } => RetryDecision::Requeue,
        ApiError::Refused { .. } | ApiError::Unreadable { .. } => RetryDecision::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Events, Involved};

    #[tokio::test(start_paused = true)]
    async fn panic_while_sending_an_event_loses_no_other_event() {
        let (sent, mut received) = mpsc::unbounded_channel();
        let send_event: SendEvent = Arc::new(move |event| {
            let sent = sent.clone();
            Box::pin(async move {
                let EventWrite::Create { body, .. } = event else {
                    unreachable!("no event was created before")
                };
                assert!(!body.windows(4).any(|part| part == b"evil"), "as it should");
                sent.send(()).ok();
                Ok(())
            })
        });
        let (events, sender) = Events::new(send_event, "node", Arc::default());
        for name in ["good", "evil", "also-good"] {
            events.record(&about(name), Reason::Killing, "message");
        }
        drop(events);
        sender.await;
        assert!(received.recv().await.is_some() && received.recv().await.is_some());
        assert!(received.recv().await.is_none());
    }

    #[tokio::test]
    async fn events_that_are_unsent_when_the_sender_stops_are_counted() {
        let counters = Arc::<Counters>::default();
        let hangs: SendEvent = Arc::new(|_| Box::pin(std::future::pending()));
        let (events, sender) = Events::new(hangs, "node", Arc::clone(&counters));
        for name in ["sent-first", "waits"] {
            events.record(&about(name), Reason::Killing, "message");
        }
        let sender = tokio::spawn(sender);
        tokio::task::yield_now().await;
        events.record(&about("late"), Reason::Killing, "message");
        sender.abort();
        assert!(sender.await.unwrap_err().is_cancelled());
        assert_eq!(counters.counts().events_dropped, 3);
    }

    fn about(name: &str) -> Involved {
        Involved {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
        }
    }

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
    fn event_is_dropped_when_it_is_rejected_permanently_or_too_old() {
        let unreachable = ApiError::Unreachable {
            verb: "POST",
            path: String::new(),
            cause: String::new(),
            is_certificate_invalid: false,
        };
        let young = Duration::from_secs(3000);
        assert_eq!(decide_retry(&unreachable, young), RetryDecision::Backoff);
        for (code, expected) in [
            (401, RetryDecision::Backoff),
            (403, RetryDecision::Drop),
            (404, RetryDecision::Drop),
            (409, RetryDecision::Done),
            (422, RetryDecision::Drop),
            (429, RetryDecision::Backoff),
            (500, RetryDecision::Requeue),
            (503, RetryDecision::Requeue),
        ] {
            assert_eq!(decide_retry(&refused(code), young), expected, "{code}");
        }
        assert_eq!(
            decide_retry(&unreachable, Duration::from_secs(3601)),
            RetryDecision::Drop
        );
    }
}
