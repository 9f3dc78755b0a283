//! The pause of the agent by a user, which a restart does not end.

use std::time::Duration;

pub use super::entries::Paused;
use super::{Journal, entries::PauseRecord, error::JournalError, writer::Write};
use crate::clock::Mark;

// === impl Journal ===

impl Journal {
    /// The pause, if the agent is paused.
    pub fn paused(&self) -> Option<Paused> {
        self.lock().paused.as_ref().map(|record| record.paused.clone())
    }

    /// Time until the pause ends by itself; `None` without a pause, or if only a user ends it.
    pub fn pause_remaining(&self, now: &Mark) -> Option<Duration> {
        self.lock().paused.as_ref()?.remaining(now)
    }

    /// Records a pause, which ends after `limit`. It applies at once. It has the beginning of a pause in force.
    ///
    /// # Errors
    /// If it is not durable: a restart would not have it yet.
    pub async fn set_paused(&self, paused: Paused, limit: Option<Duration>, now: &Mark) -> Result<(), JournalError> {
        self.change_pause(|before| {
            let since = before.as_ref().map_or(paused.since, |before| before.paused.since);
            *before = Some(PauseRecord::new(Paused { since, ..paused }, limit, now));
        });
        self.durable().await
    }

    /// Removes the pause and returns it. This applies at once. The second value is an error if it is not durable: after a restart
    /// the agent would be paused.
    pub async fn remove_pause(&self) -> (Option<Paused>, Result<(), JournalError>) {
        let mut removed = None;
        self.change_pause(|record| removed = record.take());
        (removed.map(|record| record.paused), self.durable().await)
    }

    /// Removes the pause if its time is over, and returns it; `None` if it goes on, for example because a user has just extended
    /// it. The second value is as that of [`Self::remove_pause`].
    pub async fn remove_expired_pause(&self, now: &Mark) -> Option<(Paused, Result<(), JournalError>)> {
        let mut removed = None;
        self.change_pause(|record| {
            removed = record.take_if(|record| record.remaining(now).is_some_and(|remaining| remaining.is_zero()));
        });
        Some((removed?.paused, self.durable().await))
    }

    /// Starts the timer of a pause again for its remaining time, if a reboot has stopped it.
    ///
    /// # Errors
    /// If it is not durable.
    pub async fn restart_pause_timer(&self, now: &Mark) -> Result<(), JournalError> {
        let mut has_restarted = false;
        self.change_pause(|record| {
            let stopped = record.as_ref().filter(|record| record.is_of_other_boot(now));
            let restarted = stopped.and_then(|it| {
                let remaining = it.remaining(now)?;
                Some(PauseRecord::new(it.paused.clone(), Some(remaining), now))
            });
            has_restarted = restarted.is_some();
            *record = restarted.or(record.take());
        });
        if has_restarted { self.durable().await } else { Ok(()) }
    }

    /// Changes the pause in memory and queues the row under one lock: the last change in memory is the last one on disk.
    fn change_pause(&self, change: impl FnOnce(&mut Option<PauseRecord>)) {
        let mut state = self.lock();
        let before = state.paused.clone();
        change(&mut state.paused);
        if state.paused != before {
            self.send(Write::Row(PauseRecord::row(state.paused.as_ref())));
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn mark(boot: &str, since_boot: u64, wall: i64) -> Mark {
        Mark {
            boot_id: boot.to_owned(),
            since_boot: Duration::from_secs(since_boot),
            wall: Timestamp::from_second(wall).unwrap(),
        }
    }

    fn paused() -> Paused {
        Paused {
            since: Timestamp::UNIX_EPOCH,
            by: "root".to_owned(),
            reason: Some("kernel update".to_owned()),
            until: None,
        }
    }

    #[tokio::test]
    async fn wall_clock_does_not_end_a_pause_within_a_boot() {
        let journal = Journal::in_memory();
        let set = mark("a", 100, 1000);
        journal
            .set_paused(paused(), Some(Duration::from_secs(60)), &set)
            .await
            .unwrap();
        for (now, remaining) in [
            (mark("a", 110, 999_999), 50),
            (mark("a", 159, 0), 1),
            (mark("a", 160, 0), 0),
        ] {
            assert_eq!(
                journal.pause_remaining(&now),
                Some(Duration::from_secs(remaining)),
                "{now:?}"
            );
        }
        assert_eq!(
            journal.paused().unwrap().until,
            Some(Timestamp::from_second(1060).unwrap())
        );
    }

    #[tokio::test]
    async fn pause_that_was_extended_at_its_end_does_not_expire() {
        let journal = Journal::in_memory();
        let limit = Some(Duration::from_secs(60));
        journal
            .set_paused(paused(), limit, &mark("a", 100, 1000))
            .await
            .unwrap();
        let end = mark("a", 160, 1060);
        assert_eq!(journal.pause_remaining(&end), Some(Duration::ZERO));
        journal.set_paused(paused(), limit, &end).await.unwrap();
        assert!(journal.remove_expired_pause(&end).await.is_none());
        assert!(journal.paused().is_some());
        let (expired, durable) = journal.remove_expired_pause(&mark("a", 220, 1120)).await.unwrap();
        assert_eq!((expired.by.as_str(), durable), ("root", Ok(())));
        assert_eq!(journal.paused(), None);
    }

    #[tokio::test]
    async fn pause_continues_after_a_reboot_for_at_most_its_whole_time() {
        for (wall, remaining) in [(1020, 40), (2000, 0), (0, 60)] {
            let journal = Journal::in_memory();
            let set = mark("a", 100, 1000);
            journal
                .set_paused(paused(), Some(Duration::from_secs(60)), &set)
                .await
                .unwrap();
            let booted = mark("b", 5, wall);
            journal.restart_pause_timer(&booted).await.unwrap();
            // A later correction of the wall clock changes nothing.
            let now = mark("b", 5, 5000);
            assert_eq!(
                journal.pause_remaining(&now),
                Some(Duration::from_secs(remaining)),
                "{wall}"
            );
        }
    }

    #[tokio::test]
    async fn pause_without_a_limit_does_not_end_by_itself() {
        let journal = Journal::in_memory();
        journal.set_paused(paused(), None, &mark("a", 1, 1)).await.unwrap();
        journal.restart_pause_timer(&mark("b", 1, 1)).await.unwrap();
        assert_eq!(journal.pause_remaining(&mark("b", 9, 9)), None);
        assert_eq!(journal.paused(), Some(paused()));
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
