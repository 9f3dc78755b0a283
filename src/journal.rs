//! What survives a crash: when a pod's end began, which hooks were begun and ended, which pods the API server has shown
//! here, and whose node this is.
//!
//! A copy in memory answers all questions. Writes are gathered and committed together, so that a hundred pods
//! that end at once cost a few syncs of the disk and not hundreds. After an error the database takes no more writes: it
//! is opened anew and the whole copy is written, again and again until that succeeds.
//!
//! `place (look → use | quarantine, make) → memory ⇄ writer → file`
//!
//! A journal that cannot be used is quarantined under another name, reported, and replaced by a new one: no pod waits for it,
//! and nothing of it is salvaged.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    model::pod::PodUid,
    node::{identity::Identity, kubelet_process::start::KubeletStart, threads::Blocking},
    teardown::journal::PodEntry,
};

mod error;
mod file;
mod header;
mod kubelet;
mod lent;
pub mod paused;
pub mod peek;
mod place;
mod pods;
mod quarantine;
pub mod seen;
pub mod turn;
mod whose;
mod writer;

pub use error::JournalError;
use file::{Contents, HEADER, NODE_UID, WATCH};
use header::Header;
pub use header::Unusable;
use lent::Lent;
use paused::Paused;
use place::Place;
use seen::Seen;
use turn::OwnTurn;
use writer::{Row, Store, Table, Write, Writer};

/// File in the state directory.
pub const FILE: &str = "journal.redb";
/// Nobody waits longer for the disk: it is the grace of pods that passes meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Nor so long for one that already hangs.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);

/// A disk that somebody else keeps.
#[derive(Clone)]
pub struct Disk {
    /// All that is on it.
    pub read: Arc<dyn Fn() -> std::io::Result<Vec<u8>> + Send + Sync>,
    /// Opens the database on it.
    pub open: Arc<dyn Fn() -> Result<redb::Database, redb::DatabaseError> + Send + Sync>,
}

/// What the watch of this node's pods must know after a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchMemory {
    /// The highest resourceVersion seen: an older world is another one.
    pub highest: u64,
    /// Why absence proves nothing any more.
    pub held: Option<String>,
    /// Since when.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// The journal is cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Journal {
    state: Arc<Mutex<State>>,
    writes: mpsc::UnboundedSender<Write>,
}

#[derive(Default)]
struct State {
    header: Option<Header>,
    node_uid: Option<String>,
    /// Why it cannot be read which Node was recorded.
    unread: Option<String>,
    watch: WatchMemory,
    paused: Option<Paused>,
    turn: Option<OwnTurn>,
    kubelet: Option<KubeletStart>,
    pods: HashMap<PodUid, PodEntry>,
    seen: BTreeMap<PodUid, Seen>,
    trouble: Trouble,
    cost: Cost,
    quarantined: Vec<PathBuf>,
}

/// What durable writes have cost since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// How many, each for all that was said since the one before.
    pub commits: u64,
    /// All of them together.
    pub took: Duration,
}

/// What is wrong with the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Why the journal cannot be written at the moment.
    pub error: Option<JournalError>,
    /// Writes that have failed since the start.
    pub failed: u64,
}

// === impl Journal ===

impl Journal {
    /// Opens or makes the journal of this machine in `dir` and starts its writer, in a tokio runtime. What cannot be used is
    /// moved aside; a disk that is full or broken is tried again later.
    ///
    /// # Errors
    /// When another process has it open, or rights or paths are wrong.
    pub fn open(dir: &Path, machine: &Identity) -> Result<Self, JournalError> {
        let place = Place::take(dir, machine)?;
        let (state, database) = place.start()?;
        Ok(Self::run(state, database, Arc::new(place), Blocking::default()))
    }

    /// Opens or makes the journal that `disk` keeps; it is written there.
    pub fn open_on(disk: Disk, blocking: Blocking, machine: &Identity) -> Self {
        let store = Lent(disk);
        let (state, database) = store.start(machine);
        Self::run(state, database, Arc::new(store), blocking)
    }

    fn run(state: State, database: Option<redb::Database>, store: Arc<dyn Store>, blocking: Blocking) -> Self {
        let state = Arc::new(Mutex::new(state));
        let (writes, queue) = mpsc::unbounded_channel();
        let writer = Writer {
            store,
            blocking,
            database,
            state: Arc::clone(&state),
        };
        tokio::spawn(writer.run(queue));
        Self { state, writes }
    }

