//! The pause of the agent by a user, which a restart does not end.

pub use super::entries::Paused;
use super::{Journal, error::JournalError, writer::Write};

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
