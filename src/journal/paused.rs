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

    /// Records a pause, which ends after `limit`. It applies at once.
    ///
    /// # Errors
    /// If it is not durable: a restart would not have it yet.
    pub async fn set_paused(&self, paused: Paused, limit: Option<Duration>, now: &Mark) -> Result<(), JournalError> {
        self.record_pause(Some(PauseRecord::new(paused, limit, now))).await
    }

    /// Removes the pause. It applies at once.
    ///
    /// # Errors
    /// If it is not durable: after a restart the agent would be paused.
    pub async fn remove_pause(&self) -> Result<(), JournalError> {
        self.record_pause(None).await
    }

    /// Starts the timer of a pause again for its remaining time, if a reboot has stopped it.
    ///
    /// # Errors
    /// If it is not durable.
    pub async fn restart_pause_timer(&self, now: &Mark) -> Result<(), JournalError> {
        let record = self.lock().paused.clone().filter(|record| record.is_of_other_boot(now));
        let Some((record, remaining)) = record.and_then(|it| it.remaining(now).map(|remaining| (it, remaining))) else {
            return Ok(());
        };
        self.set_paused(record.paused, Some(remaining), now).await
    }

    async fn record_pause(&self, record: Option<PauseRecord>) -> Result<(), JournalError> {
        self.send(Write::Row(PauseRecord::row(record.as_ref())));
        self.lock().paused = record;
        self.durable().await
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
        let why = Paused { until, ..paused() }.why();
        assert_eq!(
            why,
            "paused since 1970-01-01T00:00:00Z by root (kernel update), until 1970-01-01T02:00:00Z or pod-teardown resume"
        );
    }
}