    /// A journal in memory only. It must be made in a tokio runtime.
    pub fn forgetful() -> Self {
        let (writes, mut queue) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(write) = queue.recv().await {
                if let Write::Durable(done) = write {
                    // Nobody waits any more: nothing is lost.
                    done.send(Ok(())).ok();
                }
            }
        });
        Self {
            state: Arc::default(),
            writes,
        }
    }

    /// UID of the Node that this journal was made for.
    pub fn node_uid(&self) -> Option<String> {
        self.lock().node_uid.clone()
    }

    /// Why it is not known for which Node this journal was made, though there is one. An agent that is started again when
    /// the disk can be read knows it.
    pub fn unread(&self) -> Option<String> {
        self.lock().unread.clone()
    }

    /// Records the Node that this journal is made for. It counts from now on; an error says that a restart would not know
    /// it yet.
    pub async fn set_node_uid(&self, uid: &str) -> Result<(), JournalError> {
        self.lock().node_uid = Some(uid.to_owned());
        self.send(Write::Row(Row::Node(NODE_UID, uid.to_owned())));
        self.durable().await
    }

    /// Journals that could not be used and are kept beside this one, until a user removes them.
    pub fn quarantined(&self) -> Vec<PathBuf> {
        self.lock().quarantined.clone()
    }

    /// What is wrong with the disk.
    pub fn trouble(&self) -> Trouble {
        self.lock().trouble.clone()
    }

    /// What durable writes have cost since the start.
    pub fn cost(&self) -> Cost {
        self.lock().cost
    }

    /// What the watch knew when it last told.
    pub fn watch_memory(&self) -> WatchMemory {
        self.lock().watch.clone()
    }

    /// Records what the watch knows. Durable soon, not at once.
    pub fn remember_watch(&self, memory: WatchMemory) {
        let mut state = self.lock();
        if state.watch != memory {
            self.send(Write::Row(memory.row()));
            state.watch = memory;
        }
    }

    /// Returns when everything said before is on the disk, or has not come there for too long.
    pub async fn durable(&self) -> Result<(), JournalError> {
        let (done, durable) = oneshot::channel();
        self.send(Write::Durable(done));
        let hangs = self.lock().trouble.error.as_ref() == Some(&JournalError::hangs());
        let patience = if hangs { SHORT_PATIENCE } else { PATIENCE };
        match timeout(patience, durable).await {
            Ok(durable) => durable.unwrap_or_else(|_| Err(JournalError::stopped())),
            Err(_) => {
                let error = JournalError::hangs();
                let trouble = &mut self.lock().trouble;
                trouble.failed += 1;
                trouble.error.get_or_insert_with(|| error.clone());
                Err(error)
            }
        }
    }

    fn send(&self, write: Write) {
        // The writer ends only with the runtime; `durable` reports it.
        self.writes.send(write).ok();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl State ===

impl State {
    /// What a journal of this machine holds.
    fn of(contents: Contents, machine: &Identity) -> Self {
        Self {
            header: Some(Header::of(machine, contents.header.as_ref())),
            node_uid: contents.node_uid,
            watch: contents.watch,
            paused: contents.paused,
            turn: contents.turn,
            kubelet: contents.kubelet,
            pods: contents.pods,
            seen: contents.seen,
            ..Self::default()
        }
    }

    fn rows(&self) -> Vec<Row> {
        let header = self.header.iter().map(Header::row);
        let uid = self.node_uid.iter().map(|uid| Row::Node(NODE_UID, uid.clone()));
        let pods = self.pods.iter();
        let seen = self.seen.iter();
        header
            .chain(uid)
            .chain([
                self.watch.row(),
                Paused::row(self.paused.as_ref()),
                OwnTurn::row(self.turn.as_ref()),
                kubelet::row(self.kubelet.as_ref()),
            ])
            .chain(pods.map(|(uid, entry)| Row::Pod(Table::Ends, uid.clone(), Some(entry.bytes()))))
            .chain(seen.map(|(uid, seen)| Row::Pod(Table::Seen, uid.clone(), Some(seen.bytes()))))
            .collect()
    }
}

impl WatchMemory {
    fn row(&self) -> Row {
        Row::Node(WATCH, serde_json::to_string(self).unwrap_or_default())
    }
}

impl Header {
    fn row(&self) -> Row {
        Row::Node(HEADER, serde_json::to_string(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
