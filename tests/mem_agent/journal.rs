//! A damaged, foreign or unwritable journal does not block teardown.

use pod_teardown::{journal, workers::stop::StopAccepted};
use redb::ReadableTable as _;

use crate::prelude::*;

fn file(node: &Node) -> PathBuf {
    node.flags.state_dir.join(journal::FILE)
}

async fn another_node(node: &Node) {
    node.insert(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
}

#[tokio::test(start_paused = true)]
async fn damaged_journal_is_quarantined_and_pods_are_torn_down() {
    let mut node = Node::with_pods(&["web", "db"]).await;
    fs::create_dir_all(&node.flags.state_dir).unwrap();
    fs::write(file(&node), "no journal").unwrap();
    node.start().await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.wait_torn_down("web").await;
    let status = node.status().await;
    assert_eq!((status.blocked, status.journal_error), (None, None));
    let [quarantined] = &status.quarantined_files[..] else {
        panic!("{:?}", status.quarantined_files)
    };
    assert!(quarantined.contains("journal.redb.bad-"), "{quarantined}");
    // Until a user removes it.
    assert_eq!(node.stop().await, Ok(()));
    node.start().await;
    assert_eq!(&node.status().await.quarantined_files[0], quarantined);
    assert_eq!(fs::read_to_string(quarantined).unwrap(), "no journal");
    fs::remove_file(quarantined).unwrap();
    node.delete("db", None).await;
    node.wait_torn_down("db").await;
    assert!(node.status().await.quarantined_files.is_empty());
}

#[tokio::test(start_paused = true)]
async fn damaged_journal_does_not_bypass_a_node_identity_mismatch() {
    let mut node = Node::started(&["web"]).await;
    assert_eq!(node.stop().await, Ok(()));
    fs::write(file(&node), "damaged").unwrap();
    another_node(&node).await;
    node.delete("web", None).await;
    node.launch().await;
    wait_until!(node.try_status().await.is_some_and(|status| {
        status
            .blocked
            .is_some_and(|held| held.contains("another-uid") && held.contains("the journal is of the Node"))
    }));
    sleep(secs(100)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unwritable_journal_blocks_no_pod_and_is_written_once_possible() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| pod.container("main"));
    node.stubborn_pod("db");
    // The journal's path is blocked by something that cannot be removed.
    let blocked = file(&node).with_extension("new");
    fs::create_dir_all(blocked.join("x")).unwrap();
    node.start().await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.wait_torn_down("web").await;
    let status = node.status().await;
    assert_eq!(status.blocked, None);
    assert!(status.journal_error.is_some() && !file(&node).exists(), "{status:?}");
    node.delete("db", Some(300)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer && seen.pod_uid == uid("db"))
        .await;
    fs::rename(&blocked, node.path("away")).unwrap();
    wait_until!(node.status().await.journal_error.is_none());
    node.crash().await;
    assert_eq!(node.journal().await, [uid("db")]);
    node.start().await;
    node.wait_torn_down("db").await;
}

#[tokio::test(start_paused = true)]
async fn stop_is_reported_as_not_durable_while_the_journal_cannot_be_written() {
    let mut node = Node::with_pods(&["web"]).await;
    fs::create_dir_all(file(&node).with_extension("new").join("x")).unwrap();
    node.start().await;
    node.cri.allow_everything();
    let path = format!("{PODS}/default/web/stop");
    let stop = async || -> StopAccepted {
        let socket = &node.flags.socket.socket;
        client::post(socket, &path, &StopRequest::default()).await.unwrap()
    };
    assert!(stop().await.not_durable.is_some());
    wait_until!(stop().await.already_terminated);
    assert_eq!(stop().await.not_durable, None, "the request changes nothing");
}

/// Changes a pod's journal entry.
fn rewrite(node: &Node, name: &str, change: impl FnOnce(&mut Value)) {
    const PODS: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("pods-v1");
    let database = redb::Database::open(file(node)).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut pods = transaction.open_table(PODS).unwrap();
        let uid = uid(name);
        let mut entry: Value = serde_json::from_slice(pods.get(&*uid).unwrap().unwrap().value()).unwrap();
        change(&mut entry);
        pods.insert(&*uid, &*serde_json::to_vec(&entry).unwrap()).unwrap();
    }
    transaction.commit().unwrap();
}

#[tokio::test(start_paused = true)]
async fn wall_clock_jump_moves_no_deadline_and_reruns_no_hook() {
    for jumped in ["1970-01-01T00:00:00Z", "2200-01-01T00:00:00Z"] {
        let mut node = Node::new().await;
        node.pod("web", &hooked(&exec()), |pod| pod.container("main").ignores_term());
        node.start().await;
        node.cri.in_order([
            expect(testbed::scripted_cri::ExecSync::of("main")),
            expect(StopContainer::of("main")),
            expect(StopContainer::of("main").timeout_within(secs(17)..=secs(18))),
        ]);
        node.delete("web", None).await;
        node.calls(2, |_| true).await;
        sleep(secs(6)).await;
        node.crash().await;
        rewrite(&node, "web", |entry| {
            entry["begun"]["wall"] = jumped.into();
            for (_, hook) in entry["hooks"].as_object_mut().unwrap() {
                assert_eq!(hook["ended"], true);
                hook["started"]["wall"] = jumped.into();
            }
        });
        sleep(secs(6)).await;
        node.start().await;
        node.calls(3, |_| true).await;
        node.cri.allow_everything();
        node.wait_torn_down("web").await;
        node.cri.finished().await;
    }
}
