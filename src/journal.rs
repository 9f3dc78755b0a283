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
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::node::{identity::Identity, threads::Blocking};

mod contents;
mod error;
mod file;
mod node_file;
pub mod observations;
pub mod peek;
mod pod_entry;
mod quarantine;
mod seen_pods;
mod simulated_disk;
mod state_dir;
mod terminations;
mod writer;

use contents::JournalState;
pub use contents::{AbsenceHoldKind, Approval, LastActive, NodeRow, SeenPod, WatchState};
use error::DISK_TIMEOUT;
pub use error::{JournalError, Trouble, Unusable};
pub use file::FILE;
pub use pod_entry::{ContainerExit, Exits, HookEntry, KnownProcess, PodEntry, Request};
pub use simulated_disk::SimulatedDisk;
use state_dir::StateDir;
use writer::{Store, Write, Writer};

/// Number of approvals that are kept.
const MAX_APPROVALS: usize = 16;
/// Longest wait for a disk that already hangs.
const HANGING_DISK_TIMEOUT: Duration = Duration::from_millis(100);

/// The journal. Clones share it.
#[derive(Clone, Default)]
pub struct Journal {
    state: Arc<Mutex<JournalState>>,
    /// `None` if it is only in memory.
    writes: Option<mpsc::UnboundedSender<Write>>,
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
    pub fn open_simulated(disk: SimulatedDisk, blocking: Blocking, machine: &Identity) -> Self {
        let (state, database) = disk.start(machine);
        Self::run(state, database, Arc::new(disk), blocking)
    }

    fn run(state: JournalState, database: Option<redb::Database>, store: Arc<dyn Store>, blocking: Blocking) -> Self {
        let state = Arc::new(Mutex::new(state));
        let (writes, queue) = mpsc::unbounded_channel();
        let writer = Writer {
            store,
            blocking,
            database,
            state: Arc::clone(&state),
        };
        tokio::spawn(writer.run(queue));
        let writes = Some(writes);
        Self { state, writes }
    }

    /// A journal only in memory.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// UID of the Node that this journal is for.
    pub fn node_uid(&self) -> Option<String> {
        self.state.lock().contents.node.node_uid.clone()
    }

    /// Why the Node UID of an existing journal cannot be read. A restart may succeed when the disk can be read.
    pub fn node_uid_read_error(&self) -> Option<String> {
        self.state.lock().node_uid_read_error.clone()
    }

    /// Records the Node UID. It applies at once.
    ///
    /// # Errors
    /// If it is not durable: a restart would not have it yet.
    pub async fn set_node_uid(&self, uid: &str) -> Result<(), JournalError> {
        self.change_node(|node| node.node_uid = Some(uid.to_owned()));
        self.durable().await
    }

    /// Quarantined journals, until a user removes them.
    pub fn quarantined(&self) -> Vec<PathBuf> {
        self.state.lock().quarantined.clone()
    }

    /// Write errors.
    pub fn trouble(&self) -> Trouble {
        self.state.lock().trouble.clone()
    }

    /// Durations of durable writes since the start.
    pub fn commit_durations(&self) -> Histogram {
        self.state.lock().commits.0.clone()
    }

    /// Reads what is recorded about the node.
    pub fn node<R>(&self, read: impl FnOnce(&NodeRow) -> R) -> R {
        read(&self.state.lock().contents.node)
    }

    /// Changes what is recorded about the node. The change applies at once and is durable later.
    pub fn change_node<R>(&self, change: impl FnOnce(&mut NodeRow) -> R) -> R {
        // Queued under the same lock: the last change in memory is the last one on disk.
        let node = &mut self.state.lock().contents.node;
        let before = node.clone();
        let result = change(node);
        if *node != before {
            self.send(Write::Row(node.row()));
        }
        result
    }

    /// Records an approval. Only the last ones are kept.
    ///
    /// # Errors
    /// If it is not durable.
    pub async fn log_approval(&self, approval: Approval) -> Result<(), JournalError> {
        self.change_node(|node| {
            node.approvals.push(approval);
            let surplus = node.approvals.len().saturating_sub(MAX_APPROVALS);
            node.approvals.drain(..surplus);
        });
        self.durable().await
    }

    /// Returns when all changes so far are durable.
    ///
    /// # Errors
    /// If they are not after 2 s, or cannot be written.
    pub async fn durable(&self) -> Result<(), JournalError> {
        if self.writes.is_none() {
            return Ok(());
        }
        let (done, durable) = oneshot::channel();
        self.send(Write::Durable(done));
        let hangs = self.state.lock().trouble.error.as_ref() == Some(&JournalError::hangs());
        let disk_timeout = if hangs { HANGING_DISK_TIMEOUT } else { DISK_TIMEOUT };
        match timeout(disk_timeout, durable).await {
            Ok(durable) => durable.unwrap_or_else(|_| Err(JournalError::stopped())),
            Err(_) => {
                let error = JournalError::hangs();
                let trouble = &mut self.state.lock().trouble;
                trouble.failed += 1;
                trouble.error.get_or_insert_with(|| error.clone());
                Err(error)
            }
        }
    }

    fn send(&self, write: Write) {
        if let Some(writes) = &self.writes {
            // The writer stops only with the runtime. `durable` reports that.
            writes.send(write).ok();
        }
    }
}

#[cfg(test)]
mod tests;
