//! Any content of the journal's file: nothing panics, is lost or is invented.

use std::collections::HashSet;

use proptest::{prelude::*, test_runner::Config};

use super::*;
use crate::journal::file::{JournalFile, inspect};
use crate::model::{
    observation::{Difference, Leftover, LeftoverKind, Observation, Verdict},
    pod::PodUid,
};

/// A closed journal, with all entries that it ever had.
struct Good {
    bytes: Vec<u8>,
    written: HashSet<(PodUid, Vec<u8>)>,
}

const PODS: usize = 40;

async fn good() -> Good {
    let dir = tempfile::tempdir().unwrap();
    let now = now();
    let journal = Journal::open(dir.path(), &machine("m1")).unwrap();
    journal.set_node_uid("node-1").await.unwrap();
    let mut written = HashSet::new();
    // Twice, so that the file has unused pages.
    for grace in [30, 10] {
        for number in 0..PODS {
            let pod = pod(&format!("uid-{number}"));
            journal.record_termination(&pod, now.clone(), Duration::from_secs(grace), None);
            written.insert((
                pod.uid.clone(),
                serde_json::to_vec(&journal.pod(&pod.uid).unwrap()).unwrap(),
            ));
        }
        journal.durable().await.unwrap();
    }
    drop(journal);
    // It is closed by then.
    drop(opened(dir.path(), &machine("m1")).await);
    drop(opened(dir.path(), &machine("m1")).await);
    Good {
        bytes: fs::read(dir.path().join(FILE)).unwrap(),
        written,
    }
}

/// Opens a journal with these bytes. Returns its number of entries.
fn judge(good: &Good, bytes: &[u8]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    fs::write(&path, bytes).unwrap();
    let place = StateDir::lock(dir.path(), &machine("m1")).unwrap();
    let (state, database) = place.start().unwrap();
    assert!(database.is_some(), "the agent has a journal again");
    let Contents { node, pods, .. } = &state.contents;
    for (uid, entry) in pods {
        assert!(
            good.written
                .contains(&(uid.clone(), serde_json::to_vec(entry).unwrap())),
            "{uid} was never written so: {entry:?}"
        );
    }
    let used = pods.len() == PODS && node.node_uid.as_deref() == Some("node-1");
    if !used {
        let kept = state.quarantined.iter().any(|path| fs::read(path).unwrap() == bytes);
        assert!(kept, "what was found is kept as it was");
        assert!(matches!(inspect(&path, &machine("m1")), Ok(JournalFile::Journal(_))));
    }
    pods.len()
}

#[tokio::test]
async fn truncated_or_foreign_file_is_quarantined() {
    let good = good().await;
    let len = good.bytes.len();
    let cuts = (0..64).map(|part| len * part / 64);
    let pages = (1..4).map(|page| len - page * 4096);
    for at in cuts.chain(pages).chain([1, 8, 63, 64, 320, 4095, 4097, len - 1]) {
        assert_eq!(judge(&good, &good.bytes[..at]), 0, "cut at {at} of {len}");
    }
    let mut headless = good.bytes.clone();
    headless[..320].fill(0);
    for bytes in [&b"no database"[..], &[0; 4096], &[0xff; 70_000], &headless] {
        assert_eq!(judge(&good, bytes), 0, "{} bytes", bytes.len());
    }
    let random = prop::collection::vec(any::<u8>(), 0..5000);
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(50)
    };
    proptest!(config, |(tail in random, magic in any::<bool>())| {
        let mut bytes = if magic { good.bytes[..400].to_vec() } else { Vec::new() };
        bytes.extend(tail);
        prop_assert_eq!(judge(&good, &bytes), 0);
    });
}

#[tokio::test]
async fn lost_block_quarantines_the_journal_or_changes_nothing() {
    let good = good().await;
    assert_eq!(judge(&good, &good.bytes), PODS, "unchanged");
    for at in (0..good.bytes.len()).step_by(512) {
        let mut bytes = good.bytes.clone();
        let hit = &mut bytes[at..at + 512];
        if hit.iter().all(|&byte| byte == 0) {
            continue;
        }
        hit.fill(0xa5);
        let known = judge(&good, &bytes);
        assert!(known == 0 || known == PODS, "{known} entries, damaged at {at}");
    }
}

