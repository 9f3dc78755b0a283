//! Records the last approvals of safety holds.

use super::{
    Journal,
    approval::{Approval, row},
    error::JournalError,
    writer::Write,
};

/// Number of approvals that are kept.
const MAX_APPROVALS: usize = 16;

// === impl Journal ===

impl Journal {
    /// The last approvals, the latest last.
    pub fn last_approvals(&self) -> Vec<Approval> {
        self.lock().approvals.clone()
    }

    /// Records an approval. Only the last ones are kept.
    ///
    /// # Errors
    /// If it is not durable.
    pub async fn log_approval(&self, approval: Approval) -> Result<(), JournalError> {
        {
            let mut state = self.lock();
            state.approvals.push(approval);
            let surplus = state.approvals.len().saturating_sub(MAX_APPROVALS);
            state.approvals.drain(..surplus);
            self.send(Write::Row(row(&state.approvals)));
        }
        self.durable().await
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::node::identity::Identity;

    fn approval(number: usize) -> Approval {
        Approval {
            item: format!("pod/ns/{number}"),
            uid: Some(number.to_string()),
            at: Timestamp::UNIX_EPOCH,
            by: "root".to_owned(),
            reason: Some("seen on the console".to_owned()),
            why: "its cgroup has processes".to_owned(),
        }
    }

    #[tokio::test]
    async fn last_approvals_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Identity::default();
        let journal = Journal::open(dir.path(), &machine).unwrap();
        for number in 0..MAX_APPROVALS + 3 {
            journal.log_approval(approval(number)).await.unwrap();
        }
        drop(journal);
        // The writer closes the file after the last handle is dropped.
        let reopened = loop {
            match Journal::open(dir.path(), &machine) {
                Ok(journal) => break journal,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        };
        let expected: Vec<_> = (3..MAX_APPROVALS + 3).map(approval).collect();
        assert_eq!(reopened.last_approvals(), expected);
    }
}
