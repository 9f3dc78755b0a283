//! The active role of this agent, which survives a restart.

pub use super::entries::LastActive;
use super::{Journal, writer::Write};

// === impl Journal ===

impl Journal {
    /// The last time that this agent was active; `None` if it is on standby.
    pub fn last_active(&self) -> Option<LastActive> {
        self.lock().last_active.clone()
    }

    /// Records that this agent is active, or on standby. It is durable later.
    pub fn set_last_active(&self, last_active: Option<LastActive>) {
        let mut state = self.lock();
        if state.last_active != last_active {
            self.send(Write::Row(LastActive::row(last_active.as_ref())));
            state.last_active = last_active;
        }
    }
}
