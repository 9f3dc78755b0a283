//! Brings events to the API server, one after another, and waits for one that does not answer.

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

/// Events that the sender has taken from the queue: one that gets errors of its own does not hold up the others.
const IN_HAND: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The API server keeps events for so long; an older one tells nobody anything.
const WORTH_TELLING: Duration = Duration::from_secs(3600);

/// Brings a request to the API server.
pub type Bring = Arc<dyn Fn(EventWrite) -> BoxFuture<'static, Result<(), ApiError>> + Send + Sync>;

/// An event on its way.
#[derive(Debug)]
pub(super) struct Waiting {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Of what it is about.
    pub uid: String,
    /// In JSON: thousands may wait for a server, and a tree of values takes five times as much.
    pub whole: Bytes,
    /// What to change, where it was made before.
    pub again: Option<Bytes>,
    pub reason: Reason,
    pub message: String,
    pub made: Instant,
    pub tried: bool,
}

// === impl Waiting ===

impl Waiting {
    fn request(&self) -> EventWrite {
        let namespace = Arc::clone(&self.namespace);
        match &self.again {
            None => EventWrite::Create {
                namespace,
                body: self.whole.clone(),
            },
            Some(body) => EventWrite::Patch {
                namespace,
                name: Arc::clone(&self.name),
                body: body.clone(),
            },
        }
    }
}

/// Events that are not sent yet. They outlive a panic of the sender.
pub(super) struct OnTheWay(Mutex<(mpsc::Receiver<Waiting>, VecDeque<Waiting>)>);

// === impl OnTheWay ===

impl OnTheWay {
    pub fn new(waiting: mpsc::Receiver<Waiting>) -> Self {
        Self(Mutex::new((waiting, VecDeque::new())))
    }
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

pub(super) async fn send_all(bring: Bring, on_the_way: Arc<OnTheWay>, counters: Arc<Counters>) {
    let mut on_the_way = on_the_way.0.lock().await;
    let (waiting, in_hand) = &mut *on_the_way;
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
        let Err(error) = bring(event.request()).await else {
            pause = FIRST_PAUSE;
            continue;
        };
        if error.code() == Some(404) && event.again.take().is_some() {
            // The API server keeps events for an hour.
            in_hand.push_front(event);
            continue;
        }
        // Not by the name `message`, which a log line gives to its own words.
        let (reason, event_message) = (event.reason.as_str(), &event.message);
        let (uid, namespace, name) = (&event.uid, &*event.namespace, &*event.name);
        let next = next(&error, event.made.elapsed());
        match next {
            Next::Done => continue,
            Next::Drop => {
                counters.event_dropped();
                tracing::warn!(%error, uid, namespace, name, reason, event_message, "Event is dropped");
                continue;
            }
            Next::WaitWithAll | Next::LetOthersFirst if event.tried => {}
            Next::WaitWithAll | Next::LetOthersFirst => {
                tracing::warn!(%error, uid, namespace, name, reason, event_message, "Event has to wait");
            }
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
    use crate::events::{Events, Involved};

    #[tokio::test(start_paused = true)]
    async fn a_panic_while_one_event_is_sent_loses_no_other_event() {
        let (sent, mut received) = mpsc::unbounded_channel();
        let bring: Bring = Arc::new(move |event| {
            let sent = sent.clone();
            Box::pin(async move {
                let EventWrite::Create { body, .. } = event else {
                    unreachable!("none was made before")
                };
                assert!(!body.windows(4).any(|part| part == b"evil"), "as it should");
                sent.send(()).ok();
                Ok(())
            })
        });
        let (events, sender) = Events::new(bring, "node", Arc::default());
        for name in ["good", "evil", "also-good"] {
            let about = Involved {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                namespace: "default".to_owned(),
                name: name.to_owned(),
                uid: name.to_owned(),
            };
            events.object(&about, Reason::Killing, "message");
        }
        drop(events);
        sender.await;
        assert!(received.recv().await.is_some() && received.recv().await.is_some());
        assert!(received.recv().await.is_none());
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
}
