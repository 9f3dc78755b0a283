//! Safety holds and their approval.

use pod_teardown::{
    cli::ApprovalRequest,
    handover::guard::holds::{SafetyHold, SafetyHolds},
    ops::admin::holds::{APPROVE, Approved, HOLDS},
};

use crate::prelude::*;

async fn safety_holds(node: &Node) -> SafetyHolds {
    client::get(&node.flags.socket.socket, HOLDS).await.unwrap()
}

pub async fn hold_items(node: &Node) -> Vec<SafetyHold> {
    safety_holds(node).await.items
}

pub async fn item_names(node: &Node) -> Vec<String> {
    hold_items(node).await.into_iter().map(|item| item.item).collect()
}

/// Waits for this hold and returns it.
pub async fn wait_held(node: &Node, name: &str) -> SafetyHold {
    wait_until!(item_names(node).await.iter().any(|item| item == name));
    let report = safety_holds(node).await;
    report.items.into_iter().find(|item| item.item == name).unwrap()
}

pub async fn approve(node: &Node, item: &str) -> Result<Approved, String> {
    try_approve(node, item, None).await
}

async fn try_approve(node: &Node, item: &str, digest: Option<String>) -> Result<Approved, String> {
    let ask = ApprovalRequest {
        item: item.to_owned(),
        digest,
        yes: false,
        reason: Some("for a test".to_owned()),
    };
    let answer = client::post(&node.flags.socket.socket, APPROVE, &ask).await;
    answer.map_err(|error| error.to_string())
}

const WEB: &str = "pod/default/web";

/// A node whose deleted pod "web" is on hold, because it runs without a cgroup.
async fn held_without_cgroup() -> Node {
    let mut node = Node::with_pods(&["web"]).await;
    fs::remove_dir(node.pod_cgroup("web")).unwrap();
    node.start().await;
    let answer = approve(&node, "absence").await.unwrap_err();
    assert!(answer.contains("there is no safety hold"), "{answer}");
    node.delete("web", None).await;
    wait_held(&node, WEB).await;
    node
}

