//! Pods that only the runtime knows.

use std::fs;

use testbed::scripted_cri::{Kind, PodBuilder};
use tokio::time::{Instant, sleep};

use crate::{
    guard::kubelet,
    node::{Node, secs, wait_until},
    pods::uid,
    safety_holds::{approve, item_names, wait_held},
};

/// A node with a running pod and one that only the runtime knows.
async fn with_orphan(build: impl FnOnce(PodBuilder<'_>)) -> Node {
    let mut node = Node::new().await;
    node.simple_pod("lives");
    node.pod_without_object("web", build);
    node.cri.allow_everything();
    node.start().await;
    node
}

/// All effects were on the orphan.
fn only_to_the_orphan(node: &Node) -> bool {
    node.cri.effects().iter().all(|(_, seen)| seen.pod_uid == uid("web"))
}

#[tokio::test(start_paused = true)]
async fn orphaned_api_pod_is_torn_down_without_hook_status_or_grace() {
    let node = with_orphan(|pod| drop(pod.container("main").ignores_term())).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    // The minimum of a stop is two seconds.
    assert_eq!(node.status().await.pods.terminating[0].grace_seconds, 1);
    node.wait_torn_down("web").await;
    let stop = &node.calls(1, |seen| seen.kind == Kind::StopContainer).await[0].1;
    assert_eq!((&*stop.pod_uid, stop.timeout), ("uid-web", Some(secs(2))));
    let by_name = |path: &str| path.contains("fieldSelector=spec.nodeName") && path.contains("metadata.name%3Dweb");
    assert!(node.api.requests().iter().any(|it| by_name(&it.asked.path)));
    assert!(node.api.requests().iter().all(|it| it.asked.verb != "patch"));
    sleep(secs(120)).await;
    assert!(only_to_the_orphan(&node));
    assert_eq!(node.status().await.counters.started, 1);
}

#[tokio::test(start_paused = true)]
async fn pod_without_proof_of_the_api_server_is_reported_and_not_touched() {
    let node = with_orphan(|pod| drop(pod.source("file").container("main"))).await;
    node.pod_without_object("crictl", |pod| drop(pod.source("").container("main")));
    wait_until("both are reported", async || {
        node.status().await.watch.unmanaged.len() == 2
    })
    .await;
    assert_eq!(
        node.status().await.watch.unmanaged,
        ["default/crictl (UID uid-crictl)", "default/web (UID uid-web)"]
    );
    sleep(secs(600)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_an_orphan_if_the_api_server_has_no_pod_of_the_node() {
    let mut node = Node::new().await;
    node.pod_without_object("web", |pod| drop(pod.container("main")));
    node.start().await;
    wait_until("it is reported", async || {
        node.status().await.watch.unmanaged.len() == 1
    })
    .await;
    sleep(secs(600)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn many_orphans_are_stopped_only_after_approval() {
    for (listed, orphans, holds) in [(1, 12, true), (13, 12, false), (1, 9, false)] {
        let mut node = Node::new().await;
        for number in 0..listed {
            node.simple_pod(&format!("lives-{number}"));
        }
        let names: Vec<_> = (0..orphans).map(|number| format!("web-{number}")).collect();
        for name in &names {
            node.pod_without_object(name, |pod| drop(pod.container("main")));
        }
        node.cri.allow_everything();
        node.start().await;
        if holds {
            for restarts in [true, false] {
                let item = wait_held(&node, "absence").await;
                assert!(item.why.contains("the runtime holds 13 pods"), "{item:?}");
                sleep(secs(700)).await;
                let item = wait_held(&node, "absence").await;
                assert!(item.approval_effect.contains("(12)"), "{item:?}");
                assert!(node.cri.effects().is_empty());
                if restarts {
                    node.crash().await;
                    node.start().await;
                }
            }
            approve(&node, "absence").await.unwrap();
        }
        for name in &names {
            node.wait_torn_down(name).await;
        }
        assert!(item_names(&node).await.is_empty(), "{listed} {orphans}");
        let orphan = |uid: &str| uid.starts_with("uid-web-");
        assert!(node.cri.effects().iter().all(|(_, seen)| orphan(&seen.pod_uid)));
    }
}

#[tokio::test(start_paused = true)]
async fn pods_whose_deletion_was_seen_do_not_count_as_many_orphans() {
    let mut node = Node::new().await;
    let names: Vec<_> = (0..30).map(|number| format!("web-{number}")).collect();
    for name in &names {
        node.simple_pod(name);
    }
    node.simple_pod("lives");
    node.cri.allow_everything();
    node.start().await;
    for (number, name) in names.iter().enumerate() {
        // Half of them are deleted by force.
        node.delete(name, (number % 2 == 0).then_some(0)).await;
    }
    for name in &names {
        node.wait_torn_down(name).await;
        assert!(item_names(&node).await.is_empty());
    }
    sleep(secs(60)).await;
    assert!(item_names(&node).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_an_orphan_beside_a_kubelet() {
    let mut node = Node::new().await;
    node.simple_pod("lives");
    node.pod_without_object("web", |pod| drop(pod.container("main")));
    let process = kubelet(&node);
    node.start().await;
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
    assert_eq!(node.status().await.counters.started, 0);
    node.cri.allow_everything();
    fs::remove_dir_all(process).unwrap();
    node.wait_torn_down("web").await;
    assert!(only_to_the_orphan(&node));
}

#[tokio::test(start_paused = true)]
async fn runtime_events_trigger_an_earlier_orphan_check() {
    let mut took = Vec::new();
    for sends_events in [false, true] {
        let mut node = Node::new().await;
        node.cri.change(|world| world.sends_events = sends_events);
        node.simple_pod("lives");
        node.start().await;
        node.cri.allow_everything();
        sleep(secs(3)).await;
        let began = Instant::now();
        node.pod_without_object("web", |pod| drop(pod.container("main")));
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        took.push(began.elapsed());
        node.wait_torn_down("web").await;
    }
    assert!(took[0] > secs(5) && took[1] < secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn late_watch_event_does_not_revive_a_finished_pod() {
    let mut node = Node::new().await;
    node.simple_pod("lives");
    node.simple_pod("web");
    node.start().await;
    node.cri.allow_everything();
    let before = node.get("web").await.unwrap();
    node.delete("web", None).await;
    node.wait_torn_down("web").await;
    wait_until("the pod is finished", async || {
        node.status().await.counters.finished == 1
    })
    .await;
    // A server that shows an older state again.
    node.insert(before);
    node.delete("web", None).await;
    sleep(secs(1)).await;
    assert_eq!(node.status().await.counters.started, 1);
}
