use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicBool, Ordering},
};

use redb::{Database, StorageBackend};
use tokio::time::{advance, sleep};

use jiff::Timestamp;

use super::{
    contents::{Contents, Row, Table},
    error::failed,
    writer::LONGEST_PAUSE,
    *,
};
use crate::{
    clock::{BootClock, Mark},
    model::{
        mismatch::MismatchApproval,
        pause::{PauseRecord, Paused},
        pod::{PodRef, PodView},
    },
    node::superblock::FileSystem,
};

mod damage;
mod disks;
mod machines;
mod seen;

fn machine(id: &str) -> Identity {
    Identity {
        machine_id: Some(id.to_owned()),
        system_uuid: None,
        boot_id: Some("boot-1".to_owned()),
    }
}

fn pod(uid: &str) -> PodRef {
    PodRef {
        uid: uid.into(),
        namespace: "ns".into(),
        name: "pod".into(),
    }
}

fn now() -> Mark {
    BootClock::new().unwrap().now()
}

/// The database of an agent that has released it.
async fn closed(dir: &Path) -> Database {
    loop {
        match Database::open(dir.join(FILE)) {
            Ok(database) => return database,
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// A journal after a restart of the agent, as after a crash.
async fn reopened(dir: &Path, before: impl AsyncFnOnce(&Journal)) -> Journal {
    let journal = Journal::open(dir, &machine("m1")).unwrap();
    before(&journal).await;
    journal.durable().await.unwrap();
    drop(journal);
    opened(dir, &machine("m1")).await
}

/// Opens the journal when the last agent has released it.
async fn opened(dir: &Path, machine: &Identity) -> Journal {
    loop {
        // The writer releases the file when all its senders are dropped.
        match Journal::open(dir, machine) {
            Ok(journal) => return journal,
            Err(error) => {
                assert!(error.prevents_start(), "{error}");
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn terminations_and_finished_hooks_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let now = now();
    let journal = reopened(dir.path(), async |journal: &Journal| {
        journal.set_node_uid("node-1").await.unwrap();
        for uid in ["a", "finished"] {
            journal.record_termination(&pod(uid), now.clone(), Duration::from_secs(30), None);
        }
        journal.durable().await.unwrap();
        journal.forget(&"finished".into());
        journal.hook_started(&"a".into(), "c1", now.clone()).await.unwrap();
        journal.hook_started(&"a".into(), "c2", now.clone()).await.unwrap();
        journal.hook_ended(&"a".into(), "c2").await.unwrap();
    })
    .await;
    assert_eq!(journal.node_uid().as_deref(), Some("node-1"));
    assert_eq!(journal.unfinished().len(), 1);
    let entry = journal.pod(&"a".into()).unwrap();
    assert_eq!(entry.begun, now);
    assert_eq!((entry.hooks["c1"].ended, entry.hooks["c2"].ended), (false, true));
}

#[tokio::test]
async fn half_written_journal_of_a_crash_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("journal.new"), "half of one").unwrap();
    let journal = reopened(dir.path(), async |journal: &Journal| {
        journal.set_node_uid("node-1").await.unwrap();
    })
    .await;
    assert_eq!(journal.node_uid().as_deref(), Some("node-1"));
    assert!(!dir.path().join("journal.new").exists());
    let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it names pods: queue else's to read");
}

#[tokio::test]
async fn second_beginning_keeps_the_first_time_and_the_shorter_grace_period() {
    let journal = Journal::in_memory();
    let first = now();
    for (at, grace, kept) in [(first.clone(), 10, 10), (now(), 60, 10), (now(), 3, 3)] {
        journal.record_termination(&pod("a"), at, Duration::from_secs(grace), None);
        let entry = journal.pod(&"a".into()).unwrap();
        assert_eq!((entry.begun, entry.grace), (first.clone(), Duration::from_secs(kept)));
    }
}

#[tokio::test]
async fn state_of_the_watch_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let known = WatchState {
        highest: 42,
        absence_hold_reason: Some("another world".to_owned()),
        absence_hold_kinds: [AbsenceHoldKind::OlderList].into(),
        since: Some(Timestamp::UNIX_EPOCH),
    };
    let journal = reopened(dir.path(), async |journal: &Journal| {
        assert_eq!(journal.node(|node| node.watch.clone()), WatchState::default());
        journal.change_node(|node| node.watch = known.clone());
    })
    .await;
    assert_eq!(journal.node(|node| node.watch.clone()), known);
}

fn paused() -> PauseRecord {
    let paused = Paused {
        since: Timestamp::UNIX_EPOCH,
        by: "root".to_owned(),
        reason: None,
        until: None,
    };
    PauseRecord::new(paused, None, &now())
}

#[tokio::test]
async fn last_approvals_survive_a_restart() {
    let approval = |number: usize| Approval {
        item: format!("pod/ns/{number}"),
        uid: Some(number.to_string()),
        at: Timestamp::UNIX_EPOCH,
        by: "root".to_owned(),
        reason: Some("seen on the console".to_owned()),
        why: "its cgroup has processes".to_owned(),
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = reopened(dir.path(), async |journal: &Journal| {
        for number in 0..MAX_APPROVALS + 3 {
            journal.log_approval(approval(number)).await.unwrap();
        }
    })
    .await;
    let expected: Vec<_> = (3..MAX_APPROVALS + 3).map(approval).collect();
    assert_eq!(journal.node(|node| node.approvals.clone()), expected);
}

#[tokio::test]
async fn unstaged_file_systems_are_known_after_a_restart_until_the_node_reboots() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, sys) = ("kubernetes.io/csi/d^v", tempfile::tempdir().unwrap());
    let file_systems = vec![FileSystem::on((7, 0), &sys.path().join("block")).unwrap()];
    let journal = reopened(dir.path(), async |journal| {
        journal.set_maybe_active_file_systems(volume, file_systems.clone());
    })
    .await;
    assert_eq!(journal.maybe_active_file_systems(volume), file_systems);
    drop(journal);
    let rebooted = Identity {
        boot_id: Some("boot-2".to_owned()),
        ..machine("m1")
    };
    // What the journal has at each start, and what is recorded then.
    let starts: [(&[FileSystem], Option<&[FileSystem]>); 4] = [
        (&[], None),
        (&[], Some(&file_systems)),
        (&file_systems, Some(&[])),
        (&[], None),
    ];
    for (known, change) in starts {
        let journal = opened(dir.path(), &rebooted).await;
        assert_eq!(journal.maybe_active_file_systems(volume), known);
        if let Some(change) = change {
            journal.set_maybe_active_file_systems(volume, change.to_vec());
        }
        journal.durable().await.unwrap();
    }
}

/// A disk that can be full.
#[derive(Debug, Clone, Default)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// The bytes after each write.
    states: Arc<Mutex<Vec<Vec<u8>>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn journal(&self) -> Journal {
        let database = self.open(&[]).unwrap();
        let state = JournalState {
            contents: file::read(&database, &machine("m1")).unwrap(),
            ..JournalState::default()
        };
        file::commit(&database, false, &[state.contents.node.row()]).unwrap();
        Journal::run(state, Some(database), Arc::new(self.clone()), Blocking::default())
    }

    fn fill(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    /// The journal of an agent that starts now.
    fn restarted(&self) -> Journal {
        let copy = self.bytes.lock().clone();
        let disk = Self {
            bytes: Arc::new(Mutex::new(copy)),
            ..Self::default()
        };
        disk.journal()
    }

    fn check_space(&self) -> io::Result<()> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl Store for Disk {
    fn open(&self, _rows: &[Row]) -> Result<Database, JournalError> {
        Database::builder()
            .create_with_backend(self.clone())
            .map_err(failed("open"))
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.bytes.lock()[offset..offset + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_space()?;
        self.bytes.lock().resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check_space()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_space()?;
        let offset = usize::try_from(offset).unwrap();
        let mut bytes = self.bytes.lock();
        bytes[offset..offset + data.len()].copy_from_slice(data);
        self.states.lock().push(bytes.clone());
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn changes_during_and_after_a_full_disk_are_written() {
    let disk = Disk::default();
    let journal = disk.journal();
    let now = now();
    for uid in ["before", "ended"] {
        journal.record_termination(&pod(uid), now.clone(), Duration::from_secs(10), None);
    }
    journal.durable().await.unwrap();
    disk.fill(true);
    journal.record_termination(&pod("web"), now.clone(), Duration::from_secs(10), None);
    journal.forget(&"ended".into());
    // No call blocks.
    for _ in 0..2 {
        assert!(journal.hook_started(&"web".into(), "c1", now.clone()).await.is_err());
    }
    let trouble = journal.trouble();
    assert!(trouble.error.is_some() && trouble.failed >= 2, "{trouble:?}");
    disk.fill(false);
    sleep(LONGEST_PAUSE).await;
    assert_eq!(journal.trouble().error, None);
    let known = disk.restarted();
    assert!(known.pod(&"web".into()).unwrap().hooks.contains_key("c1"));
    assert!(known.pod(&"before".into()).is_some() && known.pod(&"ended".into()).is_none());
    journal.hook_ended(&"web".into(), "c1").await.unwrap();
    assert!(disk.restarted().pod(&"web".into()).unwrap().hooks["c1"].ended);
}

#[tokio::test(start_paused = true)]
async fn node_uid_applies_at_once_and_is_written_when_the_disk_has_space() {
    let disk = Disk::default();
    let journal = disk.journal();
    disk.fill(true);
    assert!(journal.set_node_uid("node-1").await.is_err());
    assert_eq!(journal.node_uid().as_deref(), Some("node-1"));
    disk.fill(false);
    sleep(LONGEST_PAUSE).await;
    assert_eq!(disk.restarted().node_uid().as_deref(), Some("node-1"));
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_hanging_disk_is_limited_and_reported() {
    let disk = Disk::default();
    let journal = disk.journal();
    let (writes, queue) = mpsc::unbounded_channel();
    // A writer in a call that does not return.
    let hanging = Journal {
        state: Arc::clone(&journal.state),
        writes: Some(writes),
    };
    let began = tokio::time::Instant::now();
    for answer in [hanging.durable().await, hanging.set_node_uid("node-1").await] {
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("has not answered"), "{error}");
    }
    assert!(began.elapsed() <= 2 * (DISK_TIMEOUT + Duration::from_secs(1)));
    assert!(hanging.trouble().error.is_some());
    drop(queue);
}
