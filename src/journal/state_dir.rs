//! The state directory. A usable journal in it is used; anything else is quarantined and replaced.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use redb::Database;

use super::{
    entries::WatchState,
    error::{self, JournalError, Kind},
    file::{self, Contents, FILE, JournalFile},
    header::Unusable,
    node_file::{self, NodeFile},
    quarantine,
    row::{HEADER, NODE_UID, PAUSE, Row, UNSTAGED, WATCH},
    state::JournalState,
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
        let (mut state, opened) = match file::inspect(&self.path(), &self.machine) {
            Err(error) if error.prevents_start() => return Err(error),
            Err(error) => (self.recover_unread_journal(&error), Err(error)),
            Ok(found) => {
                let state = match &found {
                    // A user who moved the journal away wants a new one.
                    JournalFile::Nothing => self.create_empty_state(),
                    JournalFile::Journal(contents) => self.with_node_file(self.load_contents(contents)),
                    JournalFile::Unusable(Unusable::OtherNode(_)) => self.create_empty_state(),
                    JournalFile::Unusable(_) => self.recover_unusable_journal(),
                };
                // Memory has the content of the file: if it cannot be opened now, it may be overwritten later.
                self.set_content_loaded(matches!(found, JournalFile::Journal(..)));
                let opened = self.open_found(found, &state.rows());
                (state, opened)
            }
        };
        let database = match opened {
            Ok(database) => Some(database),
            Err(error) if error.prevents_start() => return Err(error),
            Err(error) => {
                tracing::error!(
                    %error, dir = %self.dir.display(),
                    "Journal cannot be used; the agent continues without it and will retry: a restart would not continue terminations"
                );
                state.trouble.error = Some(error);
                state.trouble.failed += 1;
                None
            }
        };
        self.record(|node_file| {
            // Without a known ID it counts as the same node.
            node_file.node_uid = state.node_uid.clone().or(node_file.node_uid.take());
            node_file.paused.clone_from(&state.paused);
            node_file.absence_hold = absence_hold(&state.watch);
        });
        state.quarantined = self.quarantined();
        Ok((state, database))
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn set_content_loaded(&self, is_content_loaded: bool) {
        self.is_content_loaded.store(is_content_loaded, Ordering::Relaxed);
    }

    fn create_empty_state(&self) -> JournalState {
        JournalState::from_contents(Contents::default(), &self.machine)
    }

    /// The state for an unusable journal. It must not remove the hold for another Node or other holds.
    fn recover_unusable_journal(&self) -> JournalState {
        self.with_node_file(self.create_empty_state())
    }

    /// Adds the state of the file beside the journal, which has it if the journal lost its last writes.
    fn with_node_file(&self, state: JournalState) -> JournalState {
        let node_file = node_file::read(&self.dir, &self.machine);
        JournalState {
            node_uid: state.node_uid.or(node_file.node_uid),
            paused: state.paused.or(node_file.paused),
            watch: match (&state.watch.absence_hold_reason, node_file.absence_hold) {
                (None, Some(hold)) => WatchState {
                    highest: state.watch.highest,
                    ..hold
                },
                _ => state.watch,
            },
            ..state
        }
    }

    fn record(&self, change: impl FnOnce(&mut NodeFile)) {
        if let Err(error) = node_file::change(&self.dir, &self.machine, change) {
            tracing::warn!(
                %error,
                "Copy of the Node UID, the pause and the absence hold cannot be written; without the journal they would be lost"
            );
        }
    }

    /// The state for a journal that the disk does not return. Without the file beside it, any Node with this machine's IDs would
    /// be accepted.
    fn recover_unread_journal(&self, error: &JournalError) -> JournalState {
        let state = self.recover_unusable_journal();
        self.is_node_unknown.store(state.node_uid.is_none(), Ordering::Relaxed);
        JournalState {
            node_uid_read_error: state.node_uid.is_none().then(|| error.to_string()),
            ..state
        }
    }

    fn load_contents(&self, contents: &Contents) -> JournalState {
        let before = contents.header.as_ref().and_then(|header| header.boot_id.as_ref());
        if before.is_some() && before != self.machine.boot_id.as_ref() && !contents.pods.is_empty() {
            tracing::info!(
                pods = contents.pods.len(),
                "Node was rebooted while pods were terminating: the time since then counts as part of their grace periods"
            );
        }
        JournalState::from_contents(contents.clone(), &self.machine)
    }

    /// `rows` is the whole content.
    fn open_found(&self, found: JournalFile, rows: &[Row]) -> Result<Database, JournalError> {
        match found {
            JournalFile::Journal(..) if self.is_content_loaded.load(Ordering::Relaxed) => {
                match file::open(&self.path()) {
                    Ok(database) => {
                        // Only the rows that a reboot changes.
                        let of_boot = rows.iter().filter(|row| matches!(row, Row::Node(HEADER | UNSTAGED, _)));
                        let of_boot: Vec<_> = of_boot.cloned().collect();
                        return file::commit(&database, false, &of_boot).map(|()| database);
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
            let node = rows.iter().find_map(|row| match row {
                Row::Node(NODE_UID, uid) => Some(uid.as_str()),
                _ => None,
            });
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
        match row {
            Row::Node(NODE_UID, uid) => self.record(|node_file| node_file.node_uid = Some(uid.clone())),
            Row::Node(PAUSE, text) => {
                self.record(|node_file| node_file.paused = serde_json::from_str(text).unwrap_or_default());
            }
            Row::Node(WATCH, text) => self.record(|node_file| {
                node_file.absence_hold = serde_json::from_str(text).ok().and_then(|watch| absence_hold(&watch));
            }),
            Row::Node(..) | Row::Pod(..) => {}
        }
    }

    fn quarantined(&self) -> Vec<PathBuf> {
        quarantine::list(&self.dir)
    }
}

/// The part of the watch's state that blocks conclusions from absence. The rest needs the journal.
fn absence_hold(watch: &WatchState) -> Option<WatchState> {
    watch.absence_hold_reason.is_some().then(|| WatchState {
        highest: 0,
        ..watch.clone()
    })
}

fn make_dir(dir: &Path) -> Result<(), JournalError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(error::io("create the directory"))
}
