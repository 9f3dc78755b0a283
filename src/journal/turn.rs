//! That it is this agent's turn to take pods down, which a restart need not end.

use serde::{Deserialize, Serialize};

use super::{
    Journal,
    file::TURN,
    writer::{Row, Write},
};
use crate::clock::Mark;

/// It was this agent's turn, and no kubelet was to be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnTurn {
    /// When that was last so.
    pub at: Mark,
    /// How the kubelet's Lease looked when it was last there, which no kubelet has renewed.
    pub lease: String,
}

// === impl OwnTurn ===

impl OwnTurn {
    /// The row that is written, also that it is not this agent's turn.
    pub(super) fn row(turn: Option<&Self>) -> Row {
        Row::Node(TURN, serde_json::to_string(&turn).unwrap_or_default())
    }
}

// === impl Journal ===

impl Journal {
    /// That it was this agent's turn, when the journal was last told.
    pub fn turn(&self) -> Option<OwnTurn> {
        self.lock().turn.clone()
    }

    /// Records that it is this agent's turn, or that it is not. Durable soon, not at once.
    pub fn set_turn(&self, turn: Option<OwnTurn>) {
        let mut state = self.lock();
        if state.turn != turn {
            self.send(Write::Row(OwnTurn::row(turn.as_ref())));
            state.turn = turn;
        }
    }
}
