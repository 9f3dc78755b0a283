//! What survives a crash: when a pod's end began, which hooks were begun and ended, and whose node this is.
//!
//! A copy in memory answers all questions. Writes are gathered and committed together, so that a hundred pods
//! that end at once cost a few syncs of the disk and not hundreds. After an error the database takes no more writes: it
//! is opened anew and the whole copy is written, again and again until that succeeds.
//!
//! `place (look → use | keep aside, make) → memory ⇄ writer → file`
//!
//! What cannot be used as a journal is kept under another name, said, and replaced: no pod waits for it.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    clock::Mark,
    node::{identity::Identity, threads::Blocking},
    pod::{PodRef, PodUid, PodView},
    record::Stage,
    report::status::Imposed,
};

pub mod aside;
pub mod ends;
mod error;
mod file;
mod header;
mod lent;
pub mod peek;
mod place;
mod whose;
mod writer;

use aside::Aside;
use ends::Ends;
pub use error::JournalError;
use file::{Contents, HEADER, NODE_UID, WATCH};
use header::Header;
use lent::Lent;
use place::Place;
use writer::{Row, Store, Write, Writer};

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
    /// The end that somebody decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imposed: Option<Imposed>,
    /// By container id.
    #[serde(default)]
    pub hooks: BTreeMap<String, HookEntry>,
    /// How far its end has come; for people, since every attempt starts from what is really there.
    #[serde(default)]
    pub stage: Stage,
    /// Containers that were seen to have ended.
    #[serde(default)]
    pub ends: Ends,
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
    header: Option<Header>,
    node_uid: Option<String>,
    /// Why it cannot be read which Node was recorded.
    unread: Option<String>,
    watch: WatchMemory,
    pods: HashMap<PodUid, PodEntry>,
    /// Entries that could neither be read nor kept elsewhere: written back as they were found.
    unreadable: Vec<(String, Vec<u8>)>,
    trouble: Trouble,
    cost: Cost,
    asides: Vec<Aside>,
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
    /// Opens or makes the journal of this machine in `dir` and starts its writer. Whatever is there, and whatever the disk
    /// does: an error is one that only a person can set right.
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

    /// A journal that forgets everything at the end, for `--dry-run`.
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

    /// What is kept beside the journal, because it is no use as one.
    pub fn asides(&self) -> Vec<Aside> {
        self.lock().asides.clone()
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

    /// Whether the end of a pod was begun and is not forgotten.
    pub fn knows(&self, uid: &PodUid) -> bool {
        self.lock().pods.contains_key(uid)
    }

    /// Records that a pod's end has begun, that its grace period was shortened, or that somebody decided on how it ends.
    /// Durable soon, not at once.
    pub fn begin(&self, pod: &PodRef, begun: Mark, grace: Duration, imposed: Option<&Imposed>) {
        self.change(&pod.uid, |entry| match entry {
            Some(entry) => {
                entry.grace = entry.grace.min(grace);
                entry.imposed = imposed.cloned().or(entry.imposed.take());
            }
            None => {
                *entry = Some(PodEntry {
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    begun,
                    grace,
                    imposed: imposed.cloned(),
                    hooks: BTreeMap::new(),
                    stage: Stage::default(),
                    ends: Ends::new(),
                });
            }
        });
    }

    /// Records that the grace period runs from now on, and not from when the pod was first seen to end: nothing has been done
    /// to it yet. Durable soon, not at once.
    pub fn counts_from(&self, uid: &PodUid, now: Mark) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.begun = now;
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

    /// Records how containers have ended, once for each. Durable soon, not at once.
    pub fn ended(&self, uid: &PodUid, ends: Ends) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                for (id, end) in ends {
                    entry.ends.entry(id).or_insert(end);
                }
            }
        });
    }

    /// How containers of this pod were seen to have ended.
    pub fn ends(&self, uid: &PodUid) -> Ends {
        let state = self.lock();
        state.pods.get(uid).map(|entry| entry.ends.clone()).unwrap_or_default()
    }

    /// Records how far a pod's end has come. Durable soon, not at once.
    pub fn reached(&self, uid: &PodUid, stage: Stage) {
        self.change(uid, |entry| {
            if let Some(entry) = entry {
                entry.stage = entry.stage.max(stage);
            }
        });
    }

    /// The pod is gone and nothing of it is left.
    pub fn forget(&self, uid: &PodUid) {
        self.change(uid, |entry| *entry = None);
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
    /// What a journal of this machine holds.
    fn of(contents: Contents, machine: &Identity) -> Self {
        Self {
            header: Some(Header::of(machine, contents.header.as_ref())),
            node_uid: contents.node_uid,
            watch: contents.watch,
            pods: contents.pods,
            unreadable: contents.unreadable,
            ..Self::default()
        }
    }

    fn rows(&self) -> Vec<Row> {
        let header = self.header.iter().map(Header::row);
        let uid = self.node_uid.iter().map(|uid| Row::Node(NODE_UID, uid.clone()));
        let unreadable = self.unreadable.iter();
        let pods = self.pods.iter();
        header
            .chain(uid)
            .chain([self.watch.row()])
            .chain(unreadable.map(|(uid, bytes)| Row::Pod(uid.as_str().into(), Some(bytes.clone()))))
            .chain(pods.map(|(uid, entry)| Row::Pod(uid.clone(), Some(entry.bytes()))))
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

impl PodEntry {
    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
