//! Correlates events, like client-go's `EventCorrelator`: a repetition increases the count of an event. A pod that is blocked for an
//! hour has one event. Pure.

use std::{sync::Arc, time::Duration};

use indexmap::{IndexMap, map::Entry};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::model::event::Reason;

/// How often a count is sent to the API server.
const PATCH_INTERVAL: Duration = Duration::from_secs(300);
/// Another message for the same reason makes a new event only if the last one is older: a message that changes all the time would
/// flood the API server.
const MIN_EVENT_AGE: Duration = Duration::from_secs(60);
/// Entries to keep; the oldest are dropped.
const MAX_ENTRIES: usize = 4096;

/// Events with the same key are correlated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventKey {
    /// UID of the involved object.
    pub uid: Arc<str>,
    pub field_path: Option<String>,
    pub reason: Reason,
}

/// The last event of each key.
#[derive(Debug, Default)]
pub struct EventCorrelator(IndexMap<EventKey, LastEvent>);

#[derive(Debug)]
struct LastEvent {
    event: EventCount,
    message: String,
    recorded_at: Instant,
    sent: Instant,
}

/// An event to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCount {
    pub name: Arc<str>,
    /// 1 for a new event; a higher one patches the existing event.
    pub count: u32,
    /// `firstTimestamp`.
    pub first_timestamp: Timestamp,
}

// === impl EventCorrelator ===

impl EventCorrelator {
    /// Records an event, which is `new` if it is no repetition. `None`: it is only counted for now.
    pub fn correlate(&mut self, key: EventKey, message: &str, new: EventCount, now: Instant) -> Option<EventCount> {
        // A lasting state is one event, even if its message changes.
        let is_lasting = key.reason == Reason::TeardownBlocked;
        let first = |event| LastEvent {
            event,
            message: message.to_owned(),
            recorded_at: now,
            sent: now,
        };
        match self.0.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(first(new.clone()));
                if self.0.len() > MAX_ENTRIES {
                    self.0.shift_remove_index(0);
                }
                Some(new)
            }
            Entry::Occupied(mut entry) => {
                let last = entry.get_mut();
                let since = |moment| now.saturating_duration_since(moment);
                if last.message != message && !is_lasting && since(last.recorded_at) >= MIN_EVENT_AGE {
                    *last = first(new.clone());
                    return Some(new);
                }
                last.event.count += 1;
                message.clone_into(&mut last.message);
                if since(last.sent) < PATCH_INTERVAL {
                    return None;
                }
                last.sent = now;
                Some(last.event.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Recorder(EventCorrelator, Instant);

    impl Recorder {
        fn record(&mut self, reason: Reason, message: &str, seconds: u64) -> Option<EventCount> {
            let key = EventKey {
                uid: "u".into(),
                field_path: None,
                reason,
            };
            let now = self.1 + Duration::from_secs(seconds);
            self.0.correlate(key, message, event(&format!("at-{seconds}"), 1), now)
        }
    }

    fn event(name: &str, count: u32) -> EventCount {
        EventCount {
            name: name.into(),
            count,
            first_timestamp: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn repetition_is_counted_and_sent_every_five_minutes() {
        let mut recorder = Recorder(EventCorrelator::default(), Instant::now());
        assert_eq!(recorder.record(Reason::FailedKillPod, "a", 0), Some(event("at-0", 1)));
        for seconds in [1, 60, 299] {
            assert_eq!(recorder.record(Reason::FailedKillPod, "a", seconds), None);
        }
        assert_eq!(recorder.record(Reason::FailedKillPod, "a", 300), Some(event("at-0", 5)));
        assert_eq!(recorder.record(Reason::FailedKillPod, "a", 301), None);
        assert_eq!(
            recorder.record(Reason::FailedUnMount, "a", 301),
            Some(event("at-301", 1))
        );
    }

    #[test]
    fn new_message_makes_a_new_event_at_most_once_a_minute() {
        let mut recorder = Recorder(EventCorrelator::default(), Instant::now());
        recorder.record(Reason::FailedKillPod, "a", 0);
        assert_eq!(recorder.record(Reason::FailedKillPod, "b", 59), None);
        assert_eq!(recorder.record(Reason::FailedKillPod, "c", 60), Some(event("at-60", 1)));
        assert_eq!(recorder.record(Reason::FailedKillPod, "c", 61), None);
    }

    #[test]
    fn pod_that_is_blocked_for_an_hour_has_one_event() {
        let mut recorder = Recorder(EventCorrelator::default(), Instant::now());
        let actions: Vec<_> = (0..60)
            .map(|minute| recorder.record(Reason::TeardownBlocked, &format!("since {minute} min"), minute * 60))
            .collect();
        assert_eq!(actions[0], Some(event("at-0", 1)));
        assert!(actions[1..].iter().flatten().all(|sent| sent.count > 1));
        assert_eq!(actions[55], Some(event("at-0", 56)));
    }

    #[test]
    fn oldest_entries_are_dropped() {
        let mut correlator = EventCorrelator::default();
        for number in 0..MAX_ENTRIES + 10 {
            let key = EventKey {
                uid: number.to_string().into(),
                field_path: None,
                reason: Reason::Killing,
            };
            correlator.correlate(key, "m", event("n", 1), Instant::now());
        }
        assert_eq!(correlator.0.len(), MAX_ENTRIES);
    }
}
