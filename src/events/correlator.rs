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
    name: Arc<str>,
    message: String,
    count: u32,
    first_timestamp: Timestamp,
    recorded_at: Instant,
    sent: Instant,
}

/// How to send an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventAction {
    /// Create a new event.
    Create,
    /// Patch the existing event.
    Patch {
        name: Arc<str>,
        count: u32,
        /// `firstTimestamp`.
        first_timestamp: Timestamp,
    },
    /// Only count it for now.
    Skip,
}

// === impl EventCorrelator ===

impl EventCorrelator {
    /// Records an event. `name` is used if it is a new one.
    pub fn correlate(
        &mut self,
        key: EventKey,
        message: &str,
        name: &Arc<str>,
        wall: Timestamp,
        now: Instant,
    ) -> EventAction {
        let new = || LastEvent {
            name: Arc::clone(name),
            message: message.to_owned(),
            count: 1,
            first_timestamp: wall,
            recorded_at: now,
            sent: now,
        };
        // A lasting state is one event, even if its message changes.
        let is_lasting = key.reason == Reason::TeardownBlocked;
        match self.0.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(new());
                if self.0.len() > MAX_ENTRIES {
                    self.0.shift_remove_index(0);
                }
                EventAction::Create
            }
            Entry::Occupied(mut entry) => {
                let last = entry.get_mut();
                let since = |moment| now.saturating_duration_since(moment);
                if last.message != message && !is_lasting && since(last.recorded_at) >= MIN_EVENT_AGE {
                    *last = new();
                    return EventAction::Create;
                }
                last.count += 1;
                message.clone_into(&mut last.message);
                if since(last.sent) < PATCH_INTERVAL {
                    return EventAction::Skip;
                }
                last.sent = now;
                EventAction::Patch {
                    name: Arc::clone(&last.name),
                    count: last.count,
                    first_timestamp: last.first_timestamp,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Recorder(EventCorrelator, Instant);

    impl Recorder {
        fn record(&mut self, reason: Reason, message: &str, seconds: u64) -> EventAction {
            let key = EventKey {
                uid: "u".into(),
                field_path: None,
                reason,
            };
            let (wall, now) = (Timestamp::UNIX_EPOCH, self.1 + Duration::from_secs(seconds));
            self.0
                .correlate(key, message, &format!("at-{seconds}").into(), wall, now)
        }
    }

    fn patch(name: &str, count: u32) -> EventAction {
        EventAction::Patch {
            name: name.into(),
            count,
            first_timestamp: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn repetition_is_counted_and_sent_every_five_minutes() {
        let mut recorder = Recorder(EventCorrelator::default(), Instant::now());
        assert_eq!(recorder.record(Reason::FailedKillPod, "a", 0), EventAction::Create);
        for seconds in [1, 60, 299] {
            assert_eq!(recorder.record(Reason::FailedKillPod, "a", seconds), EventAction::Skip);
        }
        assert_eq!(recorder.record(Reason::FailedKillPod, "a", 300), patch("at-0", 5));
        assert_eq!(recorder.record(Reason::FailedKillPod, "a", 301), EventAction::Skip);
        assert_eq!(recorder.record(Reason::FailedUnMount, "a", 301), EventAction::Create);
    }

    #[test]
    fn new_message_makes_a_new_event_at_most_once_a_minute() {
        let mut recorder = Recorder(EventCorrelator::default(), Instant::now());
        recorder.record(Reason::FailedKillPod, "a", 0);
        assert_eq!(recorder.record(Reason::FailedKillPod, "b", 59), EventAction::Skip);
        assert_eq!(recorder.record(Reason::FailedKillPod, "c", 60), EventAction::Create);
        assert_eq!(recorder.record(Reason::FailedKillPod, "c", 61), EventAction::Skip);
    }

    #[test]
    fn pod_that_is_blocked_for_an_hour_has_one_event() {
        let mut recorder = Recorder(EventCorrelator::default(), Instant::now());
        let actions: Vec<_> = (0..60)
            .map(|minute| recorder.record(Reason::TeardownBlocked, &format!("since {minute} min"), minute * 60))
            .collect();
        assert_eq!(actions[0], EventAction::Create);
        assert!(!actions[1..].contains(&EventAction::Create));
        assert_eq!(actions[55], patch("at-0", 56));
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
            correlator.correlate(key, "m", &"n".into(), Timestamp::UNIX_EPOCH, Instant::now());
        }
        assert_eq!(correlator.0.len(), MAX_ENTRIES);
    }
}
