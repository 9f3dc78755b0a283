//! Journals of other nodes.

use super::*;

async fn of_machine_1(dir: &Path) {
    let now = now();
    let journal = Journal::open(dir, &machine("m1")).unwrap();
    journal.set_node_uid("node-1").await.unwrap();
    journal.record_termination(&pod("a"), now, Duration::from_secs(10), None);
    journal.durable().await.unwrap();
}

#[tokio::test]
async fn journal_of_another_node_is_quarantined_and_can_be_restored_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    of_machine_1(dir.path()).await;
    let clone = opened(dir.path(), &machine("m2")).await;
    assert_eq!((clone.node_uid(), clone.unfinished().len()), (None, 0));
    let quarantined = clone.quarantined();
    assert_eq!(quarantined.len(), 1);
    clone.set_node_uid("node-2").await.unwrap();
    drop(clone);
    let clone = opened(dir.path(), &machine("m2")).await;
    assert_eq!(clone.node_uid().as_deref(), Some("node-2"));
    assert_eq!(clone.quarantined(), quarantined, "until a user removes it");
    drop(clone);
    // Its own node can still use it.
    let home = tempfile::tempdir().unwrap();
    fs::rename(&quarantined[0], home.path().join(FILE)).unwrap();
    let back = opened(home.path(), &machine("m1")).await;
    assert!(back.pod(&"a".into()).is_some() && back.node_uid().as_deref() == Some("node-1"));
}

#[tokio::test]
async fn journal_of_a_second_clone_overwrites_nothing() {
    let dir = tempfile::tempdir().unwrap();
    of_machine_1(dir.path()).await;
    for (clones, id) in ["m2", "m3", "m4"].into_iter().enumerate() {
        let journal = opened(dir.path(), &machine(id)).await;
        journal.set_node_uid(id).await.unwrap();
        assert_eq!(journal.quarantined().len(), clones + 1);
    }
}

#[tokio::test]
async fn state_directory_has_one_agent_even_if_the_journal_is_moved_away() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(dir.path(), &machine("m1")).unwrap();
    fs::rename(dir.path().join(FILE), dir.path().join("moved")).unwrap();
    let Err(error) = Journal::open(dir.path(), &machine("m1")) else {
        panic!("two agents write one journal")
    };
    assert!(
        error.prevents_start() && error.to_string().contains("is locked by process"),
        "{error}"
    );
    drop(first);
    opened(dir.path(), &machine("m1")).await;
}

#[tokio::test]
async fn node_uid_is_recorded_again_after_an_operator_moved_the_journal_away() {
    let dir = tempfile::tempdir().unwrap();
    of_machine_1(dir.path()).await;
    drop(opened(dir.path(), &machine("m1")).await);
    fs::remove_file(dir.path().join(FILE)).unwrap();
    let journal = opened(dir.path(), &machine("m1")).await;
    assert_eq!(journal.node_uid(), None);
    journal.set_node_uid("node-2").await.unwrap();
    drop(journal);
    let path = dir.path().join(FILE);
    drop(opened(dir.path(), &machine("m1")).await);
    fs::write(&path, "damaged").unwrap();
    let journal = opened(dir.path(), &machine("m1")).await;
    assert_eq!(journal.node_uid().as_deref(), Some("node-2"), "damage is no decision");
}
