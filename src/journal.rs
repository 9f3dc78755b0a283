//! What survives a crash: when a pod's end began, which hooks were begun and ended, and whose node this is.
//!
//! A copy in memory answers all questions. Writes are gathered and committed together, so that a hundred pods
//! that end at once cost a few syncs of the disk and not hundreds. After an error the database takes no more writes: it
//! is opened anew and the whole copy is written, again and again until that succeeds.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    clock::Mark,
    pod::{PodRef, PodUid, PodView},
};

mod file;
pub mod peek;
mod writer;

use file::{NODE_UID, WATCH};
use writer::{Row, Write, Writer};

/// File in the state directory.
pub const FILE: &str = "journal.redb";
/// Nobody waits longer for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of one pod's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodEntry {
    /// For people.
    pub namespace: String,
    /// For people.
    pub name: String,
    /// When this node began to end the pod.
    pub begun: Mark,
    /// The grace period in force, counted from `begun`.
    pub grace: Duration,
    /// By container id.
    #[serde(default)]
    pub hooks: BTreeMap<String, HookEntry>,
}

/// A preStop hook that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookEntry {
    /// When.
    pub started: Mark,
    /// Once it has ended, well or not, it is never run again.
    pub ended: bool,
}

/// What the watch of this node's pods must know after a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchMemory {
    /// The highest resourceVersion seen: an older world is another one.
    pub highest: u64,
    /// Why absence proves nothing any more.
    pub held: Option<String>,
}

/// The journal is cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Journal {
    state: Arc<Mutex<State>>,
    writes: mpsc::UnboundedSender<Write>,
}

#[derive(Default)]
struct State {
    node_uid: Option<String>,
    watch: WatchMemory,
    pods: HashMap<PodUid, PodEntry>,
    trouble: Trouble,
}

/// What is wrong with the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Why the journal cannot be written at the moment.
    pub error: Option<JournalError>,
    /// Writes that have failed since the start.
    pub failed: u64,
}

/// A journal that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("journal: {verb}: {cause}")]
pub struct JournalError {
    verb: &'static str,
    cause: String,
}

// === impl Journal ===

