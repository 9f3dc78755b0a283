//! That somebody has paused the agent, which a restart does not end.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Journal, JournalError,
    file::PAUSE,
    writer::{Row, Write},
};

/// Nothing is begun from here on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Since when.
    pub since: Timestamp,
    /// By whom.
    pub by: String,
}

// === impl Paused ===

impl Paused {
    /// Why nothing is begun.
    pub fn why(&self) -> String {
        let Self { since, by } = self;
        format!("paused since {since:.0} by {by}, until pod-teardown resume")
    }

    /// The row that is written, also that the agent is not paused.
    pub(super) fn row(paused: Option<&Self>) -> Row {
        Row::Node(PAUSE, serde_json::to_string(&paused).unwrap_or_default())
    }
}

// === impl Journal ===

impl Journal {
    /// Who has paused the agent.
    pub fn paused(&self) -> Option<Paused> {
        self.lock().paused.clone()
    }

    /// Records who has paused the agent, or that nobody has. It counts from now on; an error says that a restart would not
    /// know it yet.
    pub async fn set_paused(&self, paused: Option<Paused>) -> Result<(), JournalError> {
        self.send(Write::Row(Paused::row(paused.as_ref())));
        self.lock().paused = paused;
        self.durable().await
    }
}
