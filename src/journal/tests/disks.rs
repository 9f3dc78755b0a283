//! Disks that cannot be written, at the start or later.

use std::sync::mpsc;

use super::*;

/// Storage that a test can break: it is full, or does not answer until the sender is dropped.
struct Broken {
    place: StateDir,
    full: Arc<AtomicBool>,
    answers: Mutex<Option<mpsc::Receiver<()>>>,
}

impl Broken {
    fn new(place: StateDir, full: bool) -> (Arc<Self>, Arc<AtomicBool>) {
        let full = Arc::new(AtomicBool::new(full));
        let broken = Self {
            place,
            full: Arc::clone(&full),
            answers: Mutex::default(),
        };
        (Arc::new(broken), full)
    }
}

impl Store for Broken {
    fn open(&self, rows: &[Row]) -> Result<Database, JournalError> {
        if let Some(answers) = self.answers.lock().take() {
            answers.recv().ok();
        }
        match self.full.load(Ordering::SeqCst) {
            true => Err(error::io("make")(io::ErrorKind::StorageFull.into())),
            false => self.place.open(rows),
        }
    }

    fn quarantined(&self) -> Vec<PathBuf> {
        self.place.quarantined()
    }
}

#[tokio::test(start_paused = true)]
async fn journal_that_cannot_be_created_delays_nothing_and_is_created_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    // Nothing can be created if the partial journal is a directory that is not empty.
    fs::create_dir_all(path.with_extension("new").join("x")).unwrap();
    let journal = Journal::open(dir.path(), &machine("m1")).unwrap();
    assert!(journal.trouble().error.is_some() && !path.exists());
    let now = now();
    assert!(journal.set_node_uid("node-1").await.is_err());
    journal.record_termination(&pod("a"), now.clone(), Duration::from_secs(10), None);
    assert!(journal.hook_started(&"a".into(), "c1", now).await.is_err());
    fs::rename(path.with_extension("new"), dir.path().join("away")).unwrap();
    sleep(LONGEST_PAUSE).await;
    until_written(&journal).await;
    drop(journal);
    let journal = opened(dir.path(), &machine("m1")).await;
    assert_eq!(journal.node_uid().as_deref(), Some("node-1"));
    assert!(journal.pod(&"a".into()).unwrap().hooks.contains_key("c1"));
}

#[tokio::test(start_paused = true)]
async fn hanging_disk_delays_a_stop_briefly_and_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let place = StateDir::lock(dir.path(), &machine("m1")).unwrap();
    let (hangs, answers) = mpsc::channel();
    let (store, _) = Broken::new(place, false);
    *store.answers.lock() = Some(answers);
    let journal = Journal::run(JournalState::default(), None, store, Blocking::default());
    let now = now();
    journal.record_termination(&pod("a"), now.clone(), Duration::from_secs(12), None);
    let steps = async {
        assert!(journal.durable().await.is_err());
        assert!(journal.hook_started(&"a".into(), "c1", now).await.is_err());
        assert!(journal.hook_ended(&"a".into(), "c1").await.is_err());
    };
    let late = timeout(Duration::from_secs(3), steps);
    // The clock does not advance while a thread works.
    let clock = async {
        for _ in 0..40 {
            advance(Duration::from_millis(100)).await;
        }
    };
    let (steps, ()) = tokio::join!(late, clock);
    drop(hangs);
    steps.unwrap();
    until_written(&journal).await;
    journal.durable().await.unwrap();
}

/// The disk is real, and the clock is paused.
async fn until_written(journal: &Journal) {
    while journal.trouble().error.is_some() {
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn state_directory_that_cannot_be_created_is_created_later() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let place = StateDir::lock(&state, &machine("m1")).unwrap();
    fs::remove_dir(&state).unwrap();
    let (store, full) = Broken::new(place, true);
    let journal = Journal::run(JournalState::default(), None, store, Blocking::default());
    assert!(journal.set_node_uid("node-1").await.is_err());
    full.store(false, Ordering::SeqCst);
    until_written(&journal).await;
    assert!(state.join(FILE).is_file());
}

#[tokio::test(start_paused = true)]
async fn damaged_journal_keeps_its_name_until_it_can_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    fs::write(&path, "damaged").unwrap();
    fs::create_dir_all(path.with_extension("new").join("x")).unwrap();
    let journal = Journal::open(dir.path(), &machine("m1")).unwrap();
    assert!(journal.trouble().error.is_some());
    assert_eq!(
        (fs::read_to_string(&path).unwrap(), journal.quarantined()),
        ("damaged".to_owned(), vec![])
    );
    fs::rename(path.with_extension("new"), dir.path().join("away")).unwrap();
    until_written(&journal).await;
    assert_eq!(fs::read_to_string(&journal.quarantined()[0]).unwrap(), "damaged");
}