impl Journal {
    /// Opens or makes the journal in `dir` and starts its writer.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        if fs::metadata(&path).is_ok_and(|file| file.len() == 0) {
            tracing::warn!(
                path = %path.display(),
                "Journal is an empty file: if pods were ending here, their grace begins anew and their hooks run again"
            );
        }
        Self::open_by(move || file::open(&path))
    }

    fn open_by(
        open: impl Fn() -> Result<redb::Database, JournalError> + Send + Sync + 'static,
    ) -> Result<Self, JournalError> {
        // The library checks little of what it reads, and panics on what cannot be. Nothing is shared with it.
        let loaded = catch_unwind(AssertUnwindSafe(|| {
            let mut database = open()?;
            let state = file::load(&mut database)?;
            Ok((database, state))
        }));
        let (database, state) = loaded.unwrap_or_else(|_| Err(JournalError::damaged()))?;
        let state = Arc::new(Mutex::new(state));
        let (writes, queue) = mpsc::unbounded_channel();
        let writer = Writer {
            open: Arc::new(open),
            database: Some(database),
            state: Arc::clone(&state),
        };
        tokio::spawn(writer.run(queue));
        Ok(Self { state, writes })
    }

    /// A journal that forgets everything at the end, for `--dry-run`.
    pub fn forgetful() -> Self {
        let (writes, mut queue) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(write) = queue.recv().await {
                if let Write::Durable(done) | Write::NodeUid(_, done) = write {
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

    /// Records the Node that this journal is made for.
    pub async fn set_node_uid(&self, uid: &str) -> Result<(), JournalError> {
        self.written(|done| Write::NodeUid(uid.to_owned(), done)).await?;
        self.lock().node_uid = Some(uid.to_owned());
        Ok(())
    }

    /// What is wrong with the disk.
    pub fn trouble(&self) -> Trouble {
        self.lock().trouble.clone()
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

    /// What is known of a pod's end.
    pub fn pod(&self, uid: &PodUid) -> Option<PodEntry> {
        self.lock().pods.get(uid).cloned()
    }

    /// Pods whose end was begun and not finished, as far as the journal knows them.
    pub fn unfinished(&self) -> Vec<PodView> {
        let state = self.lock();
        let view = |(uid, entry): (&PodUid, &PodEntry)| {
            let pod = PodRef {
                uid: uid.clone(),
                namespace: entry.namespace.as_str().into(),
                name: entry.name.as_str().into(),
            };
            PodView::remembered(pod)
        };
        state.pods.iter().map(view).collect()
    }

    /// Records that a pod's end has begun, or that its grace period was shortened. Durable soon, not at once.
    pub fn begin(&self, pod: &PodRef, begun: Mark, grace: Duration) {
        self.change(&pod.uid, |entry| match entry {
            Some(entry) => entry.grace = entry.grace.min(grace),
            None => {
                *entry = Some(PodEntry {
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    begun,
                    grace,
                    hooks: BTreeMap::new(),
                });
            }
        });
    }

    /// Records that a hook begins. Returns when that is on the disk.
    pub async fn hook_started(&self, uid: &PodUid, container: &str, started: Mark) -> Result<(), JournalError> {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry
                    .hooks
                    .insert(container.to_owned(), HookEntry { started, ended: false });
            }
        });
        self.durable().await
    }

    /// Records that a hook has ended, well or not. Returns when that is on the disk.
    pub async fn hook_ended(&self, uid: &PodUid, container: &str) -> Result<(), JournalError> {
        self.change(uid, |entry| {
            if let Some(hook) = entry.as_mut().and_then(|entry| entry.hooks.get_mut(container)) {
                hook.ended = true;
            }
        });
        self.durable().await
    }

    /// The pod is gone and nothing of it is left.
    pub fn forget(&self, uid: &PodUid) {
        self.change(uid, |entry| *entry = None);
    }

    /// Returns when everything said before is on the disk, or has not come there for too long.
    pub async fn durable(&self) -> Result<(), JournalError> {
        self.written(Write::Durable).await
    }

    async fn written(
        &self,
        write: impl FnOnce(oneshot::Sender<Result<(), JournalError>>) -> Write,
    ) -> Result<(), JournalError> {
        let (done, durable) = oneshot::channel();
        self.send(write(done));
        match timeout(PATIENCE, durable).await {
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

    fn change(&self, uid: &PodUid, change: impl FnOnce(&mut Option<PodEntry>)) {
        let mut state = self.lock();
        let before = state.pods.remove(uid);
        let mut entry = before.clone();
        change(&mut entry);
        if let Some(entry) = &entry {
            state.pods.insert(uid.clone(), entry.clone());
        }
        if entry != before {
            self.send(Write::Row(Row::Pod(uid.clone(), entry.as_ref().map(PodEntry::bytes))));
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
    fn rows(&self) -> Vec<Row> {
        let uid = self.node_uid.iter().map(|uid| Row::Node(NODE_UID, uid.clone()));
        let pods = self.pods.iter();
        uid.chain([self.watch.row()])
            .chain(pods.map(|(uid, entry)| Row::Pod(uid.clone(), Some(entry.bytes()))))
            .collect()
    }
}

impl WatchMemory {
    fn row(&self) -> Row {
        Row::Node(WATCH, serde_json::to_string(self).unwrap_or_default())
    }
}

impl PodEntry {
    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

// === impl JournalError ===

impl JournalError {
    fn stopped() -> Self {
        Self {
            verb: "write",
            cause: "the writer has stopped".to_owned(),
        }
    }

    fn hangs() -> Self {
        Self {
            verb: "write",
            cause: format!("the disk has not answered for {} s", PATIENCE.as_secs()),
        }
    }

    fn damaged() -> Self {
        Self {
            verb: "read",
            cause: "the file is damaged".to_owned(),
        }
    }
}

fn failed<E: std::fmt::Display>(verb: &'static str) -> impl Fn(E) -> JournalError {
    move |error| JournalError {
        verb,
        cause: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
