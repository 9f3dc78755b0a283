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

    /// A kubelet that is wedged is stopped neither while somebody has paused the agent, nor while the node is given to one. An
    /// error says so.
    pub fn leaves_alone_who_is_wedged(&self) -> Result<(), String> {
        if let Some(paused) = self.paused() {
            return Err(paused.why());
        }
        if self.gives_the_node_back() {
            return Err("the node is being handed back to its kubelet".to_owned());
        }
        Ok(())
    }

    /// What was begun and goes on, until it comes to a safe point.
    pub fn under_way(&self) -> Vec<String> {
        self.lock().turn.under_way()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{journal::Journal, node::identity::Identity};

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_is_wedged_is_left_alone_during_a_pause_and_while_it_gets_its_node_back() {
        let guard = Guard::new(Identity::default(), Journal::forgetful(), "/proc".into());
        assert_eq!(guard.leaves_alone_who_is_wedged(), Ok(()));
        guard.pause("somebody", Timestamp::UNIX_EPOCH).await.unwrap();
        assert!(guard.leaves_alone_who_is_wedged().unwrap_err().contains("paused"));
        guard.resume().await.1.unwrap();
        assert_eq!(guard.leaves_alone_who_is_wedged(), Ok(()));
        guard.hand_back(Duration::from_secs(1), Duration::from_secs(45)).await;
        assert!(guard.leaves_alone_who_is_wedged().unwrap_err().contains("handed back"));
    }
}
