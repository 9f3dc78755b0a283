//! Where the journal lives, and what becomes of what is found there: a journal of ours is used, anything else is kept
//! aside and a new one takes its place.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use redb::Database;
use serde_json::json;

use super::{
    FILE, JournalError, State, WatchMemory,
    aside::{self, Aside, Reason},
    error::{self, Kind},
    file::{self, Contents, Found, HEADER, NODE_UID, PAUSE, WATCH},
    paused::Paused,
    whose::{self, Whose},
    writer::{Row, Store, Table},
};
use crate::{
    model::pod::PodUid,
    node::{
        host::PROC,
        identity::Identity,
        lock::{LockError, PodsLock},
    },
};

/// The state directory, locked for as long as this lives.
pub(super) struct Place {
    dir: PathBuf,
    machine: Identity,
    /// The file there is the one that this agent has read or made: what it holds is in memory.
    ours: AtomicBool,
    /// Whose journal it is could not be read: it stays as it is, for the next start.
    blind: AtomicBool,
    /// A file that was kept aside keeps no other agent out: the lock must be on what stays.
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
                let mut moved = Vec::new();
                let mut state = match &found {
                    // Whoever moved a journal away has decided to begin anew.
                    Found::Nothing => self.empty(),
                    Found::Journal(contents, bytes) => {
                        if contents.repaired {
                            self.keep_copy(bytes);
                        }
                        moved = self.keep_rows(&contents.unreadable);
                        self.with_what_is_beside(self.known(contents))
                    }
                    Found::Useless(Reason::OtherMachine(_)) => self.empty(),
                    Found::Useless(_) => self.nothing_known(),
                };
                if !moved.is_empty() {
                    state.unreadable.clear();
                }
                // What is on the disk is known: if it cannot be opened now, it may be written over later.
                self.set_ours(matches!(found, Found::Journal(..)));
                let opened = self.open_found(found, &state.rows(), &moved);
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
        state.asides = self.asides();
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

    /// `rows` are all there is to write, `moved` those of a journal of ours that are safe elsewhere.
    fn open_found(&self, found: Found, rows: &[Row], moved: &[Row]) -> Result<Database, JournalError> {
        match found {
            Found::Journal(..) if self.ours.load(Ordering::Relaxed) => match file::open(&self.path()) {
                Ok(database) => {
                    let header = rows.iter().filter(|row| matches!(row, Row::Node(HEADER, _)));
                    let first: Vec<_> = header.chain(moved).cloned().collect();
                    return file::commit(&database, false, &first).map(|()| database);
                }
                // It was whole a moment ago, as a copy in memory.
                Err(JournalError {
                    kind: Kind::Damaged,
                    cause,
                    ..
                }) => self.replace(Some(&Reason::Damaged(cause)), rows)?,
                Err(error) => return Err(error),
            },
            Found::Journal(..) => self.replace(Some(&Reason::Unread), rows)?,
            Found::Useless(reason) => self.replace(Some(&reason), rows)?,
            Found::Nothing => self.replace(None, rows)?,
        }
        self.set_ours(true);
        file::open(&self.path())
    }

    /// Makes a new journal that holds these rows, in the place of what is there.
    fn replace(&self, useless: Option<&Reason>, rows: &[Row]) -> Result<(), JournalError> {
        let (path, new) = (self.path(), self.path().with_extension("new"));
        // The disk may have been too full for it at the start.
        make_dir(&self.dir)?;
        file::make(&new, rows)?;
        let kept = useless.map(|reason| aside::keep(&path, reason)).transpose()?;
        fs::rename(&new, &path)
            .and_then(|()| file::sync_dir(&self.dir))
            .map_err(error::io("make"))?;
        if let (Some(reason), Some(kept)) = (useless, kept) {
            let node = rows.iter().find_map(|row| match row {
                Row::Node(NODE_UID, uid) => Some(uid.as_str()),
                _ => None,
            });
            let recorded = match (reason, node) {
                (_, Some(uid)) => format!("this is still the Node with UID {uid}"),
                (Reason::OtherMachine(_), None) => "this machine's Node is recorded anew".to_owned(),
                (_, None) => {
                    "which Node this was is lost, too, and the next one that this machine's ids fit is taken".to_owned()
                }
            };
            tracing::error!(
                kept = %kept.display(), why = reason.told(),
                "Journal cannot be used and is kept aside; the agent goes on with what API server and runtime say. Pods that were ending here get their grace anew, hooks that have ended may run again, kills and evictions that go on are forgotten, and {recorded}"
            );
        }
        Ok(())
    }

    fn keep_copy(&self, bytes: &[u8]) {
        let kept = aside::write(&self.path(), &Reason::Repaired, bytes);
        tracing::error!(
            kept = place_of(&kept),
            "Journal was damaged and is repaired: the last that was written may be lost, such as the end of a hook, which then runs again"
        );
    }

    /// What is to be removed from the journal, once it is safe elsewhere.
    fn keep_rows(&self, unreadable: &[(Table, String, Vec<u8>)]) -> Vec<Row> {
        if unreadable.is_empty() {
            return Vec::new();
        }
        let lines: String = unreadable.iter().map(|(_, uid, bytes)| as_line(uid, bytes)).collect();
        let kept = aside::write(&self.path(), &Reason::Rows, lines.as_bytes());
        for (table, uid, _) in unreadable {
            match table {
                Table::Ends => tracing::error!(
                    pod.uid = uid,
                    kept = place_of(&kept),
                    "Entry of the journal cannot be read: if this pod is ending, it gets its grace anew, and hooks that have ended run again"
                ),
                Table::Seen => tracing::warn!(
                    pod.uid = uid,
                    kept = place_of(&kept),
                    "Entry of the journal cannot be read: if this pod is gone and has left anything here, that is told and not taken away"
                ),
            }
        }
        match kept {
            Ok(_) => unreadable
                .iter()
                .map(|(table, uid, _)| Row::Pod(*table, PodUid::from(uid.as_str()), None))
                .collect(),
            // They stay where they are, and are told again at the next start.
            Err(_) => Vec::new(),
        }
    }
}

impl Store for Place {
    fn open(&self, rows: &[Row]) -> Result<Database, JournalError> {
        let found = file::look(&self.path(), &self.machine)?;
        if self.blind.load(Ordering::Relaxed) {
            let why = "it could not be read at the start; start the agent again, to go on with what it holds";
            return Err(JournalError::new("open", why, Kind::Disk));
        }
        self.open_found(found, rows, &[])
    }

    fn holds(&self, row: &Row) {
        match row {
            Row::Node(NODE_UID, uid) => self.record(|whose| whose.node_uid = Some(uid.clone())),
            Row::Node(PAUSE, told) => self.record(|whose| whose.paused = Paused::read(told)),
            Row::Node(WATCH, told) => self.record(|whose| {
                whose.held = serde_json::from_str(told).ok().and_then(|watch| held(&watch));
            }),
            Row::Node(..) | Row::Pod(..) => {}
        }
    }

    fn asides(&self) -> Vec<Aside> {
        aside::list(&self.dir)
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

fn place_of(kept: &Result<PathBuf, JournalError>) -> String {
    match kept {
        Ok(path) => path.display().to_string(),
        Err(error) => format!("nowhere: {error}"),
    }
}

fn as_line(uid: &str, bytes: &[u8]) -> String {
    let line = match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "uid": uid, "text": text }),
        Err(_) => json!({ "uid": uid, "base64": BASE64_STANDARD.encode(bytes) }),
    };
    format!("{line}\n")
}
