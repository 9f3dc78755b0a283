//! Pods that a handover names although no call is in progress: their stop was begun, and they have reached no safe point.

use pod_teardown::{
    handover::{guard::work::HandoverResult, role::RoleName},
    ops::{
        admin::{
            pause::{PAUSE, Pause},
            stop::StopRequest,
        },
        client,
    },
};
use serde_json::json;
use testbed::{
    apiserver::faults::{Action, Fault},
    scripted_cri::{ExecSync, Kind, StopContainer, StopPodSandbox, expect},
};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::{
    handover::{nothing_in_progress, request_handover, request_handover_at, with_hook},
    node::{Node, secs, wait_until},
    pods::{exec, hooked, plain},
    server::inject_fault,
    standby::NodeWithKubelet,
    stop_requests::granted,
};

/// An active agent was killed during the stop of "stubborn".
async fn crashed_in_progress() -> NodeWithKubelet {
    let mut stage = NodeWithKubelet::active_with_stubborn_pod().await;
    stage.node.delete("stubborn", None).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    stage.node.crash().await;
    stage
}

async fn pause(node: &Node) -> Pause {
    client::post(&node.flags.socket.socket, PAUSE, &()).await.unwrap()
}

async fn assert_names_stubborn(node: &Node) {
    let handed_back = request_handover(node, secs(60)).await;
    assert_eq!(handed_back.in_progress, ["default/stubborn"]);
}

/// It could not continue its predecessor's work.
#[tokio::test(start_paused = true)]
async fn agent_without_its_node_names_pods_in_progress_of_its_predecessor() {
    let mut stage = crashed_in_progress().await;
    inject_fault(&stage.node, Fault::new(Action::Refuse).resource("nodes"));
    stage.node.launch().await;
    sleep(secs(1)).await;
    assert_names_stubborn(&stage.node).await;
}

#[tokio::test(start_paused = true)]
async fn starting_agent_names_pods_in_progress_of_its_predecessor() {
    let mut stage = crashed_in_progress().await;
    stage.node.start().await;
    assert_names_stubborn(&stage.node).await;
}

#[tokio::test(start_paused = true)]
async fn active_agent_without_its_pods_names_pods_in_progress_of_its_predecessor() {
    let mut stage = crashed_in_progress().await;
    inject_fault(&stage.node, Fault::new(Action::Refuse).resource("pods"));
    stage.node.launch().await;
    let is_active = async || {
        let status = stage.node.try_status().await;
        status.is_some_and(|status| status.role.is_some_and(|role| role.role == RoleName::Active))
    };
    wait_until("the agent is active", is_active).await;
    sleep(secs(1)).await;
    assert_names_stubborn(&stage.node).await;
}

#[tokio::test(start_paused = true)]
async fn agent_with_pods_always_names_pods_in_progress_of_its_predecessor() {
    let mut node = Node::new().await;
    node.pod("stubborn", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.allow_everything();
    node.delete("stubborn", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    inject_fault(&node, Fault::new(Action::Refuse).resource("nodes"));
    node.launch().await;
    sleep(secs(1)).await;
    assert_names_stubborn(&node).await;
}

#[tokio::test(start_paused = true)]
async fn pod_in_progress_at_a_pause_is_named() {
    let node = with_hook(secs(1)).await;
    let busy = || expect(StopContainer::any()).error(Code::Unavailable, "busy");
    node.cri.in_order((0..3).map(|_| busy()));
    node.delete("web", None).await;
    node.calls(3, |seen| seen.kind == Kind::StopContainer).await;
    pause(&node).await;
    sleep(secs(1)).await;
    let handed_back = request_handover(&node, secs(60)).await;
    assert_eq!(handed_back.in_progress, ["default/web"]);
}

#[tokio::test(start_paused = true)]
async fn pod_at_a_safe_point_at_a_pause_is_not_named() {
    let stage = NodeWithKubelet::active_with_stubborn_pod().await;
    stage.node.delete("stubborn", None).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    pause(&stage.node).await;
    sleep(secs(120)).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    assert!(pause(&stage.node).await.in_progress.is_empty());
    assert_eq!(request_handover(&stage.node, secs(60)).await, HandoverResult::default());
}

/// Its hook has run and its containers are stopped, but not its sandbox.
#[tokio::test(start_paused = true)]
async fn pod_with_stopped_containers_is_not_named_if_its_sandbox_fails() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| drop(pod.container("main")));
    node.start().await;
    for pattern in [ExecSync::any(), StopContainer::any()] {
        node.cri.any_number_of(expect(pattern));
    }
    node.cri
        .any_number_of(expect(StopPodSandbox::any()).error(Code::Unknown, "no network"));
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
    let stage = NodeWithKubelet::active_with_stubborn_pod().await;
    stage.node.delete("stubborn", None).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let (proc, away) = (stage.node.path("proc"), stage.node.path("proc-away"));
    std::fs::rename(&proc, &away).unwrap();
    sleep(secs(3)).await;
    assert_eq!(stage.role().await, "kubelet-unknown");
    assert_names_stubborn(&stage.node).await;
    std::fs::rename(&away, &proc).unwrap();
    sleep(secs(6)).await;
    assert_eq!(stage.role().await, "active", "no kubelet has worked meanwhile");
}

