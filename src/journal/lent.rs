//! A journal on a disk that somebody else keeps, as in a simulation: no file, and no quarantine.

use redb::Database;

use super::{
    Disk, JournalError, State,
    error::{self, failed},
    file::{self, Contents},
    writer::{Row, Store},
};
use crate::node::identity::Identity;

/// See the module's documentation.
pub(super) struct Lent(pub Disk);

// === impl Lent ===

impl Lent {
    /// What is known at the start, and the journal if the disk lets it be used.
    pub fn start(&self, machine: &Identity) -> (State, Option<Database>) {
        let mut state = match self.contents(machine) {
            Ok(contents) => State::of(contents, machine),
            Err(error) => State {
                unread: Some(error.to_string()),
                ..State::of(Contents::default(), machine)
            },
        };
        match self.open(&[]) {
            Ok(database) => (state, Some(database)),
            Err(error) => {
                tracing::error!(%error, "Journal cannot be used; the agent goes on without it and tries again");
                state.trouble.error = Some(error);
                state.trouble.failed += 1;
                (state, None)
            }
        }
    }

    fn contents(&self, machine: &Identity) -> Result<Contents, JournalError> {
        let bytes = (self.0.read)().map_err(error::io("read"))?;
        file::understand(&bytes, machine).map_err(|_| JournalError::damaged())
    }
}

impl Store for Lent {
    fn open(&self, _rows: &[Row]) -> Result<Database, JournalError> {
        (self.0.open)().map_err(failed("open"))
    }
}
