//! What survives a crash: when a pod's end began, which hooks were begun and ended, and whose node this is.
//!
//! A copy in memory answers all questions. Writes are gathered and committed together, so that a hundred pods
//! that end at once cost a few syncs of the disk and not hundreds. After an error the database takes no more writes: it
//! is opened anew and the whole copy is written, again and again until that succeeds.

use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
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

/// After a failed write, doubled up to the longest; whoever waits for the disk has it tried at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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

enum Write {
    Row(Row),
    /// In memory only once it is durable, so it brings its own waiter.
    NodeUid(String, Waiter),
    Durable(Waiter),
}

enum Row {
    Pod(PodUid, Option<Vec<u8>>),
    Node(&'static str, String),
}

type Waiter = oneshot::Sender<Result<(), JournalError>>;
type Open = dyn Fn() -> Result<Database, JournalError> + Send + Sync;

struct Writer {
    open: Arc<Open>,
    /// None after an error.
    database: Option<Database>,
    state: Arc<Mutex<State>>,
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
        if std::fs::metadata(&path).is_ok_and(|file| file.len() == 0) {
            tracing::warn!(
                path = %path.display(),
                "Journal is an empty file: if pods were ending here, their grace begins anew and their hooks run again"
            );
        }
        Self::open_by(move || {
            Database::builder()
                .set_cache_size(CACHE_BYTES)
                .create(&path)
                .map_err(failed("open"))
        })
    }

