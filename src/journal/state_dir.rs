//! The state directory. A usable journal in it is used; anything else is quarantined and replaced.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use redb::Database;

use super::{
    contents::{Contents, JournalState, NodeRow, Row, Table, WatchState},
    error::{self, JournalError, Kind, Unusable},
    file::{self, FILE, JournalFile},
    node_file, quarantine,
    writer::Store,
};
use crate::node::{
    identity::Identity,
    lock::{DirLock, LockError},
};

/// The state directory, locked until this is dropped.
pub(super) struct StateDir {
    dir: PathBuf,
    machine: Identity,
    /// This agent has read the file into memory, or has created it.
    is_content_loaded: AtomicBool,
    /// The node of the journal could not be read: it stays unchanged for the next start.
    is_node_unknown: AtomicBool,
    /// The lock of a quarantined file does not keep other agents out: the directory is locked, too.
    _lock: Option<DirLock>,
}

// === impl StateDir ===

impl StateDir {
    /// Creates and locks the directory.
    pub fn lock(dir: &Path, machine: &Identity) -> Result<Self, JournalError> {
        let made = make_dir(dir);
        let lock = match made.as_ref().map(|()| DirLock::acquire(dir, Path::new("/"))) {
            Ok(Ok(lock)) => Some(lock),
            Ok(Err(taken @ LockError::Taken { .. })) => return Err(JournalError::new("lock", &taken, Kind::InUse)),
            // Some file systems have no locks. The database has its own.
            Ok(Err(LockError::Failed(_))) => None,
            Err(error) if error.prevents_start() => return Err(error.clone()),
            // The next steps fail, too, with the cause.
            Err(_) => None,
        };
        Ok(Self {
            dir: dir.to_owned(),
            machine: machine.clone(),
            is_content_loaded: AtomicBool::new(false),
            is_node_unknown: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// The state at the start, and the database if it can be opened.
    ///
    /// # Errors
    /// If a user must correct the cause.
    pub fn start(&self) -> Result<(JournalState, Option<Database>), JournalError> {
        let mut state = JournalState::default();
        let found = file::inspect(&self.path(), &self.machine);
        state.contents = match &found {
            Err(error) if error.prevents_start() => return Err(error.clone()),
            // A user who moved the journal away wants a new one.
            Ok(JournalFile::Nothing | JournalFile::Unusable(Unusable::OtherNode(_))) => self.empty(),
            Ok(JournalFile::Journal(contents)) => self.with_node_file((**contents).clone()),
            // The holds and the UID of the Node stay.
            Ok(JournalFile::Unusable(_)) | Err(_) => self.with_node_file(self.empty()),
        };
        let opened = match found {
            Ok(found) => {
                // Memory has the content of the file: if it cannot be opened now, it may be overwritten later.
                self.set_content_loaded(matches!(found, JournalFile::Journal(..)));
                self.open_found(found, &state.contents.rows())
            }
            Err(error) => {
                // Without the file beside the journal, any Node with this machine's IDs would be accepted.
                if state.contents.node.node_uid.is_none() {
                    self.is_node_unknown.store(true, Ordering::Relaxed);
                    state.node_uid_read_error = Some(error.to_string());
                }
                Err(error)
            }
        };
        let database = match opened {
            Err(error) if error.prevents_start() => return Err(error),
            opened => opened.map_err(|error| state.trouble.begin(error)).ok(),
        };
        self.record(&state.contents.node);
        state.quarantined = self.quarantined();
        Ok((state, database))
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn set_content_loaded(&self, is_content_loaded: bool) {
        self.is_content_loaded.store(is_content_loaded, Ordering::Relaxed);
    }

    fn empty(&self) -> Contents {
        Contents::default().on(&self.machine)
    }

    /// Adds what the file beside the journal has and the journal lacks, for example because it lost its last writes.
    fn with_node_file(&self, mut contents: Contents) -> Contents {
        let (node, kept) = (&mut contents.node, node_file::read(&self.dir, &self.machine));
        node.node_uid = node.node_uid.take().or(kept.node_uid);
        node.paused = node.paused.take().or(kept.paused);
        if node.watch.absence_hold_reason.is_none() {
            node.watch = WatchState {
                highest: node.watch.highest,
                ..kept.watch
            };
        }
        contents
    }

    fn record(&self, node: &NodeRow) {
        if let Err(error) = node_file::record(&self.dir, &self.machine, node) {
            tracing::warn!(
                %error,
                "Copy of the Node UID, the pause and the absence hold cannot be written; without the journal they would be lost"
            );
        }
    }

    /// `rows` is the whole content.
    fn open_found(&self, found: JournalFile, rows: &[Row]) -> Result<Database, JournalError> {
        match found {
            JournalFile::Journal(..) if self.is_content_loaded.load(Ordering::Relaxed) => {
                match file::open(&self.path()) {
                    Ok(database) => {
                        // Only a reboot changes a row, that of the node.
                        let of_node = rows.iter().filter(|row| row.table == Table::Node);
                        let of_node: Vec<_> = of_node.cloned().collect();
                        return file::commit(&database, false, &of_node).map(|()| database);
                    }
                    // It was undamaged before, in a copy in memory.
                    Err(error) if error.kind == Kind::Damaged => self.replace(Some(&error.into()), rows)?,
                    Err(error) => return Err(error),
                }
            }
            JournalFile::Journal(..) => self.replace(Some(&Unusable::Unread), rows)?,
            JournalFile::Unusable(reason) => self.replace(Some(&reason), rows)?,
            JournalFile::Nothing => self.replace(None, rows)?,
        }
        self.set_content_loaded(true);
        file::open(&self.path())
    }

    /// Replaces the journal by a new one with these rows.
    fn replace(&self, unusable: Option<&Unusable>, rows: &[Row]) -> Result<(), JournalError> {
        let (path, new) = (self.path(), self.path().with_extension("new"));
        // At the start the disk may have been too full for it.
        make_dir(&self.dir)?;
        file::create_journal(&new, rows)?;
        let quarantined = unusable.map(|_| quarantine::add(&path)).transpose()?;
        fs::rename(&new, &path)
            .and_then(|()| file::sync_dir(&self.dir))
            .map_err(error::io("create"))?;
        if let (Some(reason), Some(quarantined)) = (unusable, quarantined) {
            let node = rows.iter().find_map(node_of).and_then(|node| node.node_uid);
            let recorded = match (reason, node) {
                (_, Some(uid)) => format!("the Node UID stays {uid}"),
                (Unusable::OtherNode(_), None) => "the UID of this machine's Node is recorded again".to_owned(),
                (_, None) => {
                    "the Node UID is lost as well: the next Node with this machine's IDs is accepted".to_owned()
                }
            };
            tracing::error!(
                quarantined = %quarantined.display(), %reason,
                "Journal cannot be used: it is quarantined, and a new one is created from the API server and the runtime. Terminating pods get their whole grace period again. Finished preStop hooks may run again. Requests to stop pods are lost. Leftovers of pods deleted before are reported and not removed. A CSI volume whose file system is active without a mount may count as unused; {recorded}"
            );
        }
        Ok(())
    }
}

impl Store for StateDir {
    fn open(&self, rows: &[Row]) -> Result<Database, JournalError> {
        let found = file::inspect(&self.path(), &self.machine)?;
        if self.is_node_unknown.load(Ordering::Relaxed) {
            let why = "it could not be read when the agent started; restart the agent to continue with its content";
            return Err(JournalError::new("open", why, Kind::Disk));
        }
        self.open_found(found, rows)
    }

    fn on_durable(&self, row: &Row) {
        if let Some(node) = node_of(row) {
            self.record(&node);
        }
    }

    fn quarantined(&self) -> Vec<PathBuf> {
        quarantine::list(&self.dir)
    }
}

/// The content of the row of the node.
fn node_of(row: &Row) -> Option<NodeRow> {
    let value = row.value.as_ref().filter(|_| row.table == Table::Node)?;
    serde_json::from_slice(value).ok()
}

fn make_dir(dir: &Path) -> Result<(), JournalError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(error::io("create the directory"))
}
