//! Pods that a handover names although no call is in progress: their stop was begun, and they have reached no safe point.

use pod_teardown::{
    handover::guard::HandoverResult,
    model::role::RoleName,
    ops::admin::pause::{PAUSE, Pause},
};

use crate::handover::request_handover_at;
use crate::prelude::*;

/// An active agent was killed during the stop of "stubborn".
async fn crashed_in_progress() -> NodeWithKubelet {
    let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
    node.delete("stubborn", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    node
}

async fn pause(node: &Node) -> Pause {
    client::post(&node.flags.socket.socket, PAUSE, &()).await.unwrap()
}

async fn assert_names_stubborn(node: &Node) {
    let handed_back = request_handover(node, secs(60)).await;
    assert_eq!(handed_back.in_progress, ["default/stubborn"]);
}

/// Without its Node or its pods it could not continue its predecessor's work.
#[tokio::test(start_paused = true)]
async fn starting_agent_names_pods_in_progress_of_its_predecessor() {
    for (mode, unreachable) in [
        (ModeFlag::Auto, ""),
        (ModeFlag::Auto, "nodes"),
        (ModeFlag::Auto, "pods"),
        (ModeFlag::Always, "nodes"),
    ] {
        let mut node = crashed_in_progress().await;
        node.flags.mode = mode;
        if unreachable.is_empty() {
            node.start().await;
        } else {
            inject_fault(&node, Fault::new(Action::Refuse).resource(unreachable));
            node.launch().await;
        }
        if unreachable == "pods" {
            wait_until!(
                node.try_status()
                    .await
                    .is_some_and(|status| { status.role.is_some_and(|role| role.role == RoleName::Active) })
            );
        }
        if !unreachable.is_empty() {
            sleep(secs(1)).await;
        }
        assert_names_stubborn(&node).await;
    }
}

/// Its failed stop is not retried until then.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_at_a_pause_is_named() {
    let node = with_hook(secs(1)).await;
    let busy = || expect(StopContainer::any()).error(Code::Unavailable, "busy");
    node.cri.in_order((0..3).map(|_| busy()));
    node.delete("web", None).await;
    let stops = |seen: &Seen| seen.kind == Kind::StopContainer;
    node.calls(3, stops).await;
    pause(&node).await;
    sleep(secs(300)).await;
    assert_eq!(node.calls(3, stops).await.len(), 3);
    let handed_back = request_handover(&node, secs(60)).await;
    assert_eq!(handed_back.in_progress, ["default/web"]);
}

#[tokio::test(start_paused = true)]
async fn pod_at_a_safe_point_at_a_pause_is_not_named() {
    let node = NodeWithKubelet::active_with_stubborn_pod().await;
    node.delete("stubborn", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    pause(&node).await;
    sleep(secs(120)).await;
    node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    assert!(pause(&node).await.in_progress.is_empty());
    assert_eq!(request_handover(&node, secs(60)).await, HandoverResult::default());
}

/// Its hook has run and its containers are stopped, but not its sandbox.
#[tokio::test(start_paused = true)]
async fn pod_with_stopped_containers_is_not_named_if_its_sandbox_fails() {
    let mut node = Node::started_with("web", &hooked(&exec()), |pod| pod.container("main")).await;
    node.allow([ExecSync::any(), StopContainer::any()]);
    node.always(expect(StopPodSandbox::any()).error(Code::Unknown, "no network"));
    node.delete("web", None).await;
    node.calls(2, |seen| seen.kind == Kind::StopPodSandbox).await;
    sleep(secs(1)).await;
    node.crash().await;
    inject_fault(&node, Fault::new(Action::Refuse).resource("nodes"));
    node.launch().await;
    sleep(secs(1)).await;
    assert_eq!(request_handover(&node, secs(60)).await, HandoverResult::default());
}

/// The kubelet's state is unknown for a moment, and the agent is standby.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_is_named_after_a_failed_process_scan() {
    let node = NodeWithKubelet::active_with_stubborn_pod().await;
    node.delete("stubborn", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let (proc, away) = (node.path("proc"), node.path("proc-away"));
    std::fs::rename(&proc, &away).unwrap();
    sleep(secs(3)).await;
    assert_eq!(node.role().await, "kubelet-unknown");
    assert_names_stubborn(&node).await;
    std::fs::rename(&away, &proc).unwrap();
    sleep(secs(6)).await;
    assert_eq!(node.role().await, "active", "no kubelet has worked meanwhile");
}

/// The next one would restart its termination.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_that_a_kubelet_did_not_finish_is_named_again() {
    for crashes in [false, true] {
        let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
        node.delete("stubborn", None).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        node.kubelet_starts();
        node.renew().await;
        sleep(secs(10)).await;
        if crashes {
            node.restart().await;
        }
        node.kubelet_exits();
        sleep(secs(10)).await;
        assert_names_stubborn(&node).await;
        assert_names_stubborn(&node).await;
    }
}

/// Its object stays, so that nothing else shows its end.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_that_a_kubelet_stopped_is_not_named() {
    let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
    node.hold_object("stubborn").await;
    node.delete("stubborn", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.kubelet_starts();
    node.renew().await;
    sleep(secs(5)).await;
    node.cri.change(|world| {
        let all: Vec<_> = world.containers.keys().cloned().collect();
        all.iter().for_each(|id| world.will_end(id, Instant::now(), 0));
    });
    sleep(secs(40)).await;
    node.kubelet_exits();
    sleep(secs(10)).await;
    assert_eq!(request_handover(&node, secs(60)).await, HandoverResult::default());
}

/// The kubelet restarts its termination, regardless of the previous agent's progress.
#[tokio::test(start_paused = true)]
async fn stopped_pod_deleted_without_the_agent_is_named_after_its_restart() {
    let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
    granted(&node, "stubborn/stop", &StopRequest::default()).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    sleep(secs(120)).await;
    node.delete("stubborn", None).await;
    node.start().await;
    sleep(secs(5)).await;
    if node.finishes_abandoned_stops() {
        // The container was killed, so nothing is in progress.
        assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
        return;
    }
    assert_names_stubborn(&node).await;
}

/// Such as one that only prints its version, or one of another node that cannot be read yet.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_is_named_after_a_short_lived_kubelet() {
    for before in [true, false] {
        let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
        node.delete("stubborn", None).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        let socket = node.flags.socket.socket.clone();
        let moment = async {
            node.kubelet_starts();
            sleep(secs(2)).await;
            node.kubelet_exits();
        };
        if before {
            moment.await;
            assert_names_stubborn(&node).await;
        } else {
            let (_, handed_back) = tokio::join!(moment, request_handover_at(&socket, secs(60)));
            assert_eq!(handed_back.in_progress, ["default/stubborn"]);
        }
    }
}

/// As with a runtime that is down.
#[tokio::test(start_paused = true)]
async fn attempted_pod_without_a_stop_call_is_not_named() {
    let node = with_hook(secs(1)).await;
    node.cri.stop().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "cannot be reached").await;
    assert_eq!(request_handover(&node, secs(60)).await, HandoverResult::default());
}
