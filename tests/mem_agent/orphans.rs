//! Pods that only the runtime knows.

use crate::prelude::*;
use crate::safety_holds::item_names;

/// A node with a running pod and one that only the runtime knows.
async fn with_orphan(build: impl for<'a> FnOnce(PodBuilder<'a>) -> PodBuilder<'a>) -> Node {
    let mut node = Node::with_pods(&["lives"]).await;
    node.pod_without_object("web", build);
    node.run().await;
    node
}

/// All effects were on the orphan.
fn only_to_the_orphan(node: &Node) -> bool {
    node.cri.effects().iter().all(|(_, seen)| seen.pod_uid == uid("web"))
}

#[tokio::test(start_paused = true)]
async fn orphaned_api_pod_is_torn_down_without_hook_status_or_grace() {
    let node = with_orphan(|pod| pod.container("main").ignores_term()).await;
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
    let node = with_orphan(|pod| pod.source("file").container("main")).await;
    node.pod_without_object("crictl", |pod| pod.source("").container("main"));
    node.wait_status(|it| it.housekeeping.unmanaged.len(), 2).await;
    assert_eq!(
        node.status().await.housekeeping.unmanaged,
        [
            "default/crictl (UID uid-crictl): sandbox, directory, cgroup, logs",
            "default/web (UID uid-web): sandbox, directory, cgroup, logs"
        ]
    );
    sleep(secs(600)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_an_orphan_if_the_api_server_has_no_pod_of_the_node() {
    let mut node = Node::new().await;
    node.pod_without_object("web", |pod| pod.container("main"));
    node.start().await;
    node.wait_status(|it| it.housekeeping.unmanaged.len(), 1).await;
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
            node.pod_without_object(name, |pod| pod.container("main"));
        }
        node.run().await;
        if holds {
            for restarts in [true, false] {
                let item = wait_held(&node, "absence").await;
                assert!(item.why.contains("the runtime holds 13 pods"), "{item:?}");
                sleep(secs(700)).await;
                let item = wait_held(&node, "absence").await;
                assert!(item.approval_effect.contains("(12)"), "{item:?}");
                assert!(node.cri.effects().is_empty());
                if restarts {
                    node.restart().await;
                }
            }
            approve(&node, "absence").await.unwrap();
        }
        node.wait_all_torn_down(&names).await;
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
    node.run().await;
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
async fn late_watch_event_does_not_revive_a_finished_pod() {
    let node = Node::running(&["lives", "web"]).await;
    let before = node.get("web").await.unwrap();
    node.tear_down("web").await;
    node.wait_status(|it| it.counters.finished, 1).await;
    // A server that shows an older state again.
    node.insert(before);
    node.delete("web", None).await;
    sleep(secs(1)).await;
    assert_eq!(node.status().await.counters.started, 1);
}