    fn open_by(
        open: impl Fn() -> Result<Database, JournalError> + Send + Sync + 'static,
    ) -> Result<Self, JournalError> {
        // The library checks little of what it reads, and panics on what cannot be. Nothing is shared with it.
        let loaded = catch_unwind(AssertUnwindSafe(|| {
            let mut database = open()?;
            let state = load(&mut database)?;
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
        let (done, durable) = oneshot::channel();
        self.send(Write::NodeUid(uid.to_owned(), done));
        durable.await.unwrap_or_else(|_| Err(JournalError::stopped()))?;
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

fn load(database: &mut Database) -> Result<State, JournalError> {
    // A page that is wrong in itself would be taken for a shorter list of pods.
    if !database.check_integrity().map_err(failed("read"))? {
        tracing::error!("Journal was damaged and has been repaired: the last that was written may be lost");
    }
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
    Ok(State {
        node_uid,
        watch,
        pods,
        trouble: Trouble::default(),
    })
}

// === impl Writer ===

impl Writer {
    /// Takes everything that waits, commits it in one transaction, then tells those who wait for it.
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Write>) {
        let mut batch = Vec::new();
        let mut pause = FIRST_PAUSE;
        loop {
            let more = queue.recv_many(&mut batch, BATCH);
            let received = match self.database {
                Some(_) => Some(more.await),
                None => timeout(pause, more).await.ok(),
            };
            let closed = received == Some(0);
            if closed && self.database.is_some() {
                return;
            }
            if !batch.is_empty() {
                gather(&mut batch, &mut queue).await;
            }
            let mut rows = Vec::new();
            let mut waiting = Vec::new();
            for write in batch.drain(..) {
                match write {
                    Write::Row(row) => rows.push(row),
                    Write::NodeUid(uid, done) => {
                        rows.push(Row::Node(NODE_UID, uid));
                        waiting.push(done);
                    }
                    Write::Durable(done) => waiting.push(done),
                }
            }
            let result = self.write(rows).await;
            self.tell(&result);
            for done in waiting {
                done.send(result.clone()).ok();
            }
            if closed {
                return;
            }
            pause = match result {
                Ok(()) => FIRST_PAUSE,
                Err(_) => (pause * 2).min(LONGEST_PAUSE),
            };
        }
    }

    /// Rows of a commit that failed are in the copy in memory, which is written whole the next time.
    async fn write(&mut self, mut rows: Vec<Row>) -> Result<(), JournalError> {
        let database = self.database.take();
        if database.is_none() {
            rows.splice(0..0, lock(&self.state).rows());
        }
        let open = Arc::clone(&self.open);
        let written = tokio::task::spawn_blocking(move || {
            let (database, whole) = match database {
                Some(database) => (database, false),
                None => (open()?, true),
            };
            commit(&database, whole, &rows)?;
            Ok(database)
        });
        let database = written.await.unwrap_or_else(|_| Err(JournalError::damaged()))?;
        self.database = Some(database);
        Ok(())
    }

    fn tell(&self, result: &Result<(), JournalError>) {
        let Trouble { error: before, failed } = &mut lock(&self.state).trouble;
        match result {
            Ok(()) if before.is_some() => tracing::info!("Journal is written again, and whole"),
            Ok(()) => {}
            Err(error) => {
                *failed += 1;
                if before.as_ref() != Some(error) {
                    tracing::error!(%error, "Journal cannot be written: a restart would not know what was begun");
                }
            }
        }
        *before = result.as_ref().err().cloned();
    }
}

/// Waits for more as long as nobody waits for what is there.
async fn gather(batch: &mut Vec<Write>, queue: &mut mpsc::UnboundedReceiver<Write>) {
    let enough = sleep(GATHER);
    tokio::pin!(enough);
    while batch.len() < BATCH && !batch.iter().any(|write| !matches!(write, Write::Row(_))) {
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

fn commit(database: &Database, whole: bool, rows: &[Row]) -> Result<(), JournalError> {
    if rows.is_empty() {
        return Ok(());
    }
    let transaction = database.begin_write().map_err(failed("write"))?;
    {
        let mut pods = transaction.open_table(PODS).map_err(failed("write"))?;
        let mut node = transaction.open_table(NODE).map_err(failed("write"))?;
        if whole {
            pods.retain(|_, _| false).map_err(failed("write"))?;
        }
        for row in rows {
            match row {
                Row::Pod(uid, Some(bytes)) => {
                    pods.insert(uid.as_str(), bytes.as_slice()).map_err(failed("write"))?;
                }
                Row::Pod(uid, None) => {
                    pods.remove(uid.as_str()).map_err(failed("write"))?;
                }
                Row::Node(key, value) => {
                    node.insert(*key, value.as_str()).map_err(failed("write"))?;
                }
            }
        }
    }
    transaction.commit().map_err(failed("write"))
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicBool, Ordering},
    };

    use redb::StorageBackend;

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

    /// A disk that can be full, and keeps what was written to it.
    #[derive(Debug, Clone, Default)]
    struct Disk {
        bytes: Arc<Mutex<Vec<u8>>>,
        full: Arc<AtomicBool>,
    }

    impl Disk {
        fn journal(&self) -> Result<Journal, JournalError> {
            let disk = self.clone();
            Journal::open_by(move || {
                Database::builder()
                    .create_with_backend(disk.clone())
                    .map_err(failed("open"))
            })
        }

        fn fill(&self, full: bool) {
            self.full.store(full, Ordering::SeqCst);
        }

        /// What an agent would know that begins now.
        fn as_it_is(&self) -> Journal {
            let copy = self.bytes.lock().unwrap().clone();
            let disk = Self {
                bytes: Arc::new(Mutex::new(copy)),
                full: Arc::default(),
            };
            disk.journal().unwrap()
        }

        fn room(&self) -> io::Result<()> {
            match self.full.load(Ordering::SeqCst) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            Ok(self.bytes.lock().unwrap().len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let offset = usize::try_from(offset).unwrap();
            out.copy_from_slice(&self.bytes.lock().unwrap()[offset..offset + out.len()]);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.room()?;
            self.bytes.lock().unwrap().resize(usize::try_from(len).unwrap(), 0);
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            self.room()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.room()?;
            let offset = usize::try_from(offset).unwrap();
            self.bytes.lock().unwrap()[offset..offset + data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_was_full_gets_what_was_said_meanwhile_and_what_comes_later() {
        let disk = Disk::default();
        let journal = disk.journal().unwrap();
        let now = BootClock::new().unwrap().now();
        for uid in ["before", "ended"] {
            journal.begin(&pod(uid), now.clone(), Duration::from_secs(10));
        }
        journal.durable().await.unwrap();
        disk.fill(true);
        journal.begin(&pod("web"), now.clone(), Duration::from_secs(10));
        journal.forget(&"ended".into());
        // Nobody hangs, however often.
        for _ in 0..2 {
            assert!(journal.hook_started(&"web".into(), "c1", now.clone()).await.is_err());
        }
        let trouble = journal.trouble();
        assert!(trouble.error.is_some() && trouble.failed >= 2, "{trouble:?}");
        disk.fill(false);
        sleep(LONGEST_PAUSE).await;
        assert_eq!(journal.trouble().error, None);
        let known = disk.as_it_is();
        assert!(known.pod(&"web".into()).unwrap().hooks.contains_key("c1"));
        assert!(known.pod(&"before".into()).is_some() && known.pod(&"ended".into()).is_none());
        journal.hook_ended(&"web".into(), "c1").await.unwrap();
        assert!(disk.as_it_is().pod(&"web".into()).unwrap().hooks["c1"].ended);
    }

    #[tokio::test(start_paused = true)]
    async fn whose_node_this_is_counts_only_once_it_is_on_the_disk() {
        let disk = Disk::default();
        let journal = disk.journal().unwrap();
        disk.fill(true);
        assert!(journal.set_node_uid("node-1").await.is_err());
        assert_eq!(journal.node_uid(), None);
        disk.fill(false);
        journal.set_node_uid("node-1").await.unwrap();
        assert_eq!(journal.node_uid().as_deref(), Some("node-1"));
        assert_eq!(disk.as_it_is().node_uid().as_deref(), Some("node-1"));
    }

    #[tokio::test]
    async fn a_damaged_journal_is_an_error_or_loses_nothing() {
        let disk = Disk::default();
        let journal = disk.journal().unwrap();
        journal.set_node_uid("node-1").await.unwrap();
        let now = BootClock::new().unwrap().now();
        for number in 0..60 {
            journal.begin(&pod(&format!("uid-{number}")), now.clone(), Duration::from_secs(10));
        }
        journal.durable().await.unwrap();
        drop(journal);
        while Arc::strong_count(&disk.bytes) > 1 {
            tokio::task::yield_now().await;
        }
        let good = disk.bytes.lock().unwrap().clone();
        for at in (0..good.len()).step_by(1024) {
            let mut bytes = good.clone();
            let hit = &mut bytes[at..at + 512];
            if hit.iter().all(|&byte| byte == 0) {
                continue;
            }
            hit.fill(0xa5);
            let damaged = Disk {
                bytes: Arc::new(Mutex::new(bytes)),
                full: Arc::default(),
            };
            if let Ok(journal) = damaged.journal() {
                assert_eq!(journal.unfinished().len(), 60, "damaged at {at}");
            }
        }
    }
}
