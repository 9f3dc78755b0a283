//! Stop requests that are canceled because a kubelet starts first.

use testbed::scripted_cri::Fault as Look;

use crate::prelude::*;

/// A running agent and a pod "web" with a hook that ignores SIGTERM.
async fn with_stubborn_pod() -> Node {
    let node = Node::started_with("web", &hooked(&exec()), |pod| pod.container("main").ignores_term()).await;
    node.cri.allow_everything();
    node
}

async fn wait_canceled(node: &Node) {
    node.wait_status(|it| it.counters.stop_requests_canceled, 1).await;
}

/// A kubelet restarts stopped containers.
fn kubelet_restarts_containers(node: &Node) {
    node.cri.change(|world| {
        world.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = true);
        for container in world.containers.values_mut() {
            (container.state, container.signalled, container.abandoned) = (SimState::Running, false, false);
        }
    });
}

/// CRI-O kills the container although the caller of the stop is gone, and a kubelet restarts it. In containerd it runs on.
fn kubelet_restarts_killed_containers(node: &Node) {
    if node.finishes_abandoned_stops() {
        kubelet_restarts_containers(node);
    }
}

#[tokio::test(start_paused = true)]
async fn request_is_canceled_when_a_kubelet_starts_first() {
    for crashes in [false, true] {
        let mut node = with_stubborn_pod().await;
        granted(&node, "web/stop", &StopRequest::default()).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        if crashes {
            node.crash().await;
        }
        let process = kubelet(&node);
        if crashes {
            node.start().await;
        }
        node.wait_status(|it| it.pods.terminating.is_empty(), true).await;
        let outcome = outcome(&node, "web", 1).await;
        assert!(!outcome.terminated && outcome.trace.canceled_because.unwrap().contains("a kubelet came"));
        std::fs::remove_dir_all(process).unwrap();
        let before = node.cri.effects().len();
        sleep(secs(600)).await;
        assert_eq!(node.cri.effects().len(), before, "it runs");
        kubelet_restarts_killed_containers(&node);
        // The next termination is a new one, with its hook and full grace.
        node.tear_down("web").await;
        let stops = node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
        assert!(stops.last().unwrap().1.timeout > Some(secs(20)), "{stops:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn request_is_canceled_without_an_api_server_and_a_later_one_is_accepted() {
    let node = with_stubborn_pod().await;
    granted(&node, "web/stop", &eviction("Evicted")).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    inject_fault(&node, Fault::new(Action::Refuse).resource("pods"));
    let process = kubelet(&node);
    wait_canceled(&node).await;
    std::fs::remove_dir_all(process).unwrap();
    let before = node.cri.effects().len();
    sleep(secs(120)).await;
    node.api.faults().clear();
    sleep(secs(600)).await;
    assert_eq!(node.cri.effects().len(), before, "it runs");
    assert_eq!(node.count_events("web", "StopRequestCanceled").await, 1);
    kubelet_restarts_killed_containers(&node);
    granted(&node, "web/stop", &StopRequest::default()).await;
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
}

/// The kubelet may have restarted the pod, which may have run for days.
#[tokio::test(start_paused = true)]
async fn restarted_agent_cancels_a_request_if_a_kubelet_may_have_run() {
    for comes in [false, true] {
        let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
        granted(&node, "stubborn/stop", &StopRequest::default()).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        node.crash().await;
        if comes {
            node.kubelet_starts();
            node.renew().await;
            sleep(secs(300)).await;
            node.kubelet_exits();
        }
        node.start().await;
        if comes {
            assert_takes_threshold(node.wait_for_takeover().await);
        } else {
            node.wait_for_takeover().await;
        }
        let canceled = async |many| node.status().await.counters.stop_requests_canceled == many;
        if comes {
            wait_until!(canceled(1).await);
            sleep(secs(600)).await;
            assert_eq!(node.cri.effects().len(), 1, "it runs");
        } else {
            node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
            assert!(canceled(0).await);
        }
    }
}

/// No runtime call is in progress then that the kubelet could interrupt.
#[tokio::test(start_paused = true)]
async fn request_is_canceled_during_a_hook_without_a_runtime_call() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asks = json!({ "httpGet": { "host": "127.0.0.1", "port": silent.local_addr().unwrap().port() } });
    for hook in [json!({ "sleep": { "seconds": 25 } }), asks] {
        let node = Node::started_with("web", &hooked(&hook), |pod| pod.container("main")).await;
        node.cri.allow_everything();
        granted(&node, "web/stop", &StopRequest::default()).await;
        sleep(secs(5)).await;
        let process = kubelet(&node);
        sleep(secs(3)).await;
        std::fs::remove_dir_all(process).unwrap();
        wait_canceled(&node).await;
        sleep(secs(600)).await;
        assert_eq!(node.cri.effects(), Vec::new(), "it runs");
    }
}

/// It may have run for days.
#[tokio::test(start_paused = true)]
async fn pod_deleted_after_a_canceled_request_gets_its_hook_and_full_grace() {
    for is_away in [false, true] {
        let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
        let ask = StopRequest {
            grace_period_seconds: Some(5),
            ..eviction("Evicted")
        };
        granted(&node, "stubborn/stop", &ask).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        if is_away {
            node.crash().await;
        } else {
            inject_fault(&node, Fault::new(Action::Refuse).resource("pods"));
        }
        node.kubelet_starts();
        node.renew().await;
        sleep(secs(300)).await;
        kubelet_restarts_killed_containers(&node);
        node.delete("stubborn", None).await;
        node.api.faults().clear();
        node.kubelet_exits();
        if is_away {
            node.start().await;
        }
        node.wait_torn_down("stubborn").await;
        let stops = node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
        let last = stops.last().unwrap().1.timeout;
        assert!(last > Some(secs(25)), "its own grace period: {last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn canceled_request_is_not_done_after_a_restart() {
    let mut node = with_stubborn_pod().await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    inject_fault(&node, Fault::new(Action::Refuse).resource("pods"));
    let process = kubelet(&node);
    sleep(secs(120)).await;
    std::fs::remove_dir_all(process).unwrap();
    sleep(secs(5)).await;
    let before = node.cri.effects().len();
    node.crash().await;
    node.launch().await;
    sleep(secs(120)).await;
    node.api.faults().clear();
    sleep(secs(600)).await;
    assert_eq!(node.cri.effects().len(), before, "it runs");
}

/// As in the journal of an older agent, or after a restored store has reverted a deletion.
#[tokio::test(start_paused = true)]
async fn termination_without_a_recorded_cause_is_canceled_like_a_request() {
    let mut node = Node::with_pods(&["web"]).await;
    node.begin_in_journal("web").await;
    let process = kubelet(&node);
    node.run().await;
    wait_canceled(&node).await;
    std::fs::remove_dir_all(process).unwrap();
    sleep(secs(600)).await;
    assert_eq!(node.cri.effects(), Vec::new(), "it runs");
}

/// One container waits for its image: with the other stopped the pod is Pending, and a kubelet would restart it.
#[tokio::test(start_paused = true)]
async fn partly_started_pod_is_at_a_safe_point_only_once_the_api_shows_its_end() {
    for stalls in [false, true] {
        let mut node = Node::new().await;
        let container = |name: &str| json!({ "name": name, "image": "registry.test/busybox:1" });
        let mut object = pod("web", &json!([container("main"), container("second")]));
        let state = json!({ "waiting": { "reason": "ImagePullBackOff" } });
        object["status"]["phase"] = "Pending".into();
        object["status"]["containerStatuses"] = json!([
            { "name": "second", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state },
        ]);
        node.insert(object);
        node.pod_without_object("web", |pod| pod.container("main").ignores_term());
        node.run().await;
        if stalls {
            inject_fault(&node, Fault::new(Action::StallWatch).resource("pods"));
        }
        granted(&node, "web/stop", &StopRequest::default()).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
        assert_eq!(node.phase("web").await, "Failed");
    }
}

/// A late watch event is older than the API server's answer.
#[tokio::test(start_paused = true)]
async fn late_watch_event_does_not_cancel_a_finished_request() {
    let node = with_hook(secs(10)).await;
    inject_fault(&node, Fault::delay(secs(25)).verb("watch").resource("pods").once());
    inject_fault(&node, Fault::new(Action::CutWatch).resource("pods").once());
    sleep(secs(1)).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    hook_runs(&node).await;
    assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
    sleep(secs(25)).await;
    let process = kubelet(&node);
    sleep(secs(60)).await;
    std::fs::remove_dir_all(process).unwrap();
    sleep(secs(120)).await;
    assert_eq!(node.status().await.counters.stop_requests_canceled, 0, "it was done");
}

#[tokio::test(start_paused = true)]
async fn termination_reverted_by_a_restored_store_beside_a_kubelet_is_canceled() {
    for deleted in [false, true] {
        let mut node = Node::new().await;
        node.pod("web", &plain(), |pod| pod.container("main"));
        let mut restored = node.get("web").await.unwrap();
        restored["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        node.run().await;
        if !deleted {
            granted(&node, "web/stop", &StopRequest::default()).await;
            node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
        }
        let process = kubelet(&node);
        sleep(secs(2)).await;
        if deleted {
            node.delete("web", None).await;
            sleep(secs(2)).await;
        }
        node.insert(restored);
        sleep(secs(5)).await;
        kubelet_restarts_containers(&node);
        std::fs::create_dir_all(node.pod_dir("web").join("etc-hosts")).unwrap();
        std::fs::create_dir_all(node.pod_cgroup("web")).unwrap();
        sleep(secs(60)).await;
        let before = node.cri.effects().len();
        std::fs::remove_dir_all(process).unwrap();
        sleep(secs(300)).await;
        assert_eq!(node.cri.effects().len(), before, "it runs");
        wait_canceled(&node).await;
    }
}

/// The agent finishes the stops that it has begun, and the object stays.
#[tokio::test(start_paused = true)]
async fn deletion_reverted_by_a_restored_store_keeps_the_object() {
    for is_handed_back in [false, true] {
        let node = with_hook(secs(10)).await;
        let mut restored = node.get("web").await.unwrap();
        restored["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        node.delete("web", None).await;
        hook_runs(&node).await;
        node.insert(restored);
        sleep(secs(1)).await;
        if is_handed_back {
            assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
        }
        sleep(secs(60)).await;
        let object = node.get("web").await.unwrap();
        assert_eq!(object["status"]["phase"], "Succeeded", "no kubelet restarts it");
    }
}

/// The runtime query lasts as long as the kubelet runs.
#[tokio::test(start_paused = true)]
async fn deletion_reverted_during_a_runtime_query_is_canceled_after_a_kubelet_ran() {
    let node = with_stubborn_pod().await;
    let mut restored = node.get("web").await.unwrap();
    restored["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    node.cri.fault(Read::ListContainers, Look::Late(secs(20)));
    node.delete("web", None).await;
    sleep(secs(2)).await;
    node.insert(restored);
    sleep(secs(2)).await;
    let process = kubelet(&node);
    sleep(secs(5)).await;
    std::fs::remove_dir_all(process).unwrap();
    sleep(secs(300)).await;
    wait_canceled(&node).await;
    assert_eq!(node.cri.effects(), Vec::new(), "it runs");
}
