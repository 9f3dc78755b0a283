//! A journal on a disk of a simulation, without files and quarantine.

use std::{io, sync::Arc};

use redb::{Database, DatabaseError, StorageBackend as _, backends::InMemoryBackend};

use super::{
    error::{self, JournalError, failed},
    file::{self, Contents},
    header::Unusable,
    row::Row,
    state::JournalState,
    writer::Store,
};
use crate::node::identity::Identity;

/// A disk of a simulation.
#[derive(Clone)]
pub struct SimulatedDisk {
    /// Reads all bytes of the disk.
    pub read: Arc<dyn Fn() -> io::Result<Vec<u8>> + Send + Sync>,
    /// Opens the database on it.
    pub open: Arc<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>,
}

/// The store on it.
pub(super) struct SimulatedStore(pub SimulatedDisk);

/// The content of these bytes, if all of them are undamaged.
pub(super) fn parse(bytes: &[u8], machine: &Identity) -> Result<Contents, Unusable> {
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64)
        .and_then(|()| copy.write(0, bytes))
        .map_err(|error| error::io("copy")(error).into())
        .and_then(|()| file::parse(copy, machine))
}

// === impl SimulatedStore ===

impl SimulatedStore {
    /// The state at the start, and the database if it can be opened.
    pub fn start(&self, machine: &Identity) -> (JournalState, Option<Database>) {
        let mut state = match self.contents(machine) {
            Ok(contents) => JournalState::from_contents(contents, machine),
            Err(error) => JournalState {
                node_uid_read_error: Some(error.to_string()),
                ..JournalState::from_contents(Contents::default(), machine)
            },
        };
        match self.open(&[]) {
            Ok(database) => (state, Some(database)),
            Err(error) => {
                tracing::error!(%error, "Journal cannot be used; the agent continues without it and will retry");
                state.trouble.error = Some(error);
                state.trouble.failed += 1;
                (state, None)
            }
        }
    }

    fn contents(&self, machine: &Identity) -> Result<Contents, JournalError> {
        let bytes = (self.0.read)().map_err(error::io("read"))?;
        parse(&bytes, machine).map_err(|_| JournalError::damaged())
    }
}

impl Store for SimulatedStore {
    fn open(&self, _rows: &[Row]) -> Result<Database, JournalError> {
        (self.0.open)().map_err(failed("open"))
    }
}
