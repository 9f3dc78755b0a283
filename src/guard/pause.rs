//! Whether somebody has paused the agent: nothing is begun until it is told to resume.

use jiff::Timestamp;

use super::Guard;
use crate::journal::{JournalError, paused::Paused};

impl Guard {
    /// Pauses the agent by somebody's word; a second one changes nothing. An error says that a restart would not know it.
    pub async fn pause(&self, by: &str, now: Timestamp) -> Result<(), JournalError> {
        let paused = self.paused().unwrap_or_else(|| Paused {
            since: now,
            by: by.to_owned(),
        });
        self.journal.set_paused(Some(paused)).await
    }

    /// Ends that, and says what it was. An error says that a restart would be paused again.
    pub async fn resume(&self) -> (Option<Paused>, Result<(), JournalError>) {
        let paused = self.paused();
        let resumed = self.journal.set_paused(None).await;
        self.may_begin.notify_waiters();
        (paused, resumed)
    }

    /// Who has paused the agent.
    pub fn paused(&self) -> Option<Paused> {
        self.journal.paused()
    }

    /// What was begun and goes on, until it comes to a safe point.
    pub fn under_way(&self) -> Vec<String> {
        self.lock().turn.under_way.values().cloned().collect()
    }
}
