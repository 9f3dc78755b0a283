//! What the guards hold back, and what its release does.

use std::fs;

use pod_teardown::{
    handover::guard::holds::{SafetyHold, SafetyHolds},
    ops::{
        admin::holds::{APPROVE, ApprovalRequest, Approved, HOLDS},
        client,
    },
};
use serde_json::json;
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::sleep;

use crate::{
    guard::kubelet,
    node::{NODE, Node, secs, until},
    pods::{plain, pod, uid},
    server::trouble,
    world::{recorded_node, replaced},
};

async fn held(node: &Node) -> SafetyHolds {
    client::get(&node.flags.socket.socket, HOLDS).await.unwrap()
}

pub async fn held_items(node: &Node) -> Vec<SafetyHold> {
    held(node).await.items
}

pub async fn items(node: &Node) -> Vec<String> {
    held_items(node).await.into_iter().map(|item| item.item).collect()
}

/// Waits until this is held, and tells of it.
pub async fn is_held(node: &Node, name: &str) -> SafetyHold {
    until("it is held", async || items(node).await.iter().any(|item| item == name)).await;
    let report = held(node).await;
    report.items.into_iter().find(|item| item.item == name).unwrap()
}

pub async fn release(node: &Node, item: &str) -> Result<Approved, String> {
    released(node, item, None).await
}

async fn released(node: &Node, item: &str, digest: Option<String>) -> Result<Approved, String> {
    let ask = ApprovalRequest {
        item: item.to_owned(),
        digest,
    };
    let told = client::post(&node.flags.socket.socket, APPROVE, &ask).await;
    told.map_err(|error| error.to_string())
}

