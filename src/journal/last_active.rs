//! The active role of this agent, which survives a restart.

use serde::{Deserialize, Serialize};

use super::{
    Journal,
    file::TURN,
    writer::{Row, Write},
};
use crate::clock::Mark;

/// This agent was active, and no kubelet was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastActive {
    /// The last time.
    pub at: Mark,
    /// The kubelet's Lease when it was last seen. No kubelet has renewed it since.
    pub lease: String,
}

// === impl LastActive ===

impl LastActive {
    /// The row in the journal, also for an agent that is not active.
    pub(super) fn row(turn: Option<&Self>) -> Row {
        Row::Node(TURN, serde_json::to_string(&turn).unwrap_or_default())
    }
}

// === impl Journal ===

impl Journal {
    /// The last time that this agent was active; `None` if it is on standby.
    pub fn last_active(&self) -> Option<LastActive> {
        self.lock().turn.clone()
    }

    /// Records that this agent is active, or on standby. It is durable later.
    pub fn set_last_active(&self, turn: Option<LastActive>) {
        let mut state = self.lock();
        if state.turn != turn {
            self.send(Write::Row(LastActive::row(turn.as_ref())));
            state.turn = turn;
        }
    }
}
