//! Sends events to the API server, one after another, with retries.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::{
    sync::{
        Mutex,
        mpsc::{self, error::TrySendError},
    },
    time::{Instant, sleep},
};

use crate::{
    api::{ApiError, ErrorKind, EventWrite},
    counters::Counters,
    model::event::Reason,
};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// The API server keeps events for this long (`--event-ttl`). Older ones are dropped.
const EVENT_TTL: Duration = Duration::from_secs(3600);

/// Sends a request to the API server.
pub type SendEvent = Arc<dyn Fn(EventWrite) -> BoxFuture<'static, Result<(), ApiError>> + Send + Sync>;

/// A queued event. Each that is dropped unsent is counted and logged.
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
    pub counters: Arc<Counters>,
    /// Why it is unsent; `None` when it is sent.
    pub unsent: Option<String>,
}

// === impl QueuedEvent ===

impl QueuedEvent {
    fn log(&self, what: &'static str, why: &str) {
        tracing::warn!(
            error = why,
            uid = self.uid,
            namespace = &*self.namespace,
            name = &*self.name,
            reason = %self.reason,
            // Not as `message`: that is the field of the log line's text.
            event_message = self.message,
            "{what}"
        );
    }

    fn request(&self) -> EventWrite {
        EventWrite {
            namespace: Arc::clone(&self.namespace),
            repeated: self.patch.is_some().then(|| Arc::clone(&self.name)),
            body: self.patch.as_ref().unwrap_or(&self.create).clone(),
        }
    }
}

impl Drop for QueuedEvent {
    fn drop(&mut self) {
        if let Some(why) = &self.unsent {
            self.counters.count(|counts| counts.events_dropped += 1);
            self.log("Event is dropped", why);
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

/// Sends the events of `waiting`. `queue` is its other end; weak, because the sender ends with the recorders.
pub(super) async fn send_all(
    send_event: SendEvent,
    waiting: Arc<Mutex<mpsc::Receiver<QueuedEvent>>>,
    queue: mpsc::WeakSender<QueuedEvent>,
) {
    let mut waiting = waiting.lock().await;
    let (mut retried, mut pause) = (None, FIRST_PAUSE);
    loop {
        let event = match retried.take() {
            Some(event) => Some(event),
            None => waiting.recv().await,
        };
        let Some(mut event) = event else { return };
        let Err(error) = send_event(event.request()).await else {
            event.unsent = None;
            pause = FIRST_PAUSE;
            continue;
        };
        if error.code() == Some(404) && event.patch.take().is_some() {
            // The API server has deleted the event: create it again.
            retried = Some(event);
            continue;
        }
        let decision = decide_retry(&error, event.recorded_at.elapsed());
        let why = error.to_string();
        let is_retried = matches!(decision, RetryDecision::Backoff | RetryDecision::Requeue);
        if is_retried && !std::mem::replace(&mut event.was_tried, true) {
            event.log("Event cannot be sent; will retry", &why);
        }
        event.unsent = (decision != RetryDecision::Done).then_some(why);
        retried = match (decision, queue.upgrade()) {
            (RetryDecision::Done | RetryDecision::Drop, _) => continue,
            // Behind the others, unless the queue is full.
            (RetryDecision::Requeue, Some(queue)) => queue.try_send(event).err().map(TrySendError::into_inner),
            (RetryDecision::Requeue | RetryDecision::Backoff, _) => Some(event),
        };
        sleep(error.retry_after().unwrap_or(pause)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn decide_retry(error: &ApiError, age: Duration) -> RetryDecision {
    match error.kind {
        ErrorKind::Refused { code: 409, .. } => RetryDecision::Done,
        _ if age > EVENT_TTL => RetryDecision::Drop,
        ErrorKind::Unreachable { .. }
        | ErrorKind::UnverifiedServer(_)
        | ErrorKind::Timeout(_)
        | ErrorKind::Blocked(_)
        | ErrorKind::Refused { code: 401 | 429, .. } => RetryDecision::Backoff,
        // It may be a webhook for one namespace only.
        ErrorKind::Refused { code: 500.., .. } => RetryDecision::Requeue,
        ErrorKind::Refused { .. } | ErrorKind::Unreadable(_) => RetryDecision::Drop,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;
    use crate::events::Events;

    #[tokio::test(start_paused = true)]
    async fn panic_while_sending_an_event_loses_no_other_event_and_counts_it() {
        let counters = Arc::<Counters>::default();
        let (sent, mut received) = mpsc::unbounded_channel();
        let send_event: SendEvent = Arc::new(move |event| {
            let sent = sent.clone();
            Box::pin(async move {
                assert!(!event.body.windows(4).any(|part| part == b"evil"), "as it should");
                sent.send(()).ok();
                Ok(())
            })
        });
        let (events, sender) = Events::new(send_event, "node", Arc::clone(&counters));
        for name in ["good", "evil", "also-good"] {
            events.record(&about(name), Reason::Killing, "message");
        }
        drop(events);
        sender.await;
        assert!(received.recv().await.is_some() && received.recv().await.is_some());
        assert!(received.recv().await.is_none());
        assert_eq!(counters.counts().events_dropped, 1);
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
        // Whether the server has the first one is not known.
        assert_eq!(counters.counts().events_dropped, 3);
    }

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some("default".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            ..ObjectReference::default()
        }
    }

    fn refused(code: u16) -> ApiError {
        ApiError::refused("POST", "", code, None, b"")
    }

    #[test]
    fn event_is_dropped_when_it_is_rejected_permanently_or_too_old() {
        let unreachable = ApiError::new(
            "POST",
            "",
            ErrorKind::Unreachable {
                cause: String::new(),
                is_certificate_invalid: false,
            },
        );
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