#[tokio::test(start_paused = true)]
async fn unknown_item_cannot_be_approved_and_the_error_lists_all_items() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    fs::remove_dir(node.pod_cgroup("web")).unwrap();
    node.start().await;
    assert_eq!(held(&node).await, SafetyHolds::default());
    let told = release(&node, "absence").await.unwrap_err();
    assert!(told.contains("nothing is held that could be released"), "{told}");
    node.delete("web", None).await;
    is_held(&node, "pod/default/web").await;
    let told = release(&node, "pod/default/db").await.unwrap_err();
    assert!(told.contains("pod/default/web (UID uid-web)"), "{told}");
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn kubelet_is_listed_and_cannot_be_approved() {
    let mut node = Node::new().await;
    kubelet(&node);
    node.start().await;
    let report = held(&node).await;
    assert!(report.held.unwrap().contains("a kubelet works on this node's pods") && report.items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn reregistered_node_is_accepted_after_approval_and_a_restart() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.start().await;
    assert_eq!(node.stop().await, Ok(()));
    node.object(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
    node.launch().await;
    until("the agent answers", async || node.ask().await.is_some()).await;
    let item = is_held(&node, "node-uid").await;
    assert!(
        item.why.contains("another-uid") && item.why.contains("pod-teardown release node-uid"),
        "{item:?}"
    );
    assert!(item.since.is_some() && held(&node).await.held.is_none());
    node.cri.allow_everything();
    node.delete("web", None).await;
    sleep(secs(60)).await;
    assert!(node.cri.effects().is_empty());
    let released = release(&node, "node-uid").await.unwrap();
    assert_eq!((released.item.item.as_str(), released.not_durable), ("node-uid", None));
    node.nothing_left("web").await;
    // It might have been another cluster that does not know of what lived here.
    assert_eq!(items(&node).await, ["absence"]);
    release(&node, "absence").await.unwrap();
    assert!(items(&node).await.is_empty());
    node.crash().await;
    node.polite_pod("db");
    node.start().await;
    node.delete("db", None).await;
    node.nothing_left("db").await;
}

#[tokio::test(start_paused = true)]
async fn pods_missing_in_another_cluster_need_their_own_approval() {
    for (restarts, others) in [(true, 1), (true, 5), (false, 5)] {
        let mut node = Node::new().await;
        let names = ["web", "db", "mail"];
        for name in names {
            node.polite_pod(name);
        }
        node.cri.allow_everything();
        node.start().await;
        sleep(secs(1)).await;
        if restarts {
            node.crash().await;
        }
        replaced(&mut node, 1_000_000).await;
        node.object(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
        for number in 0..others {
            node.object(pod(&format!("other-{number}"), &plain()));
        }
        if restarts {
            node.launch().await;
            until("the agent answers", async || node.ask().await.is_some()).await;
        }
        is_held(&node, "node-uid").await;
        release(&node, "node-uid").await.unwrap();
        let numbered = async || is_held(&node, "absence").await.release.contains("(3)");
        until("it is told how many are missing", numbered).await;
        let item = is_held(&node, "absence").await;
        assert!(item.why.contains("under which 3 pods lived"), "{item:?}");
        sleep(secs(700)).await;
        assert!(node.cri.effects().is_empty() && items(&node).await == ["absence"]);
        release(&node, "absence").await.unwrap();
        for name in names {
            node.nothing_left(name).await;
        }
        assert!(items(&node).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn older_list_is_accepted_after_approval_and_a_restart() {
    let mut node = Node::with_pods(&["web", "db"]).await;
    node.start().await;
    let own = recorded_node(&node).await;
    // The store comes back as it was before `web` was made.
    replaced(&mut node, 1).await;
    node.object(own);
    node.object(pod("db", &plain()));
    let item = is_held(&node, "absence").await;
    assert!(
        item.why.contains("was the cluster's store restored?") && item.since.is_some(),
        "{item:?}"
    );
    node.cri.allow_everything();
    sleep(secs(400)).await;
    assert!(node.cri.effects().is_empty());
    release(&node, "absence").await.unwrap();
    node.nothing_left("web").await;
    assert!(items(&node).await.is_empty() && node.pod_dir("db").exists());
    node.crash().await;
    node.start().await;
    sleep(secs(60)).await;
    assert!(items(&node).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn hold_from_before_a_restart_can_be_approved() {
    let mut node = Node::with_pods(&["web", "db"]).await;
    node.start().await;
    let own = recorded_node(&node).await;
    replaced(&mut node, 1).await;
    node.object(own);
    node.object(pod("db", &plain()));
    let before = is_held(&node, "absence").await;
    node.crash().await;
    node.cri.allow_everything();
    node.start().await;
    let after = is_held(&node, "absence").await;
    assert_eq!((after.since, &after.why), (before.since, &before.why));
    release(&node, "absence").await.unwrap();
    // What is left of it is housekeeping's: the agent of this run has never seen it.
    node.nothing_left("web").await;
    assert!(node.pod_dir("db").exists());
}

#[tokio::test(start_paused = true)]
async fn suddenly_empty_list_is_accepted_after_approval() {
    let mut node = Node::with_pods(&["web", "db"]).await;
    node.start().await;
    trouble(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    for name in ["web", "db"] {
        node.delete(name, Some(0)).await;
    }
    let item = is_held(&node, "absence").await;
    assert!(
        item.why.contains("a list was empty, but 2 pods") && item.release.contains("(2)"),
        "{item:?}"
    );
    sleep(secs(400)).await;
    assert!(node.cri.effects().is_empty());
    node.cri.allow_everything();
    release(&node, "absence").await.unwrap();
    for name in ["web", "db"] {
        node.nothing_left(name).await;
    }
    assert!(items(&node).await.is_empty());
}

/// A node whose agent saw so many pods live, and then a list without the first few of them.
async fn lost(pods: usize, lost: usize, restarts: bool) -> Node {
    let mut node = Node::new().await;
    let names: Vec<_> = (0..pods).map(|number| format!("web-{number}")).collect();
    for name in &names {
        node.polite_pod(name);
    }
    node.start().await;
    if restarts {
        sleep(secs(1)).await;
        node.crash().await;
    } else {
        trouble(&node, Fault::new(Action::StallWatch).once());
        sleep(secs(1)).await;
    }
    for name in &names[..lost] {
        node.delete(name, Some(0)).await;
    }
    node.cri.allow_everything();
    if restarts {
        node.start().await;
    }
    node
}

#[tokio::test(start_paused = true)]
async fn list_that_lacks_most_of_many_pods_is_blocked_until_approval() {
    for restarts in [false, true] {
        let node = lost(15, 10, restarts).await;
        let item = is_held(&node, "absence").await;
        assert!(item.why.contains("a list lacks 10 of the 15 pods"), "{item:?}");
        sleep(secs(700)).await;
        assert!(node.cri.effects().is_empty() && node.pod_dir("web-3").exists());
        release(&node, "absence").await.unwrap();
        for number in 0..10 {
            node.nothing_left(&format!("web-{number}")).await;
        }
        assert!(node.pod_dir("web-10").exists() && items(&node).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn number_of_missing_pods_is_reported_across_restarts() {
    let mut node = lost(15, 10, true).await;
    // As after a reboot.
    node.cri.change(|world| {
        world.containers.clear();
        world.sandboxes.clear();
    });
    for _ in 0..2 {
        for _ in 0..2 {
            let item = is_held(&node, "absence").await;
            assert!(item.release.contains("(10)"), "{item:?}");
            // Listed once more.
            sleep(secs(700)).await;
        }
        node.crash().await;
        node.start().await;
    }
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn approval_before_the_first_list_does_not_cover_pods_that_it_lacks() {
    let mut node = lost(15, 10, false).await;
    is_held(&node, "absence").await;
    node.crash().await;
    for number in 0..8 {
        node.polite_pod(&format!("new-{number}"));
    }
    let user = format!("system:node:{NODE}");
    trouble(&node, Fault::status(500).verb("list").resource("pods").user(&user));
    node.launch().await;
    until("the agent answers", async || node.ask().await.is_some()).await;
    release(&node, "absence").await.unwrap();
    node.api.faults().clear();
    let item = is_held(&node, "absence").await;
    assert!(item.release.contains("(10)"), "{item:?}");
    sleep(secs(700)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn few_pods_or_less_than_half_may_be_missing_at_once() {
    for (pods, missing) in [(10, 9), (21, 10)] {
        let node = lost(pods, missing, false).await;
        for number in 0..missing {
            node.nothing_left(&format!("web-{number}")).await;
        }
        assert!(items(&node).await.is_empty(), "{pods} {missing}");
    }
}

#[tokio::test(start_paused = true)]
async fn empty_first_list_is_blocked_if_pods_ran_before_the_restart() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.start().await;
    sleep(secs(1)).await;
    node.crash().await;
    node.delete("web", Some(0)).await;
    node.start().await;
    let item = is_held(&node, "absence").await;
    assert!(item.why.contains("a list was empty, but 1 pod lived here"), "{item:?}");
    sleep(secs(900)).await;
    assert!(node.cri.effects().is_empty() && node.pod_dir("web").exists());
    node.cri.allow_everything();
    release(&node, "absence").await.unwrap();
    node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_vanish_gradually_across_restarts_are_not_suspicious() {
    let mut node = Node::new().await;
    for number in 0..18 {
        node.polite_pod(&format!("web-{number}"));
    }
    node.cri.allow_everything();
    node.start().await;
    for round in 0..4 {
        // Too short for housekeeping.
        sleep(secs(1)).await;
        node.crash().await;
        for number in 0..4 {
            node.delete(&format!("web-{}", round * 4 + number), Some(0)).await;
        }
        node.start().await;
        assert!(items(&node).await.is_empty(), "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_deleted_before_a_restart_do_not_count_as_missing() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.cri.allow_everything();
    node.start().await;
    node.delete("web", None).await;
    node.nothing_left("web").await;
    sleep(secs(1)).await;
    node.crash().await;
    node.start().await;
    sleep(secs(60)).await;
    assert!(items(&node).await.is_empty(), "the node is empty, and should be");
}

#[tokio::test(start_paused = true)]
async fn approved_pod_that_runs_without_a_cgroup_is_stopped_and_no_other_is() {
    let mut node = Node::new().await;
    for name in ["web", "db"] {
        node.polite_pod(name);
        fs::remove_dir(node.pod_cgroup(name)).unwrap();
    }
    node.start().await;
    for name in ["web", "db"] {
        node.delete(name, None).await;
        is_held(&node, &format!("pod/default/{name}")).await;
    }
    node.cri.allow_everything();
    let released = release(&node, "pod/default/web").await.unwrap();
    assert_eq!(released.item.uid.as_deref(), Some("uid-web"));
    node.nothing_left("web").await;
    sleep(secs(120)).await;
    assert_eq!(items(&node).await, ["pod/default/db"]);
    assert!(node.cri.effects().iter().all(|(_, seen)| seen.pod_uid == uid("web")));
    // Also by its UID.
    release(&node, "uid-db").await.unwrap();
    node.nothing_left("db").await;
}

#[tokio::test(start_paused = true)]
async fn pod_without_a_directory_is_stopped_after_approval() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    fs::remove_dir_all(node.pod_dir("web")).unwrap();
    node.start().await;
    node.delete("web", None).await;
    let item = is_held(&node, "pod/default/web").await;
    assert!(item.why.contains("pod-teardown release pod/default/web"), "{item:?}");
    node.cri.allow_everything();
    release(&node, "pod/default/web").await.unwrap();
    node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn approval_of_a_missing_directory_does_not_cover_its_mounts() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    fs::rename(node.pod_dir("web"), node.path("renamed")).unwrap();
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~secret/s");
    let table = fs::read_to_string(node.path("mountinfo")).unwrap();
    let mount = format!("40 1 0:30 / {} rw - tmpfs tmpfs rw\n", volume.display());
    fs::write(node.path("mountinfo"), table.clone() + &mount).unwrap();
    node.start().await;
    node.delete("web", None).await;
    is_held(&node, "pod/default/web").await;
    node.cri.allow_everything();
    release(&node, "pod/default/web").await.unwrap();
    node.failing("web", "still mounted").await;
    sleep(secs(300)).await;
    assert!(node.get("web").await.is_some());
    fs::write(node.path("mountinfo"), table).unwrap();
    node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn approval_survives_a_crash() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    fs::remove_dir(node.pod_cgroup("web")).unwrap();
    node.start().await;
    node.delete("web", None).await;
    is_held(&node, "pod/default/web").await;
    // Nothing comes of it in this run.
    let process = kubelet(&node);
    sleep(secs(10)).await;
    release(&node, "pod/default/web").await.unwrap();
    node.crash().await;
    fs::remove_dir_all(process).unwrap();
    node.cri.allow_everything();
    node.start().await;
    node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_new_evidence_is_blocked_again() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    fs::remove_dir(node.pod_cgroup("web")).unwrap();
    node.start().await;
    node.delete("web", None).await;
    is_held(&node, "pod/default/web").await;
    let process = kubelet(&node);
    sleep(secs(10)).await;
    release(&node, "pod/default/web").await.unwrap();
    node.cri
        .change(|world| drop(world.pod("default", "web", &uid("web")).container("another")));
    fs::remove_dir_all(process).unwrap();
    sleep(secs(300)).await;
    assert_eq!(items(&node).await, ["pod/default/web"]);
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn approval_covers_only_the_shown_evidence() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    fs::remove_dir(node.pod_cgroup("web")).unwrap();
    node.start().await;
    node.delete("web", None).await;
    let shown = is_held(&node, "pod/default/web").await;
    assert_eq!(shown.facts.len(), 2, "a container and a sandbox: {shown:?}");
    node.cri
        .change(|world| drop(world.pod("default", "web", &uid("web")).container("another")));
    until("it is seen", async || {
        is_held(&node, "pod/default/web").await.digest != shown.digest
    })
    .await;
    let now = is_held(&node, "pod/default/web").await;
    let told = released(&node, "pod/default/web", Some(shown.digest))
        .await
        .unwrap_err();
    assert!(
        told.contains("is not what was shown") && told.contains(&now.digest),
        "{told}"
    );
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
    node.cri.allow_everything();
    released(&node, "pod/default/web", Some(now.digest)).await.unwrap();
    node.nothing_left("web").await;
}
