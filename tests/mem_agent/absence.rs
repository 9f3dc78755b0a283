//! Which lists prove that a pod is absent.

use crate::prelude::*;

/// A node with these pods, whose agent gets no further watch events.
async fn node_with_stalled_watch(names: &[&str]) -> Node {
    let node = Node::running(names).await;
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
    let asked = node.agent_requests().into_iter().filter(|it| by_name(&it.asked.path));
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
    wait_until!(
        node.agent_requests()
            .iter()
            .any(|it| it.asked.path.contains("metadata.name") && it.code == Some(500))
    );
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty() && node.pod_dir("web").exists());
    node.api.faults().clear();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_deleted_by_force_during_its_termination_is_torn_down() {
    let node = Node::started_with("web", &plain(), |pod| {
        pod.container("main").ends_after_term(secs(10), 0)
    })
    .await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    // Without a watch event only the answers about a deleted pod are left.
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    node.delete("web", Some(0)).await;
    node.api.forget_requests();
    node.wait_torn_down("web").await;
    let codes: Vec<_> = request_codes(&node, "patch", "pods/status")
        .into_iter()
        .flatten()
        .collect();
    assert!(
        !codes.is_empty() && codes.iter().all(|code| [403, 404].contains(code)),
        "{codes:?}"
    );
    node.wait_status(|it| it.counters.finished, 1).await;
}

#[tokio::test(start_paused = true)]
async fn failed_pod_whose_object_vanishes_gets_no_more_grace() {
    let mut node = Node::with_pods(&["db"]).await;
    node.stubborn_pod("web");
    let mut failed = pod("web", &plain());
    failed["spec"]["terminationGracePeriodSeconds"] = 3600.into();
    failed["status"]["phase"] = "Failed".into();
    node.insert(failed);
    node.run().await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    // The agent gets no deletion event, only a list without the object.
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    node.delete("web", Some(0)).await;
    node.wait_torn_down("web").await;
    let stops = node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(stops[1].1.timeout, Some(secs(2)));
}

/// Taints the node: its pods' volumes will be attached to other nodes.
async fn is_out_of_service(node: &Node) {
    let taint = json!({ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" });
    let patch = json!({ "spec": { "taints": [taint] } });
    let path = format!("/api/v1/nodes/{NODE}");
    assert_eq!(node.admin.patch(&path, Patch::Merge, &patch).await.unwrap().code(), 200);
}

#[tokio::test(start_paused = true)]
async fn suddenly_empty_list_is_accepted_for_a_node_out_of_service_also_by_an_agent_that_starts_later() {
    for restarts in [false, true] {
        let names: Vec<_> = (0..12).map(|number| format!("web-{number}")).collect();
        let mut node = node_with_stalled_watch(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        if restarts {
            node.crash().await;
        }
        is_out_of_service(&node).await;
        node.delete_all(&names, Some(0)).await;
        if restarts {
            node.start().await;
        }
        let begun = Instant::now();
        node.wait_all_torn_down(&names).await;
        assert!(!restarts || begun.elapsed() < secs(30), "{:?}", begun.elapsed());
        let status = node.status().await;
        assert!(status.watch.absence_hold.is_none() && status.housekeeping.unmanaged.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn absence_hold_survives_the_journal() {
    let mut node = node_with_stalled_watch(&["web", "db"]).await;
    node.delete_all(["web", "db"], Some(0)).await;
    node.wait_status(|it| it.watch.absence_hold.is_some(), true).await;
    let held = node.status().await.watch.absence_hold;
    assert_eq!(node.stop().await, Ok(()));
    std::fs::write(node.path("state/journal.redb"), "damaged").unwrap();
    node.run().await;
    sleep(secs(700)).await;
    assert_eq!(node.status().await.watch.absence_hold, held);
    assert!(node.cri.effects().is_empty());
}
