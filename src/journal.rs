//! State that survives a crash: terminations with their grace periods and hooks, the pods that the API server has shown, the
//! Node.
//!
//! A copy in memory serves all reads. Writes are batched and committed together: a hundred pods that terminate at once cost a few
//! syncs of the disk. After an error the database is opened again and the whole copy is written, until that succeeds.
//!
//! `state_dir (inspect → use | quarantine, create) → memory ⇄ writer → file`
//!
//! An unusable journal is quarantined under another name, reported, and replaced by a new one. No pod waits for it, and nothing
//! of it is salvaged.

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
pub mod last_active;
mod node_file;
pub mod paused;
pub mod peek;
mod pods;
mod quarantine;
pub mod seen;
mod simulated_disk;
mod state_dir;
mod writer;

pub use error::JournalError;
use file::{Contents, HEADER, NODE_UID, WATCH};
use header::Header;
pub use header::Unusable;
use last_active::LastActive;
use paused::Paused;
use seen::Seen;
use simulated_disk::SimulatedDisk;
use state_dir::StateDir;
use writer::{Row, Store, Table, Write, Writer};

/// File in the state directory.
pub const FILE: &str = "journal.redb";
/// Longest wait for the disk: grace periods run meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for a disk that already hangs.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);

/// A disk of a simulation.
#[derive(Clone)]
pub struct Disk {
    /// Reads all bytes of the disk.
    pub read: Arc<dyn Fn() -> std::io::Result<Vec<u8>> + Send + Sync>,
    /// Opens the database on it.
    pub open: Arc<dyn Fn() -> Result<redb::Database, redb::DatabaseError> + Send + Sync>,
}

/// State of the watch that must survive a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchState {
    /// The highest resourceVersion seen. A complete list with an older one is of a restored etcd.
    pub highest: u64,
    /// Why absence proves nothing.
    pub held: Option<String>,
    /// Since when.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// The journal. Clones share it.
#[derive(Clone)]
pub struct Journal {
    state: Arc<Mutex<State>>,
    writes: mpsc::UnboundedSender<Write>,
}

#[derive(Default)]
struct State {
    header: Option<Header>,
    node_uid: Option<String>,
    /// Why the recorded Node UID cannot be read.
    unread: Option<String>,
    watch: WatchState,
    paused: Option<Paused>,
    turn: Option<LastActive>,
    kubelet: Option<KubeletStart>,
    pods: HashMap<PodUid, PodEntry>,
    seen: BTreeMap<PodUid, Seen>,
    trouble: Trouble,
    cost: Cost,
    quarantined: Vec<PathBuf>,
}

/// Cost of durable writes since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of commits.
    pub commits: u64,
    /// Their total duration.
    pub took: Duration,
}

/// Write errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Why the journal cannot be written now.
    pub error: Option<JournalError>,
    /// Failed writes since the start.
    pub failed: u64,
}

// === impl Journal ===

impl Journal {
    /// Opens or creates the journal of this node in `dir` and starts its writer, in a tokio runtime. An unusable journal is
    /// quarantined; a full or broken disk is retried later.
    ///
    /// # Errors
    /// If another process has it open, or rights or paths are wrong.
    pub fn open(dir: &Path, machine: &Identity) -> Result<Self, JournalError> {
        let state_dir = StateDir::lock(dir, machine)?;
        let (state, database) = state_dir.start()?;
        Ok(Self::run(state, database, Arc::new(state_dir), Blocking::default()))
    }

    /// Opens or creates the journal on a simulated disk.
    pub fn open_on(disk: Disk, blocking: Blocking, machine: &Identity) -> Self {
        let store = SimulatedDisk(disk);
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

    /// A journal only in memory. Call it in a tokio runtime.
    pub fn in_memory() -> Self {
        let (writes, mut queue) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(write) = queue.recv().await {
                if let Write::Durable(done) = write {
                    // The caller may have stopped waiting.
                    done.send(Ok(())).ok();
                }
            }
        });
        Self {
            state: Arc::default(),
            writes,
        }
    }

    /// UID of the Node that this journal is for.
    pub fn node_uid(&self) -> Option<String> {
        self.lock().node_uid.clone()
    }

    /// Why the Node UID of an existing journal cannot be read. A restart may succeed when the disk can be read.
    pub fn unread(&self) -> Option<String> {
        self.lock().unread.clone()
    }

    /// Records the Node UID. It applies at once.
    ///
    /// # Errors
    /// If it is not durable: a restart would not have it yet.
    pub async fn set_node_uid(&self, uid: &str) -> Result<(), JournalError> {
        self.lock().node_uid = Some(uid.to_owned());
        self.send(Write::Row(Row::Node(NODE_UID, uid.to_owned())));
        self.durable().await
    }

    /// Quarantined journals, until a user removes them.
    pub fn quarantined(&self) -> Vec<PathBuf> {
        self.lock().quarantined.clone()
    }

    /// Write errors.
    pub fn trouble(&self) -> Trouble {
        self.lock().trouble.clone()
    }

    /// Cost of durable writes since the start.
    pub fn cost(&self) -> Cost {
        self.lock().cost
    }

    /// The last recorded state of the watch.
    pub fn watch_state(&self) -> WatchState {
        self.lock().watch.clone()
    }

    /// Records the state of the watch. It is durable later.
    pub fn set_watch_state(&self, memory: WatchState) {
        let mut state = self.lock();
        if state.watch != memory {
            self.send(Write::Row(memory.row()));
            state.watch = memory;
        }
    }

    /// Returns when all changes so far are durable.
    ///
    /// # Errors
    /// If they are not after 2 s, or cannot be written.
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
        // The writer stops only with the runtime. `durable` reports that.
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
    /// The state in a journal of this node.
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
                LastActive::row(self.turn.as_ref()),
                kubelet::row(self.kubelet.as_ref()),
            ])
            .chain(pods.map(|(uid, entry)| Row::Pod(Table::Terminations, uid.clone(), Some(entry.bytes()))))
            .chain(seen.map(|(uid, seen)| Row::Pod(Table::Seen, uid.clone(), Some(seen.bytes()))))
            .collect()
    }
}

impl WatchState {
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