#[tokio::test(start_paused = true)]
async fn read_only_journal_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let now = now();
    drop(
        reopened(dir.path(), async |journal: &Journal| {
            journal.set_node_uid("node-1").await.unwrap();
            journal.record_termination(&pod("a"), now.clone(), Duration::from_secs(10), None);
        })
        .await,
    );
    drop(closed(dir.path()).await);
    let place = StateDir::lock(dir.path(), &machine("m1")).unwrap();
    // Like a read-only disk: its content can be read, and it cannot be opened.
    let (state, database) = place.start().unwrap();
    drop(database);
    let (store, full) = Broken::new(place, true);
    let journal = Journal::run(state, None, store, Blocking::default());
    assert_eq!(journal.node_uid().as_deref(), Some("node-1"));
    assert!(journal.pod(&"a".into()).is_some());
    journal.record_termination(&pod("b"), now, Duration::from_secs(10), None);
    assert!(journal.durable().await.is_err());
    full.store(false, Ordering::SeqCst);
    until_written(&journal).await;
    assert!(journal.quarantined().is_empty(), "it was ours");
    drop(journal);
    let journal = opened(dir.path(), &machine("m1")).await;
    assert_eq!(journal.unfinished().len(), 2);
}

#[tokio::test]
async fn missing_rights_and_dangling_links_prevent_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    std::os::unix::fs::symlink(dir.path().join("not mounted"), &path).unwrap();
    let Err(error) = Journal::open(dir.path(), &machine("m1")) else {
        panic!("a journal on a disk that is not mounted is passed over")
    };
    assert!(
        error.prevents_start() && error.to_string().contains("dangling symlink"),
        "{error}"
    );
    assert!(path.symlink_metadata().unwrap().is_symlink());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let Err(error) = Journal::open(&file.join("state"), &machine("m1")) else {
        panic!("a directory in a file")
    };
    assert!(error.prevents_start(), "{error}");
}

/// Restores the state before the last writes, as if a page were lost.
#[tokio::test]
async fn pause_and_node_uid_survive_a_new_journal() {
    let dir = tempfile::tempdir().unwrap();
    let before = reopened(dir.path(), async |journal| {
        journal.set_node_uid("node-1").await.unwrap();
    })
    .await;
    drop(before);
    // It is closed when it can be opened.
    drop(opened(dir.path(), &machine("m1")).await);
    let before = fs::read(dir.path().join(FILE)).unwrap();
    let held = WatchState {
        highest: 7,
        absence_hold_reason: Some("the list is empty".to_owned()),
        absence_hold_kinds: [AbsenceHoldKind::EmptyList].into(),
        since: Some(Timestamp::UNIX_EPOCH),
    };
    let journal = opened(dir.path(), &machine("m1")).await;
    let paused = paused();
    journal.change_node(|node| node.paused = Some(paused.clone()));
    journal.change_node(|node| node.watch = held.clone());
    journal.durable().await.unwrap();
    drop(journal);
    drop(opened(dir.path(), &machine("m1")).await);
    fs::write(dir.path().join(FILE), before).unwrap();
    for _ in 0..2 {
        let journal = opened(dir.path(), &machine("m1")).await;
        assert_eq!(journal.node(|node| node.paused.clone()), Some(paused.clone()));
        assert_eq!(
            WatchState {
                highest: 7,
                ..journal.node(|node| node.watch.clone())
            },
            held
        );
    }
    let journal = opened(dir.path(), &machine("m1")).await;
    journal.change_node(|node| node.paused = None);
    journal.durable().await.unwrap();
    drop(journal);
    assert_eq!(
        opened(dir.path(), &machine("m1"))
            .await
            .node(|node| node.paused.clone()),
        None
    );
}