#[tokio::test]
async fn flipped_bits_add_no_entry() {
    let good = good().await;
    // The rest of the file is free space.
    let places: Vec<_> = (0..good.bytes.len()).filter(|&at| good.bytes[at] != 0).collect();
    let config = Config {
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..Config::with_cases(400)
    };
    let flips = prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 1..4);
    proptest!(config, |(flips in flips)| {
        let mut bytes = good.bytes.clone();
        for (place, bit) in flips {
            bytes[places[place.index(places.len())]] ^= 1 << bit;
        }
        judge(&good, &bytes);
    });
}

#[tokio::test]
async fn directory_at_the_journals_path_is_quarantined_with_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("precious"), "data").unwrap();
    let journal = Journal::open(dir.path(), &machine("m1")).unwrap();
    let quarantined = journal.quarantined();
    assert_eq!(quarantined.len(), 1);
    assert_eq!(fs::read_to_string(quarantined[0].join("precious")).unwrap(), "data");
    assert!(path.is_file());
}

/// Writes a row that no agent of this version writes.
async fn tamper(dir: &Path, change: impl FnOnce(&redb::WriteTransaction)) {
    let database = closed(dir).await;
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
}

#[tokio::test]
async fn unusable_content_quarantines_the_journal_and_keeps_node_uid_and_pause() {
    type Tamper = fn(&redb::WriteTransaction);
    let cases: [(&str, Tamper); 5] = [
        ("UID torn", |transaction| {
            let mut pods = transaction.open_table(Table::Terminations.definition()).unwrap();
            pods.insert("torn", &b"{\"namespace\":\"ns\""[..]).unwrap();
        }),
        ("UID binary", |transaction| {
            let mut seen = transaction.open_table(Table::SeenPods.definition()).unwrap();
            seen.insert("binary", &[0xff, 0xfe][..]).unwrap();
        }),
        ("its row of the node", |transaction| {
            let mut node = transaction.open_table(Table::Node.definition()).unwrap();
            node.insert("node", &br#"{"schema":3,"paused":7}"#[..]).unwrap();
        }),
        ("format 4 of a later version", |transaction| {
            let mut node = transaction.open_table(Table::Node.definition()).unwrap();
            node.insert("node", &br#"{"schema":4,"what":"unknown row"}"#[..])
                .unwrap();
        }),
        ("no row of the node", |transaction| {
            transaction.delete_table(Table::Node.definition()).unwrap();
        }),
    ];
    for (reason, tamper_with) in cases {
        let dir = tempfile::tempdir().unwrap();
        let paused = paused();
        let journal = reopened(dir.path(), async |journal: &Journal| {
            journal.set_node_uid("node-1").await.unwrap();
            journal.change_node(|node| node.paused = Some(paused.clone()));
            journal.record_termination(&pod("good"), now(), Duration::from_secs(10), None);
        })
        .await;
        drop(journal);
        tamper(dir.path(), tamper_with).await;
        let before = fs::read(dir.path().join(FILE)).unwrap();
        let journal = opened(dir.path(), &machine("m1")).await;
        assert_eq!(journal.unfinished().len(), 0, "{reason}");
        assert_eq!(
            (journal.node_uid().as_deref(), journal.node(|node| node.paused.clone())),
            (Some("node-1"), Some(paused)),
            "{reason}"
        );
        let quarantined = journal.quarantined();
        assert_eq!(quarantined.len(), 1, "{quarantined:?}");
        assert_eq!(fs::read(&quarantined[0]).unwrap(), before);
        let Ok(JournalFile::Unusable(why)) = inspect(&quarantined[0], &machine("m1")) else {
            panic!("it is used")
        };
        assert!(why.to_string().contains(reason), "{why}");
    }
}

/// A killed agent leaves its writes up to then, in their order.
#[tokio::test(start_paused = true)]
async fn journal_is_usable_after_a_crash_at_any_write() {
    let disk = Disk::default();
    let states = Arc::clone(&disk.states);
    let journal = disk.journal();
    let now = now();
    for number in 0..4 {
        for uid in ["a", "b"] {
            journal.record_termination(
                &pod(&format!("{uid}-{number}")),
                now.clone(),
                Duration::from_secs(9),
                None,
            );
        }
        journal.durable().await.unwrap();
        journal.forget(&format!("a-{number}").as_str().into());
        journal.set_node_uid("node-1").await.unwrap();
    }
    let states = states.lock();
    // Until the first commit it has another name.
    let first = states
        .iter()
        .position(|bytes| file::parse(bytes, &machine("m1")).is_ok());
    let mut last = 0;
    for (number, bytes) in states.iter().enumerate().skip(first.unwrap()) {
        let contents = file::parse(bytes, &machine("m1"));
        last = contents
            .unwrap_or_else(|why| panic!("{why}, after write {number}"))
            .pods
            .len();
    }
    assert_eq!(last, 4);
}

/// An observation of a pod whose owner chose the longest texts, and ones that JSON makes longer.
fn crafted(uid: &str) -> Observation {
    let long = "\u{1}".repeat(4096);
    let difference = Difference {
        field: "containerStatuses[main].state.message".to_owned(),
        kubelet: Some(long.clone()),
        agent: Some(long.clone()),
        documented: Some("real exit of a container in a crash loop".to_owned()),
    };
    let mut differences = vec![difference.clone(); 400];
    differences.push(Difference {
        documented: None,
        ..difference
    });
    Observation {
        namespace: "ns".to_owned(),
        name: uid.to_owned(),
        uid: uid.to_owned(),
        deleted_at: None,
        finished_at: Timestamp::UNIX_EPOCH,
        grace_seconds: 30,
        elapsed_ms: 1,
        verdict: Verdict::Leftovers,
        differences,
        leftovers: vec![Leftover::new(LeftoverKind::Mount, &long, long.clone()); 32],
        reason: Some(long),
    }
}

/// A longer file is not read, and terminating pods would get their whole grace period again.
#[tokio::test]
async fn crafted_observations_need_bounded_space_and_the_journal_stays_usable() {
    let dir = tempfile::tempdir().unwrap();
    let now = now();
    let journal = reopened(dir.path(), async |journal: &Journal| {
        journal.record_termination(&pod("a"), now, Duration::from_secs(10), None);
        for number in 0..1750 {
            journal.record_observation(crafted(&number.to_string()), false);
        }
    })
    .await;
    assert_eq!(journal.quarantined(), Vec::<PathBuf>::new());
    assert_eq!(journal.unfinished().len(), 1);
    let observations = journal.observations();
    let bytes = serde_json::to_vec(&observations).unwrap().len();
    assert!((4 << 20..9 << 20).contains(&bytes), "{bytes} bytes");
    let file = fs::metadata(dir.path().join(FILE)).unwrap().len();
    assert!(file < 64 << 20, "{file} bytes");
    for observation in &observations {
        assert_eq!(
            observation.differences[0].documented, None,
            "the one of interest is kept"
        );
        assert!(!observation.leftovers.is_empty());
    }
}

/// A later version may write other ones. No termination depends on them.
#[tokio::test]
async fn unreadable_observation_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    drop(
        reopened(dir.path(), async |journal: &Journal| {
            journal.record_observation(crafted("known"), false);
        })
        .await,
    );
    tamper(dir.path(), |transaction| {
        let mut observations = transaction.open_table(Table::Observations.definition()).unwrap();
        observations.insert("other", &br#"{"verdict":"better"}"#[..]).unwrap();
    })
    .await;
    let journal = opened(dir.path(), &machine("m1")).await;
    assert_eq!(journal.quarantined(), Vec::<PathBuf>::new());
    assert_eq!(journal.observations().len(), 1);
}
