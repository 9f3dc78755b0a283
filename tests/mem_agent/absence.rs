//! Which lists prove that a pod is absent.

use std::time::Duration;

use serde_json::json;
use testbed::{
    apiserver::faults::{Action, Fault},
    rest::Patch,
    scripted_cri::Kind,
};
use tokio::time::{Instant, sleep};

use crate::{
    node::{NODE, Node, secs, wait_until},
    node_identity::{recorded_node, replaced},
    pods::{plain, pod},
    server::inject_fault,
};

/// A node with these pods, whose agent gets no further watch events.
async fn node_with_stalled_watch(names: &[&str]) -> Node {
    let mut node = Node::with_pods(names).await;
    node.start().await;
    node.cri.allow_everything();
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    node
}

#[tokio::test(start_paused = true)]
async fn pod_missing_in_a_list_is_confirmed_by_name_and_then_torn_down() {
    let node = node_with_stalled_watch(&["web", "db"]).await;
    node.delete("web", Some(0)).await;
    node.api.forget_requests();
    node.wait_torn_down("web").await;
    let by_name = |path: &str| path.contains("fieldSelector=") && path.contains("metadata.name%3Dweb");
    let asked = node
        .api
        .requests()
        .into_iter()
        .filter(|request| by_name(&request.asked.path));
    assert_eq!(asked.count(), 1);
    let stop = &node.calls(1, |seen| seen.kind == Kind::StopContainer).await[0];
    // No grace is needed for a deleted pod, but a stop has a minimum timeout.
    assert_eq!((&*stop.1.pod_uid, stop.1.timeout), ("uid-web", Some(secs(2))));
    assert!(
        node.cri
            .look(|world| world.containers.values().all(|container| container.pod_uid == "uid-db"))
    );
}

