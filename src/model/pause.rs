//! The pause of the agent by a user. Pure.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock::{Mark, between};

/// A user has paused the agent: no termination begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Paused {
    /// When it was paused.
    pub since: Timestamp,
    /// Name of the user.
    pub by: String,
    /// The user's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it ends by itself; `None` if only a user ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A pause as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRecord {
    /// The pause.
    #[serde(flatten)]
    pub paused: Paused,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timer: Option<PauseTimer>,
}

/// The time limit of a pause. It does not depend on the wall clock, except over a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PauseTimer {
    /// When it was set.
    started: Mark,
    /// How long it runs.
    limit: Duration,
}

// === impl Paused ===

impl Paused {
    /// Why no termination begins.
    pub fn why(&self) -> String {
        format!("paused {}", self.period())
    }

    /// Its beginning and its end.
    pub fn period(&self) -> String {
        let beginning = self.beginning();
        match &self.until {
            Some(until) => format!("{beginning}, until {until:.0} or pod-teardown resume"),
            None => format!("{beginning}, until pod-teardown resume"),
        }
    }

    /// Since when, by whom and why.
    pub fn beginning(&self) -> String {
        let Self { since, by, reason, .. } = self;
        let reason = reason
            .as_ref()
            .map_or_else(String::new, |reason| format!(" ({reason})"));
        format!("since {since:.0} by {by}{reason}")
    }
}

// === impl PauseRecord ===

impl PauseRecord {
    /// A pause that ends after `limit`, if there is one.
    pub fn new(paused: Paused, limit: Option<Duration>, now: &Mark) -> Self {
        let timer = limit.map(|limit| PauseTimer {
            started: now.clone(),
            limit,
        });
        let until = timer.as_ref().map(PauseTimer::end);
        Self {
            paused: Paused { until, ..paused },
            timer,
        }
    }

    /// Time until it ends by itself, zero if it has to end now; `None` if only a user ends it.
    pub fn remaining(&self, now: &Mark) -> Option<Duration> {
        Some(self.timer.as_ref()?.remaining(now))
    }

    /// The same pause in this boot: the timer of another one runs for its remaining time from now on.
    #[must_use]
    pub fn in_boot_of(self, now: &Mark) -> Self {
        match &self.timer {
            Some(timer) if timer.started.elapsed(now).is_none() => {
                let remaining = timer.remaining(now);
                Self::new(self.paused, Some(remaining), now)
            }
            _ => self,
        }
    }
}

impl From<Paused> for PauseRecord {
    /// A pause that only a user ends.
    fn from(paused: Paused) -> Self {
        Self { paused, timer: None }
    }
}

// === impl PauseTimer ===

impl PauseTimer {
    /// The end on the wall clock.
    fn end(&self) -> Timestamp {
        self.started.wall.saturating_add(self.limit).unwrap_or(Timestamp::MAX)
    }

    /// After a reboot only the wall clock is left. If it was set back, the pause takes at most its whole time again.
    fn remaining(&self, now: &Mark) -> Duration {
        match self.started.elapsed(now) {
            Some(elapsed) => self.limit.saturating_sub(elapsed),
            None => between(now.wall, self.end()).min(self.limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused() -> Paused {
        Paused {
            since: Timestamp::UNIX_EPOCH,
            by: "root".to_owned(),
            reason: Some("kernel update".to_owned()),
            until: None,
        }
    }

    fn record(limit: Option<u64>) -> PauseRecord {
        PauseRecord::new(paused(), limit.map(Duration::from_secs), &Mark::at("a", 100, 1000))
    }

    #[test]
    fn wall_clock_does_not_end_a_pause_within_a_boot() {
        for (now, remaining) in [
            (Mark::at("a", 110, 999_999), 50),
            (Mark::at("a", 159, 0), 1),
            (Mark::at("a", 160, 0), 0),
        ] {
            let record = record(Some(60)).in_boot_of(&now);
            assert_eq!(record.remaining(&now), Some(Duration::from_secs(remaining)), "{now:?}");
        }
        assert_eq!(
            record(Some(60)).paused.until,
            Some(Timestamp::from_second(1060).unwrap())
        );
    }

    #[test]
    fn pause_continues_after_a_reboot_for_at_most_its_whole_time() {
        for (wall, remaining) in [(1020, 40), (2000, 0), (0, 60)] {
            let booted = record(Some(60)).in_boot_of(&Mark::at("b", 5, wall));
            // A later correction of the wall clock changes nothing.
            let remaining = Some(Duration::from_secs(remaining));
            assert_eq!(booted.remaining(&Mark::at("b", 5, 5000)), remaining, "{wall}");
        }
    }

    #[test]
    fn pause_without_a_limit_does_not_end_by_itself() {
        let booted = record(None).in_boot_of(&Mark::at("b", 1, 1));
        assert_eq!(
            (booted.remaining(&Mark::at("b", 9, 9)), booted.paused),
            (None, paused())
        );
    }

    #[test]
    fn text_names_user_reason_and_end() {
        let until = Timestamp::from_second(7200).ok();
        let paused = Paused { until, ..paused() };
        assert_eq!(paused.beginning(), "since 1970-01-01T00:00:00Z by root (kernel update)");
        assert_eq!(
            paused.why(),
            "paused since 1970-01-01T00:00:00Z by root (kernel update), until 1970-01-01T02:00:00Z or pod-teardown resume"
        );
    }
}
