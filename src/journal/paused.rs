//! The pause of the agent by a user, which a restart does not end.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Journal, JournalError,
    file::PAUSE,
    writer::{Row, Write},
};

/// A user has paused the agent: no termination begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// When it was paused.
    pub since: Timestamp,
    /// Name of the user.
    pub by: String,
}

// === impl Paused ===

impl Paused {
    /// Why no termination begins.
    pub fn why(&self) -> String {
        let Self { since, by } = self;
        format!("paused since {since:.0} by {by}, until pod-teardown resume")
    }

    /// The row in the journal, also for an agent that is not paused.
    pub(super) fn row(paused: Option<&Self>) -> Row {
        Row::Node(PAUSE, serde_json::to_string(&paused).unwrap_or_default())
    }
}

// === impl Journal ===

impl Journal {
    /// The pause, if the agent is paused.
    pub fn paused(&self) -> Option<Paused> {
        self.lock().paused.clone()
    }

    /// Records or removes a pause. It applies at once.
    ///
    /// # Errors
    /// If it is not durable: a restart would not have it yet.
    pub async fn set_paused(&self, paused: Option<Paused>) -> Result<(), JournalError> {
        self.send(Write::Row(Paused::row(paused.as_ref())));
        self.lock().paused = paused;
        self.durable().await
    }
}
