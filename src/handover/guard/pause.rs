//! Pause: no new work begins until a user resumes the agent.

use jiff::Timestamp;

use super::Guard;
use crate::journal::{JournalError, paused::Paused};

impl Guard {
    /// Pauses the agent. A second pause changes nothing.
    ///
    /// # Errors
    /// When the pause cannot be recorded: it is lost at a restart.
    pub async fn pause(&self, by: &str, now: Timestamp) -> Result<(), JournalError> {
        let paused = self.paused().unwrap_or_else(|| Paused {
            since: now,
            by: by.to_owned(),
        });
        self.journal.set_paused(Some(paused)).await
    }

    /// Resumes the agent and returns the pause. The second value is an error if that cannot be recorded: the agent is paused again
    /// after a restart.
    pub async fn resume(&self) -> (Option<Paused>, Result<(), JournalError>) {
        let paused = self.paused();
        let resumed = self.journal.set_paused(None).await;
        self.unblocked.notify_waiters();
        (paused, resumed)
    }

    /// The pause, while the agent is paused.
    pub fn paused(&self) -> Option<Paused> {
        self.journal.paused()
    }

    /// Whether an unresponsive kubelet may be stopped.
    ///
    /// # Errors
    /// The reason, during a pause or a handover.
    pub fn check_may_fence(&self) -> Result<(), String> {
        if let Some(paused) = self.paused() {
            return Err(paused.why());
        }
        if self.is_handing_over() {
            return Err("the node is being handed over to its kubelet".to_owned());
        }
        Ok(())
    }

    /// Work that has not reached a safe point, such as `default/web-0`.
    pub fn work_in_progress(&self) -> Vec<String> {
        self.lock().activity.work_names()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{journal::Journal, node::identity::Identity};

    #[tokio::test(start_paused = true)]
    async fn unresponsive_kubelet_is_not_stopped_during_a_pause_or_a_handover() {
        let guard = Guard::new(Identity::default(), Journal::in_memory(), "/proc".into());
        assert_eq!(guard.check_may_fence(), Ok(()));
        guard.pause("root", Timestamp::UNIX_EPOCH).await.unwrap();
        assert!(guard.check_may_fence().unwrap_err().contains("paused"));
        guard.resume().await.1.unwrap();
        assert_eq!(guard.check_may_fence(), Ok(()));
        guard.hand_over(Duration::from_secs(1), Duration::from_secs(45)).await;
        assert!(guard.check_may_fence().unwrap_err().contains("handed over"));
    }
}