/// The next one would restart its termination.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_that_a_kubelet_did_not_finish_is_named_again() {
    for crashes in [false, true] {
        let mut stage = NodeWithKubelet::active_with_stubborn_pod().await;
        stage.node.delete("stubborn", None).await;
        stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        stage.kubelet_starts();
        stage.renew().await;
        sleep(secs(10)).await;
        if crashes {
            stage.node.crash().await;
            stage.node.start().await;
        }
        stage.kubelet_exits();
        sleep(secs(10)).await;
        assert_names_stubborn(&stage.node).await;
        assert_names_stubborn(&stage.node).await;
    }
}

/// Its object stays, so that nothing else shows its end.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_that_a_kubelet_stopped_is_not_named() {
    let mut stage = NodeWithKubelet::active_with_stubborn_pod().await;
    let mut held = stage.node.get("stubborn").await.unwrap();
    held["metadata"]["finalizers"] = json!(["test/hold"]);
    stage.node.insert(held);
    stage.node.delete("stubborn", None).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    stage.kubelet_starts();
    stage.renew().await;
    sleep(secs(5)).await;
    stage.node.cri.change(|world| {
        let all: Vec<_> = world.containers.keys().cloned().collect();
        all.iter().for_each(|id| world.will_end(id, Instant::now(), 0));
    });
    sleep(secs(40)).await;
    stage.kubelet_exits();
    sleep(secs(10)).await;
    assert_eq!(request_handover(&stage.node, secs(60)).await, HandoverResult::default());
}

/// The kubelet restarts its termination, regardless of the previous agent's progress.
#[tokio::test(start_paused = true)]
async fn stopped_pod_deleted_without_the_agent_is_named_after_its_restart() {
    let mut stage = NodeWithKubelet::active_with_stubborn_pod().await;
    granted(&stage.node, "stubborn/stop", &StopRequest::default()).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    stage.node.crash().await;
    sleep(secs(120)).await;
    stage.node.delete("stubborn", None).await;
    stage.node.start().await;
    sleep(secs(5)).await;
    if stage.node.finishes_abandoned_stops() {
        // The container was killed, so nothing is in progress.
        assert_eq!(request_handover(&stage.node, secs(60)).await, nothing_in_progress());
        return;
    }
    assert_names_stubborn(&stage.node).await;
}

/// Such as one that only prints its version, or one of another node that cannot be read yet.
#[tokio::test(start_paused = true)]
async fn pod_in_progress_is_named_after_a_short_lived_kubelet() {
    for before in [true, false] {
        let mut stage = NodeWithKubelet::active_with_stubborn_pod().await;
        stage.node.delete("stubborn", None).await;
        stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        let socket = stage.node.flags.socket.socket.clone();
        let moment = async {
            stage.kubelet_starts();
            sleep(secs(2)).await;
            stage.kubelet_exits();
        };
        if before {
            moment.await;
            assert_names_stubborn(&stage.node).await;
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
