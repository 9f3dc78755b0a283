//! A journal on a disk of a simulation, without files and quarantine.

use std::{io, sync::Arc};

use redb::{Database, DatabaseError};

use super::{
    contents::{Contents, JournalState, Row},
    error::{self, JournalError, failed},
    file,
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

// === impl SimulatedDisk ===

impl SimulatedDisk {
    /// The state at the start, and the database if it can be opened.
    pub(super) fn start(&self, machine: &Identity) -> (JournalState, Option<Database>) {
        let contents = (self.read)()
            .map_err(error::io("read"))
            .and_then(|bytes| file::parse(&bytes, machine).map_err(|_| JournalError::damaged()));
        let mut state = JournalState {
            node_uid_read_error: contents.as_ref().err().map(ToString::to_string),
            contents: contents.unwrap_or_else(|_| Contents::default().on(machine)),
            ..JournalState::default()
        };
        // The row of the node is the first one in a new journal.
        let opened = self.open(&[]).and_then(|database| {
            file::commit(&database, false, &[state.contents.node.row()])?;
            Ok(database)
        });
        let database = opened.map_err(|error| state.trouble.begin(error)).ok();
        (state, database)
    }
}

impl Store for SimulatedDisk {
    fn open(&self, _rows: &[Row]) -> Result<Database, JournalError> {
        (self.open)().map_err(failed("open"))
    }
}
