//! What survives a crash: when a pod's end began, which hooks were begun and ended, and whose node this is.
//!
//! A copy in memory answers all questions. Writes are gathered and committed together, so that a hundred pods
//! that end at once cost a few syncs of the disk and not hundreds.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use crate::{
    clock::Mark,
    pod::{PodRef, PodUid, PodView},
};

pub mod peek;

/// File in the state directory.
pub const FILE: &str = "journal.redb";
const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods-v1");
const NODE: TableDefinition<'_, &str, &str> = TableDefinition::new("node-v1");
const NODE_UID: &str = "uid";
const WATCH: &str = "watch";
/// The journal holds a few hundred bytes per ending pod; the library's own default is a gigabyte.
const CACHE_BYTES: usize = 256 << 10;
/// What nobody waits for may be lost in a crash for so long; a commit costs two syncs of the disk, and pods seldom end
/// alone.
const GATHER: Duration = Duration::from_millis(100);
/// Most writes in one commit.
const BATCH: usize = 1024;

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
}

enum Write {
    Pod(PodUid, Option<Vec<u8>>),
    Node(&'static str, String),
    Durable(oneshot::Sender<Result<(), JournalError>>),
}

/// A journal that cannot be read or written.
#[derive(Debug, Clone, Error)]
#[error("journal {verb}: {cause}")]
pub struct JournalError {
    verb: &'static str,
    cause: String,
}

// === impl Journal ===

impl Journal {
    /// Opens or makes the journal in `dir` and starts its writer.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(&path)
            .map_err(failed("open"))?;
        let state = load(&database)?;
        let (writes, queue) = mpsc::unbounded_channel();
        tokio::spawn(writer(Arc::new(database), queue));
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            writes,
        })
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

    /// Records the Node that this journal is made for.
    pub async fn set_node_uid(&self, uid: &str) -> Result<(), JournalError> {
        self.lock().node_uid = Some(uid.to_owned());
        self.send(Write::Node(NODE_UID, uid.to_owned()));
        self.durable().await
    }

    /// What the watch knew when it last told.
    pub fn watch_memory(&self) -> WatchMemory {
        self.lock().watch.clone()
    }

    /// Records what the watch knows. Durable soon, not at once.
    pub fn remember_watch(&self, memory: WatchMemory) {
        let mut state = self.lock();
        if state.watch != memory {
            self.send(Write::Node(WATCH, serde_json::to_string(&memory).unwrap_or_default()));
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

    /// Returns when everything said before is on the disk.
    pub async fn durable(&self) -> Result<(), JournalError> {
        let (done, durable) = oneshot::channel();
        self.send(Write::Durable(done));
        durable.await.unwrap_or_else(|_| Err(JournalError::stopped()))
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
            let bytes = entry.map(|entry| serde_json::to_vec(&entry).unwrap_or_default());
            self.send(Write::Pod(uid.clone(), bytes));
        }
    }

    fn send(&self, write: Write) {
        // The writer ends only with the runtime; `durable` reports it.
        self.writes.send(write).ok();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
}

fn failed<E: std::fmt::Display>(verb: &'static str) -> impl Fn(E) -> JournalError {
    move |error| JournalError {
        verb,
        cause: error.to_string(),
    }
}

fn load(database: &Database) -> Result<State, JournalError> {
    let write = database.begin_write().map_err(failed("open"))?;
    write.open_table(PODS).map_err(failed("open"))?;
    write.open_table(NODE).map_err(failed("open"))?;
    write.commit().map_err(failed("open"))?;
    let read = database.begin_read().map_err(failed("read"))?;
    let node = read.open_table(NODE).map_err(failed("read"))?;
    let node_uid = node
        .get(NODE_UID)
        .map_err(failed("read"))?
        .map(|uid| uid.value().to_owned());
    let watch = match node.get(WATCH).map_err(failed("read"))? {
        None => WatchMemory::default(),
        Some(json) => serde_json::from_str(json.value()).map_err(failed("read"))?,
    };
    let mut pods = HashMap::new();
    for row in read
        .open_table(PODS)
        .map_err(failed("read"))?
        .iter()
        .map_err(failed("read"))?
    {
        let (uid, bytes) = row.map_err(failed("read"))?;
        match serde_json::from_slice(bytes.value()) {
            Ok(entry) => {
                pods.insert(PodUid::from(uid.value()), entry);
            }
            Err(error) => tracing::error!(pod.uid = uid.value(), %error, "Journal entry is unreadable and is ignored"),
        }
    }
    Ok(State { node_uid, watch, pods })
}

/// Takes everything that waits, commits it in one transaction, then tells those who wait for it.
async fn writer(database: Arc<Database>, mut queue: mpsc::UnboundedReceiver<Write>) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        gather(&mut batch, &mut queue).await;
        let mut waiting = Vec::new();
        let mut rows = Vec::new();
        for write in batch.drain(..) {
            match write {
                Write::Durable(done) => waiting.push(done),
                Write::Pod(..) | Write::Node(..) => rows.push(write),
            }
        }
        let database = Arc::clone(&database);
        let committed = tokio::task::spawn_blocking(move || commit(&database, &rows)).await;
        let result = committed.unwrap_or_else(|_| Err(JournalError::stopped()));
        if let Err(error) = &result {
            tracing::error!(%error, "Journal cannot be written: a restart would not know what was begun");
        }
        for done in waiting {
            done.send(result.clone()).ok();
        }
    }
}

