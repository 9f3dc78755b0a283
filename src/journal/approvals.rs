//! The last approvals of safety holds: who gave them, when and why.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Journal,
    error::JournalError,
    row::{APPROVALS, Row},
    writer::Write,
};

/// Number of approvals that are kept.
const MAX_APPROVALS: usize = 16;

/// An approval of a safety hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Approval {
    /// The item, such as `absence` or `pod/NAMESPACE/NAME`.
    pub item: String,
    /// UID of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// When it was given.
    pub at: Timestamp,
    /// Name of the user.
    pub by: String,
    /// Reason of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the item was on hold.
    pub why: String,
}

/// The row in the journal.
pub(super) fn row(approvals: &[Approval]) -> Row {
    Row::Node(APPROVALS, serde_json::to_string(approvals).unwrap_or_default())
}

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
    use super::*;
    use crate::node::identity::Identity;

    fn approval(number: usize) -> Approval {
        Approval {
            item: format!("pod/ns/{number}"),
            uid: Some(number.to_string()),
            at: Timestamp::UNIX_EPOCH,
            by: "uid 0, pid 7".to_owned(),
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
