//! The active role of this agent, which survives a restart.

pub use super::entries::LastActive;
use super::{Journal, writer::Write};

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
