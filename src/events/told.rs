//! What has been told already: the same once more is counted, not told anew, so that a pod that is stuck for an hour makes
//! one event with a count. Pure.

use std::{sync::Arc, time::Duration};

use indexmap::{IndexMap, map::Entry};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::model::event::Reason;

/// What is counted is brought to the API server so often.
const BRING_AFTER: Duration = Duration::from_secs(300);
/// Another message for the same reason makes an event of its own, unless the one before is younger: a cause that changes
/// with every look would make one each time.
const NEWS_AFTER: Duration = Duration::from_secs(60);
/// Things that are remembered; those that were told of longest ago make room.
const LARGEST: usize = 4096;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct About {
    /// Of which object.
    pub uid: Arc<str>,
    /// Of which part of it.
    pub field_path: Option<String>,
    /// Why.
    pub reason: Reason,
}

/// What was told of each.
#[derive(Debug, Default)]
pub struct Told(IndexMap<About, Telling>);

#[derive(Debug)]
struct Telling {
    name: Arc<str>,
    message: String,
    count: u32,
    first: Timestamp,
    made: Instant,
    brought: Instant,
}

/// What is to be done about something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It makes a new event of the name that was offered.
    New,
    /// It happened so often by now, since then: an event that is there is changed.
    Again {
        /// Of the event.
        name: Arc<str>,
        /// How often.
        count: u32,
        /// Since when.
        first: Timestamp,
    },
    /// It is counted.
    Nothing,
}

// === impl Told ===

impl Told {
    /// Something happened. `name` is for the event, if it makes a new one.
    pub fn next(&mut self, about: About, message: &str, name: &Arc<str>, wall: Timestamp, now: Instant) -> Next {
        let new = || Telling {
            name: Arc::clone(name),
            message: message.to_owned(),
            count: 1,
            first: wall,
            made: now,
            brought: now,
        };
        // It tells of a state that goes on: one event, however its cause changes.
        let always_the_same = about.reason == Reason::TeardownBlocked;
        match self.0.entry(about) {
            Entry::Vacant(place) => {
                place.insert(new());
                if self.0.len() > LARGEST {
                    self.0.shift_remove_index(0);
                }
                Next::New
            }
            Entry::Occupied(mut place) => {
                let telling = place.get_mut();
                let since = |moment| now.saturating_duration_since(moment);
                if telling.message != message && !always_the_same && since(telling.made) >= NEWS_AFTER {
                    *telling = new();
                    return Next::New;
                }
                telling.count += 1;
                message.clone_into(&mut telling.message);
                if since(telling.brought) < BRING_AFTER {
                    return Next::Nothing;
                }
                telling.brought = now;
                Next::Again {
                    name: Arc::clone(&telling.name),
                    count: telling.count,
                    first: telling.first,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Teller(Told, Instant);

    impl Teller {
        fn tell(&mut self, reason: Reason, message: &str, seconds: u64) -> Next {
            let about = About {
                uid: "u".into(),
                field_path: None,
                reason,
            };
            let (wall, now) = (Timestamp::UNIX_EPOCH, self.1 + Duration::from_secs(seconds));
            self.0.next(about, message, &format!("at-{seconds}").into(), wall, now)
        }
    }

    fn again(name: &str, count: u32) -> Next {
        Next::Again {
            name: name.into(),
            count,
            first: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn the_same_again_is_counted_and_brought_every_five_minutes() {
        let mut teller = Teller(Told::default(), Instant::now());
        assert_eq!(teller.tell(Reason::FailedKillPod, "a", 0), Next::New);
        for seconds in [1, 60, 299] {
            assert_eq!(teller.tell(Reason::FailedKillPod, "a", seconds), Next::Nothing);
        }
        assert_eq!(teller.tell(Reason::FailedKillPod, "a", 300), again("at-0", 5));
        assert_eq!(teller.tell(Reason::FailedKillPod, "a", 301), Next::Nothing);
        assert_eq!(teller.tell(Reason::FailedUnMount, "a", 301), Next::New);
    }

    #[test]
    fn another_message_is_news_but_not_one_that_changes_with_every_look() {
        let mut teller = Teller(Told::default(), Instant::now());
        teller.tell(Reason::FailedKillPod, "a", 0);
        assert_eq!(teller.tell(Reason::FailedKillPod, "b", 59), Next::Nothing);
        assert_eq!(teller.tell(Reason::FailedKillPod, "c", 60), Next::New);
        assert_eq!(teller.tell(Reason::FailedKillPod, "c", 61), Next::Nothing);
    }

    #[test]
    fn a_pod_that_is_blocked_for_an_hour_makes_one_event() {
        let mut teller = Teller(Told::default(), Instant::now());
        let tellings: Vec<_> = (0..60)
            .map(|minute| teller.tell(Reason::TeardownBlocked, &format!("since {minute} min"), minute * 60))
            .collect();
        assert_eq!(tellings[0], Next::New);
        assert!(!tellings[1..].contains(&Next::New));
        assert_eq!(tellings[55], again("at-0", 56));
    }

    #[test]
    fn what_was_told_longest_ago_makes_room() {
        let mut told = Told::default();
        for number in 0..LARGEST + 10 {
            let about = About {
                uid: number.to_string().into(),
                field_path: None,
                reason: Reason::Killing,
            };
            told.next(about, "m", &"n".into(), Timestamp::UNIX_EPOCH, Instant::now());
        }
        assert_eq!(told.0.len(), LARGEST);
    }
}