#[tokio::test(start_paused = true)]
async fn unknown_item_cannot_be_approved_and_the_error_lists_all_items() {
    let node = held_without_cgroup().await;
    let answer = approve(&node, "pod/default/db").await.unwrap_err();
    assert!(answer.contains("pod/default/web (UID uid-web)"), "{answer}");
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn kubelet_is_listed_and_cannot_be_approved() {
    let mut node = Node::new().await;
    kubelet(&node);
    node.start().await;
    let report = safety_holds(&node).await;
    assert!(report.blocked.unwrap().contains("a kubelet runs on this node") && report.items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn reregistered_node_is_accepted_after_approval_and_a_restart() {
    let mut node = Node::started(&["web"]).await;
    assert_eq!(node.stop().await, Ok(()));
    node.insert(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
    node.launch().await;
    wait_until!(node.try_status().await.is_some());
    let item = wait_held(&node, "node-uid").await;
    assert!(
        item.why.contains("another-uid") && item.why.contains("pod-teardown approve node-uid"),
        "{item:?}"
    );
    assert!(item.since.is_some() && safety_holds(&node).await.blocked.is_none());
    node.cri.allow_everything();
    node.delete("web", None).await;
    sleep(secs(60)).await;
    assert!(node.cri.effects().is_empty());
    let approved = approve(&node, "node-uid").await.unwrap();
    assert_eq!((approved.item.item.as_str(), approved.not_durable), ("node-uid", None));
    node.wait_torn_down("web").await;
    // It may be another cluster that does not know these pods.
    assert_eq!(item_names(&node).await, ["absence"]);
    approve(&node, "absence").await.unwrap();
    assert!(item_names(&node).await.is_empty());
    node.crash().await;
    node.simple_pod("db");
    node.start().await;
    node.delete("db", None).await;
    node.wait_torn_down("db").await;
}

#[tokio::test(start_paused = true)]
async fn pods_missing_in_another_cluster_need_their_own_approval() {
    for (restarts, others) in [(true, 1), (true, 5), (false, 5)] {
        let mut node = Node::new().await;
        let names = ["web", "db", "mail"];
        for name in names {
            node.simple_pod(name);
        }
        node.run().await;
        sleep(secs(1)).await;
        if restarts {
            node.crash().await;
        }
        replaced(&mut node, 1_000_000).await;
        node.insert(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
        for number in 0..others {
            node.insert(pod(&format!("other-{number}"), &plain()));
        }
        if restarts {
            node.launch().await;
            wait_until!(node.try_status().await.is_some());
        }
        wait_held(&node, "node-uid").await;
        approve(&node, "node-uid").await.unwrap();
        let numbered = async || wait_held(&node, "absence").await.approval_effect.contains("(3)");
        wait_until("the number of missing pods is reported", numbered).await;
        let item = wait_held(&node, "absence").await;
        assert!(item.why.contains("under which this node had 3 pods"), "{item:?}");
        sleep(secs(700)).await;
        assert!(node.cri.effects().is_empty() && item_names(&node).await == ["absence"]);
        approve(&node, "absence").await.unwrap();
        node.wait_all_torn_down(names).await;
        assert!(item_names(&node).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn older_list_is_accepted_after_approval_also_across_restarts() {
    for restarts in [false, true] {
        let mut node = Node::with_pods(&["web", "db"]).await;
        node.start().await;
        let own = recorded_node(&node).await;
        // The store is restored to a state before `web` was created.
        replaced(&mut node, 1).await;
        node.insert(own);
        node.insert(pod("db", &plain()));
        let item = wait_held(&node, "absence").await;
        assert!(
            item.why.contains("was etcd restored?") && item.since.is_some(),
            "{item:?}"
        );
        node.cri.allow_everything();
        sleep(secs(400)).await;
        assert!(node.cri.effects().is_empty());
        if restarts {
            node.restart().await;
            let after = wait_held(&node, "absence").await;
            assert_eq!((after.since, &after.why), (item.since, &item.why));
        }
        approve(&node, "absence").await.unwrap();
        // After a restart its leftovers are housekeeping's: that run of the agent has never seen it.
        node.wait_torn_down("web").await;
        assert!(item_names(&node).await.is_empty() && node.pod_dir("db").exists());
        node.restart().await;
        sleep(secs(60)).await;
        assert!(item_names(&node).await.is_empty());
    }
}

/// A node whose agent saw so many pods run, then a list without the first `lost` of them.
async fn node_missing_pods(pods: usize, node_missing_pods: usize, restarts: bool) -> Node {
    let mut node = Node::new().await;
    let names: Vec<_> = (0..pods).map(|number| format!("web-{number}")).collect();
    for name in &names {
        node.simple_pod(name);
    }
    node.start().await;
    if restarts {
        sleep(secs(1)).await;
        node.crash().await;
    } else {
        inject_fault(&node, Fault::new(Action::StallWatch).once());
        sleep(secs(1)).await;
    }
    node.delete_all(&names[..node_missing_pods], Some(0)).await;
    node.cri.allow_everything();
    if restarts {
        node.start().await;
    }
    node
}

#[tokio::test(start_paused = true)]
async fn list_that_lacks_most_of_many_pods_is_blocked_until_approval() {
    for restarts in [false, true] {
        let node = node_missing_pods(15, 10, restarts).await;
        let item = wait_held(&node, "absence").await;
        assert!(item.why.contains("a list lacks 10 of the 15 pods"), "{item:?}");
        sleep(secs(700)).await;
        assert!(node.cri.effects().is_empty() && node.pod_dir("web-3").exists());
        approve(&node, "absence").await.unwrap();
        for number in 0..10 {
            node.wait_torn_down(&format!("web-{number}")).await;
        }
        assert!(node.pod_dir("web-10").exists() && item_names(&node).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn number_of_missing_pods_is_reported_across_restarts() {
    let mut node = node_missing_pods(15, 10, true).await;
    // A reboot.
    node.cri.change(|world| {
        world.containers.clear();
        world.sandboxes.clear();
    });
    for _ in 0..2 {
        for _ in 0..2 {
            let item = wait_held(&node, "absence").await;
            assert!(item.approval_effect.contains("(10)"), "{item:?}");
            // In the list again.
            sleep(secs(700)).await;
        }
        node.restart().await;
    }
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn approval_before_the_first_list_does_not_cover_pods_that_it_lacks() {
    let mut node = node_missing_pods(15, 10, false).await;
    wait_held(&node, "absence").await;
    node.crash().await;
    for number in 0..8 {
        node.simple_pod(&format!("new-{number}"));
    }
    inject_fault(&node, Fault::status(500).verb("list").resource("pods"));
    node.launch().await;
    wait_until!(node.try_status().await.is_some());
    approve(&node, "absence").await.unwrap();
    node.api.faults().clear();
    let item = wait_held(&node, "absence").await;
    assert!(item.approval_effect.contains("(10)"), "{item:?}");
    sleep(secs(700)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn suddenly_empty_list_blocks_everything_until_approval_also_after_a_restart() {
    for restarts in [false, true] {
        let node = node_missing_pods(2, 2, restarts).await;
        let item = wait_held(&node, "absence").await;
        assert_has(&item.why, &["a list was empty, but this node had 2 pods"]);
        assert_has(&item.approval_effect, &["(2)"]);
        sleep(secs(900)).await;
        assert!(node.cri.effects().is_empty() && node.pod_dir("web-0").exists());
        approve(&node, "absence").await.unwrap();
        node.wait_all_torn_down(["web-0", "web-1"]).await;
        assert!(item_names(&node).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_vanish_gradually_across_restarts_are_not_suspicious() {
    let mut node = Node::new().await;
    for number in 0..18 {
        node.simple_pod(&format!("web-{number}"));
    }
    node.run().await;
    for round in 0..4 {
        // Too short for housekeeping.
        sleep(secs(1)).await;
        node.crash().await;
        for number in 0..4 {
            node.delete(&format!("web-{}", round * 4 + number), Some(0)).await;
        }
        node.start().await;
        assert!(item_names(&node).await.is_empty(), "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_deleted_before_a_restart_do_not_count_as_missing() {
    let mut node = Node::running(&["web"]).await;
    node.delete("web", None).await;
    node.wait_torn_down("web").await;
    sleep(secs(1)).await;
    node.restart().await;
    sleep(secs(60)).await;
    assert!(item_names(&node).await.is_empty(), "the node is empty, and should be");
}

#[tokio::test(start_paused = true)]
async fn approved_pod_that_runs_without_a_cgroup_is_stopped_and_no_other_is() {
    let mut node = Node::new().await;
    for name in ["web", "db"] {
        node.simple_pod(name);
        fs::remove_dir(node.pod_cgroup(name)).unwrap();
    }
    node.start().await;
    for name in ["web", "db"] {
        node.delete(name, None).await;
        wait_held(&node, &format!("pod/default/{name}")).await;
    }
    node.cri.allow_everything();
    let approved = approve(&node, "pod/default/web").await.unwrap();
    assert_eq!(approved.item.uid.as_deref(), Some("uid-web"));
    node.wait_torn_down("web").await;
    sleep(secs(120)).await;
    assert_eq!(item_names(&node).await, ["pod/default/db"]);
    assert!(node.cri.effects().iter().all(|(_, seen)| seen.pod_uid == uid("web")));
    // By its UID, too.
    approve(&node, "uid-db").await.unwrap();
    node.wait_torn_down("db").await;
}

#[tokio::test(start_paused = true)]
async fn pod_without_a_directory_is_stopped_after_approval_and_kept_while_it_has_mounts() {
    let mut node = Node::with_pods(&["web"]).await;
    fs::rename(node.pod_dir("web"), node.path("renamed")).unwrap();
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~secret/s");
    let table = fs::read_to_string(node.path("mountinfo")).unwrap();
    let mount = format!("40 1 0:30 / {} rw - tmpfs tmpfs rw\n", volume.display());
    fs::write(node.path("mountinfo"), table.clone() + &mount).unwrap();
    node.start().await;
    node.delete("web", None).await;
    let item = wait_held(&node, WEB).await;
    assert!(item.why.contains("pod-teardown approve pod/default/web"), "{item:?}");
    node.cri.allow_everything();
    approve(&node, WEB).await.unwrap();
    node.wait_blocked("web", "still mounted").await;
    sleep(secs(300)).await;
    assert!(node.get("web").await.is_some());
    fs::write(node.path("mountinfo"), table).unwrap();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn approval_survives_a_crash_and_covers_no_evidence_after_it() {
    for has_new_evidence in [false, true] {
        let mut node = held_without_cgroup().await;
        // No effect in this run.
        let process = kubelet(&node);
        sleep(secs(10)).await;
        approve(&node, WEB).await.unwrap();
        node.crash().await;
        if has_new_evidence {
            add_container(&node);
        }
        fs::remove_dir_all(process).unwrap();
        node.run().await;
        if has_new_evidence {
            sleep(secs(300)).await;
            assert_eq!(item_names(&node).await, [WEB]);
            assert!(node.cri.effects().is_empty());
        } else {
            node.wait_torn_down("web").await;
        }
    }
}

fn add_container(node: &Node) {
    node.cri
        .change(|world| drop(world.pod("default", "web", &uid("web")).container("another")));
}

#[tokio::test(start_paused = true)]
async fn approval_covers_only_the_shown_evidence() {
    let node = held_without_cgroup().await;
    let shown = wait_held(&node, WEB).await;
    assert_eq!(shown.facts.len(), 2, "a container and a sandbox: {shown:?}");
    add_container(&node);
    wait_until!(wait_held(&node, WEB).await.digest != shown.digest);
    let now = wait_held(&node, WEB).await;
    let answer = try_approve(&node, WEB, Some(shown.digest)).await.unwrap_err();
    assert!(
        answer.contains("has changed") && answer.contains(&now.digest),
        "{answer}"
    );
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
    node.cri.allow_everything();
    try_approve(&node, WEB, Some(now.digest)).await.unwrap();
    node.wait_torn_down("web").await;
}