#[tokio::test(start_paused = true)]
async fn pod_whose_absence_cannot_be_confirmed_is_left_alone() {
    let node = node_with_stalled_watch(&["web", "db"]).await;
    node.delete("web", Some(0)).await;
    // The list is answered, the list by name is not.
    let lists = |fault: Fault| fault.verb("list").resource("pods").user(&format!("system:node:{NODE}"));
    let faults = node.api.faults();
    faults.inject(lists(Fault::delay(Duration::from_millis(1))).once());
    faults.inject(lists(Fault::status(500)));
    wait_until("the list by name was requested", async || {
        node.api
            .requests()
            .iter()
            .any(|it| it.asked.path.contains("metadata.name") && it.code == Some(500))
    })
    .await;
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty() && node.pod_dir("web").exists());
    node.api.faults().clear();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_deleted_by_force_during_its_termination_is_torn_down() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(10), 0));
    });
    node.start().await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    // Without a watch event only the answers about a deleted pod are left.
    let user = format!("system:node:{NODE}");
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    node.delete("web", Some(0)).await;
    node.api.forget_requests();
    node.wait_torn_down("web").await;
    let patches = node
        .api
        .requests()
        .into_iter()
        .filter(|it| it.asked.verb == "patch" && it.asked.user == user);
    let codes: Vec<_> = patches.filter_map(|request| request.code).collect();
    assert!(
        !codes.is_empty() && codes.iter().all(|code| [403, 404].contains(code)),
        "{codes:?}"
    );
    wait_until("the pod is finished", async || {
        node.status().await.counters.finished == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failed_pod_whose_object_vanishes_gets_no_more_grace() {
    let mut node = Node::new().await;
    node.simple_pod("db");
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    let mut failed = pod("web", &plain());
    failed["spec"]["terminationGracePeriodSeconds"] = 3600.into();
    failed["status"]["phase"] = "Failed".into();
    node.insert(failed);
    node.cri.allow_everything();
    node.start().await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    // The agent gets no deletion event, only a list without the object.
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    node.delete("web", Some(0)).await;
    node.wait_torn_down("web").await;
    let stops = node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(stops[1].1.timeout, Some(secs(2)));
}

#[tokio::test(start_paused = true)]
async fn suddenly_empty_list_blocks_everything() {
    let node = node_with_stalled_watch(&["web", "db"]).await;
    for name in ["web", "db"] {
        node.delete(name, Some(0)).await;
    }
    wait_until("the list is blocked", async || {
        node.status().await.watch.absence_hold.is_some()
    })
    .await;
    assert!(
        node.status()
            .await
            .watch
            .absence_hold
            .unwrap()
            .contains("a list was empty, but this node had 2 pods")
    );
    sleep(secs(700)).await;
    assert!(node.cri.effects().is_empty());
    assert!(node.pod_dir("web").exists() && node.pod_dir("db").exists());
}

#[tokio::test(start_paused = true)]
async fn suddenly_empty_list_is_accepted_for_a_node_out_of_service() {
    let node = node_with_stalled_watch(&["web", "db"]).await;
    is_out_of_service(&node).await;
    for name in ["web", "db"] {
        node.delete(name, Some(0)).await;
    }
    node.wait_torn_down("web").await;
    node.wait_torn_down("db").await;
    assert_eq!(node.status().await.watch.absence_hold, None);
}

/// Taints the node: its pods' volumes will be attached to other nodes.
async fn is_out_of_service(node: &Node) {
    let taint = json!({ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" });
    let patch = json!({ "spec": { "taints": [taint] } });
    let path = format!("/api/v1/nodes/{NODE}");
    assert_eq!(node.admin.patch(&path, Patch::Merge, &patch).await.unwrap().code(), 200);
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_that_went_out_of_service_are_stopped_by_an_agent_that_starts_later() {
    let names: Vec<_> = (0..12).map(|number| format!("web-{number}")).collect();
    let mut node = Node::with_pods(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    node.start().await;
    sleep(secs(1)).await;
    node.crash().await;
    is_out_of_service(&node).await;
    for name in &names {
        node.delete(name, Some(0)).await;
    }
    node.cri.allow_everything();
    node.start().await;
    let begun = Instant::now();
    for name in &names {
        node.wait_torn_down(name).await;
    }
    assert!(begun.elapsed() < secs(30), "{:?}", begun.elapsed());
    assert!(node.status().await.watch.unmanaged.is_empty());
}

#[tokio::test(start_paused = true)]
async fn absence_hold_survives_the_journal() {
    let mut node = node_with_stalled_watch(&["web", "db"]).await;
    for name in ["web", "db"] {
        node.delete(name, Some(0)).await;
    }
    wait_until("the list is blocked", async || {
        node.status().await.watch.absence_hold.is_some()
    })
    .await;
    let held = node.status().await.watch.absence_hold;
    assert_eq!(node.stop().await, Ok(()));
    std::fs::write(node.path("state/journal.redb"), "damaged").unwrap();
    node.cri.allow_everything();
    node.start().await;
    sleep(secs(700)).await;
    assert_eq!(node.status().await.watch.absence_hold, held);
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn list_older_than_seen_state_blocks_everything() {
    let mut node = node_with_stalled_watch(&["web", "db"]).await;
    let own = recorded_node(&node).await;
    // The store is restored to a state before one of the pods was created.
    replaced(&mut node, 1).await;
    node.insert(own);
    node.insert(pod("db", &plain()));
    wait_until("the list is blocked", async || {
        node.status().await.watch.absence_hold.is_some()
    })
    .await;
    let held = node.status().await.watch.absence_hold.unwrap();
    assert!(held.contains("was etcd restored?"), "{held}");
    sleep(secs(700)).await;
    assert!(node.cri.effects().is_empty() && node.pod_dir("web").exists());
    // A pod in the list is not absent, so its deletion counts.
    node.delete("db", None).await;
    node.wait_torn_down("db").await;
    assert!(node.cri.effects().iter().all(|(_, seen)| seen.pod_uid == "uid-db"));
}
