//! Where the journal lives, and what becomes of what is found there: a journal of ours is used, anything else is quarantined
//! and a new one takes its place.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    slice,
    sync::atomic::{AtomicBool, Ordering},
};

use redb::Database;

use super::{
    FILE, JournalError, State, Unusable, WatchMemory,
    error::{self, Kind},
    file::{self, Contents, Found, HEADER, NODE_UID, PAUSE, WATCH},
    quarantine,
    whose::{self, Whose},
    writer::{Row, Store},
};
use crate::node::{
    host::PROC,
    identity::Identity,
    lock::{LockError, PodsLock},
};

/// The state directory, locked for as long as this lives.
pub(super) struct Place {
    dir: PathBuf,
    machine: Identity,
    /// The file there is the one that this agent has read or made: what it holds is in memory.
    ours: AtomicBool,
    /// Whose journal it is could not be read: it stays as it is, for the next start.
    blind: AtomicBool,
    /// A quarantined file keeps no other agent out: the lock must be on what stays.
    _lock: Option<PodsLock>,
}

// === impl Place ===

impl Place {
    /// Makes the directory where it is missing, and locks it.
    pub fn take(dir: &Path, machine: &Identity) -> Result<Self, JournalError> {
        let made = make_dir(dir);
        let lock = match made.as_ref().map(|()| PodsLock::acquire(dir, Path::new(PROC))) {
            Ok(Ok(lock)) => Some(lock),
            Ok(Err(taken @ LockError::Taken { .. })) => return Err(JournalError::new("lock", &taken, Kind::InUse)),
            // File systems without locks: the database has one of its own.
            Ok(Err(LockError::Failed(_))) => None,
            Err(error) if error.forbids_the_start() => return Err(error.clone()),
            // What follows fails, too, and says why.
            Err(_) => None,
        };
        Ok(Self {
            dir: dir.to_owned(),
            machine: machine.clone(),
            ours: AtomicBool::new(false),
            blind: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// What is known at the start, and the journal if the disk lets it be used. An error is one that only a person can set
    /// right.
    pub fn start(&self) -> Result<(State, Option<Database>), JournalError> {
        let (mut state, opened) = match file::look(&self.path(), &self.machine) {
            Err(error) if error.forbids_the_start() => return Err(error),
            Err(error) => (self.unread(&error), Err(error)),
            Ok(found) => {
                let state = match &found {
                    // A user who moved the journal away has decided to begin anew.
                    Found::Nothing => self.empty(),
                    Found::Journal(contents) => self.with_what_is_beside(self.known(contents)),
                    Found::Unusable(Unusable::OtherMachine(_)) => self.empty(),
                    Found::Unusable(_) => self.nothing_known(),
                };
                // What is on the disk is known: if it cannot be opened now, it may be written over later.
                self.set_ours(matches!(found, Found::Journal(..)));
                let opened = self.open_found(found, &state.rows());
                (state, opened)
            }
        };
        let database = match opened {
            Ok(database) => Some(database),
            Err(error) if error.forbids_the_start() => return Err(error),
            Err(error) => {
                tracing::error!(
                    %error, dir = %self.dir.display(),
                    "Journal cannot be used; the agent goes on without it and tries again: a restart would not know what was begun"
                );
                state.trouble.error = Some(error);
                state.trouble.failed += 1;
                None
            }
        };
        self.record(|whose| {
            // One that is not known is not known to be another.
            whose.node_uid = state.node_uid.clone().or(whose.node_uid.take());
            whose.paused.clone_from(&state.paused);
            whose.held = held(&state.watch);
        });
        state.quarantined = self.quarantined();
        Ok((state, database))
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn set_ours(&self, ours: bool) {
        self.ours.store(ours, Ordering::Relaxed);
    }

    fn empty(&self) -> State {
        State::of(Contents::default(), &self.machine)
    }

    /// A journal was here, and cannot be read. It must not be a way around the hold for another Node, nor around what else
    /// holds the agent back.
    fn nothing_known(&self) -> State {
        self.with_what_is_beside(self.empty())
    }

    /// What the journal does not say, as one that has lost its last writes without anybody noticing, the file beside it may.
    fn with_what_is_beside(&self, state: State) -> State {
        let whose = whose::read(&self.dir, &self.machine);
        let (held, since) = whose.held.map(|watch| (watch.held, watch.since)).unwrap_or_default();
        State {
            node_uid: state.node_uid.or(whose.node_uid),
            paused: state.paused.or(whose.paused),
            watch: match state.watch.held {
                Some(_) => state.watch,
                None => WatchMemory {
                    held,
                    since,
                    ..state.watch
                },
            },
            ..state
        }
    }

    fn record(&self, change: impl FnOnce(&mut Whose)) {
        if let Err(error) = whose::change(&self.dir, &self.machine, change) {
            tracing::warn!(
                %error,
                "Which Node this is, and what is held back, cannot be recorded a second time; without the journal it would be lost"
            );
        }
    }

    /// A journal is here, and the disk does not give it. Without it, and without what is beside it, any Node that this
    /// machine's ids fit would be taken.
    fn unread(&self, error: &JournalError) -> State {
        let state = self.nothing_known();
        self.blind.store(state.node_uid.is_none(), Ordering::Relaxed);
        State {
            unread: state.node_uid.is_none().then(|| error.to_string()),
            ..state
        }
    }

    fn known(&self, contents: &Contents) -> State {
        let before = contents.header.as_ref().and_then(|header| header.boot_id.as_ref());
        if before.is_some() && before != self.machine.boot_id.as_ref() && !contents.pods.is_empty() {
            tracing::info!(
                pods = contents.pods.len(),
                "Machine was rebooted while pods were ending: the time since then counts as used of their grace"
            );
        }
        State::of(contents.clone(), &self.machine)
    }

    /// `rows` are all there is to write.
    fn open_found(&self, found: Found, rows: &[Row]) -> Result<Database, JournalError> {
        match found {
            Found::Journal(..) if self.ours.load(Ordering::Relaxed) => match file::open(&self.path()) {
                Ok(database) => {
                    let header = rows.iter().find(|row| matches!(row, Row::Node(HEADER, _)));
                    return file::commit(&database, false, header.map_or(&[], slice::from_ref)).map(|()| database);
                }
                // It was whole a moment ago, as a copy in memory.
                Err(error) if error.kind == Kind::Damaged => self.replace(Some(&error.into()), rows)?,
                Err(error) => return Err(error),
            },
            Found::Journal(..) => self.replace(Some(&Unusable::Unread), rows)?,
            Found::Unusable(reason) => self.replace(Some(&reason), rows)?,
            Found::Nothing => self.replace(None, rows)?,
        }
        self.set_ours(true);
        file::open(&self.path())
    }

    /// Makes a new journal that holds these rows, in the place of what is there.
    fn replace(&self, unusable: Option<&Unusable>, rows: &[Row]) -> Result<(), JournalError> {
        let (path, new) = (self.path(), self.path().with_extension("new"));
        // The disk may have been too full for it at the start.
        make_dir(&self.dir)?;
        file::make(&new, rows)?;
        let quarantined = unusable.map(|_| quarantine::add(&path)).transpose()?;
        fs::rename(&new, &path)
            .and_then(|()| file::sync_dir(&self.dir))
            .map_err(error::io("make"))?;
        if let (Some(reason), Some(quarantined)) = (unusable, quarantined) {
            let node = rows.iter().find_map(|row| match row {
                Row::Node(NODE_UID, uid) => Some(uid.as_str()),
                _ => None,
            });
            let recorded = match (reason, node) {
                (_, Some(uid)) => format!("this is still the Node with UID {uid}"),
                (Unusable::OtherMachine(_), None) => "this machine's Node is recorded anew".to_owned(),
                (_, None) => {
                    "the UID of the Node is lost, too: the next Node that has this machine's ids is accepted".to_owned()
                }
            };
            tracing::error!(
                quarantined = %quarantined.display(), %reason,
                "Journal cannot be used: it is quarantined, and the agent begins a new one from what API server and runtime report. Terminating pods get their whole grace period again, preStop hooks that have ended may run again, requests to stop or evict pods are forgotten, what pods have left that were deleted before is reported and not removed, and {recorded}"
            );
        }
        Ok(())
    }
}

impl Store for Place {
    fn open(&self, rows: &[Row]) -> Result<Database, JournalError> {
        let found = file::look(&self.path(), &self.machine)?;
        if self.blind.load(Ordering::Relaxed) {
            let why = "it could not be read at the start; start the agent again, to go on with what it holds";
            return Err(JournalError::new("open", why, Kind::Disk));
        }
        self.open_found(found, rows)
    }

    fn holds(&self, row: &Row) {
        match row {
            Row::Node(NODE_UID, uid) => self.record(|whose| whose.node_uid = Some(uid.clone())),
            Row::Node(PAUSE, told) => {
                self.record(|whose| whose.paused = serde_json::from_str(told).unwrap_or_default());
            }
            Row::Node(WATCH, told) => self.record(|whose| {
                whose.held = serde_json::from_str(told).ok().and_then(|watch| held(&watch));
            }),
            Row::Node(..) | Row::Pod(..) => {}
        }
    }

    fn quarantined(&self) -> Vec<PathBuf> {
        quarantine::list(&self.dir)
    }
}

/// What holds back whatever would follow from absence; the rest of it is worth nothing without the journal.
fn held(watch: &WatchMemory) -> Option<WatchMemory> {
    watch.held.is_some().then(|| WatchMemory {
        highest: 0,
        ..watch.clone()
    })
}

fn make_dir(dir: &Path) -> Result<(), JournalError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(error::io("make the directory"))
}