/// Waits for more as long as nobody waits for what is there.
async fn gather(batch: &mut Vec<Write>, queue: &mut mpsc::UnboundedReceiver<Write>) {
    let enough = sleep(GATHER);
    tokio::pin!(enough);
    while batch.len() < BATCH && !batch.iter().any(|write| matches!(write, Write::Durable(_))) {
        tokio::select! {
            more = queue.recv() => match more {
                Some(more) => batch.push(more),
                // The agent stops: what is there is the last.
                None => return,
            },
            () = &mut enough => return,
        }
    }
}

fn commit(database: &Database, rows: &[Write]) -> Result<(), JournalError> {
    if rows.is_empty() {
        return Ok(());
    }
    let transaction = database.begin_write().map_err(failed("write"))?;
    {
        let mut pods = transaction.open_table(PODS).map_err(failed("write"))?;
        let mut node = transaction.open_table(NODE).map_err(failed("write"))?;
        for row in rows {
            match row {
                Write::Pod(uid, Some(bytes)) => {
                    pods.insert(uid.as_str(), bytes.as_slice()).map_err(failed("write"))?;
                }
                Write::Pod(uid, None) => {
                    pods.remove(uid.as_str()).map_err(failed("write"))?;
                }
                Write::Node(key, value) => {
                    node.insert(*key, value.as_str()).map_err(failed("write"))?;
                }
                Write::Durable(_) => {}
            }
        }
    }
    transaction.commit().map_err(failed("write"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::BootClock;

    fn pod(uid: &str) -> PodRef {
        PodRef {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "pod".into(),
        }
    }

    /// A journal whose file is closed again, as a crash would.
    async fn reopened(dir: &Path, before: impl AsyncFnOnce(&Journal)) -> Journal {
        let journal = Journal::open(dir).unwrap();
        before(&journal).await;
        journal.durable().await.unwrap();
        drop(journal);
        loop {
            // The writer lets go of the file when it sees that nobody writes any more.
            match Journal::open(dir) {
                Ok(journal) => return journal,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    #[tokio::test]
    async fn what_was_begun_and_which_hooks_ended_is_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let now = BootClock::new().unwrap().now();
        let journal = reopened(dir.path(), async |journal: &Journal| {
            journal.set_node_uid("node-1").await.unwrap();
            journal.begin(&pod("a"), now.clone(), Duration::from_secs(30));
            journal.hook_started(&"a".into(), "c1", now.clone()).await.unwrap();
            journal.hook_started(&"a".into(), "c2", now.clone()).await.unwrap();
            journal.hook_ended(&"a".into(), "c2").await.unwrap();
        })
        .await;
        assert_eq!(journal.node_uid().as_deref(), Some("node-1"));
        let entry = journal.pod(&"a".into()).unwrap();
        assert_eq!(entry.begun, now);
        assert_eq!((entry.hooks["c1"].ended, entry.hooks["c2"].ended), (false, true));
    }

    #[tokio::test]
    async fn a_second_beginning_keeps_the_first_moment_and_the_shorter_grace() {
        let dir = tempfile::tempdir().unwrap();
        let clock = BootClock::new().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let first = clock.now();
        journal.begin(&pod("a"), first.clone(), Duration::from_secs(10));
        journal.begin(&pod("a"), clock.now(), Duration::from_secs(60));
        assert_eq!(journal.pod(&"a".into()).unwrap().grace, Duration::from_secs(10));
        journal.begin(&pod("a"), clock.now(), Duration::from_secs(3));
        let entry = journal.pod(&"a".into()).unwrap();
        assert_eq!((entry.begun, entry.grace), (first, Duration::from_secs(3)));
    }

    #[tokio::test]
    async fn what_the_watch_knew_is_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let known = WatchMemory {
            highest: 42,
            held: Some("another world".to_owned()),
        };
        let journal = reopened(dir.path(), async |journal: &Journal| {
            assert_eq!(journal.watch_memory(), WatchMemory::default());
            journal.remember_watch(known.clone());
        })
        .await;
        assert_eq!(journal.watch_memory(), known);
    }

    #[tokio::test]
    async fn a_finished_pod_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let now = BootClock::new().unwrap().now();
        let journal = reopened(dir.path(), async |journal: &Journal| {
            journal.begin(&pod("a"), now, Duration::from_secs(10));
            journal.durable().await.unwrap();
            journal.forget(&"a".into());
        })
        .await;
        assert!(journal.unfinished().is_empty());
    }
}
