//! `pod-teardown pause`: nothing begins until `resume`, across restarts of the agent.

use pod_teardown::{
    cli::PauseRequest,
    ops::admin::pause::{PAUSE, Pause, RESUME},
};

use crate::handover::call_kinds;
use crate::prelude::*;

pub async fn send(node: &Node, path: &str) -> Pause {
    client::post(&node.flags.socket.socket, path, &()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn pause_lets_a_pod_in_its_hook_reach_a_safe_point_and_blocks_others() {
    let node = with_hook(secs(10)).await;
    node.delete("web", None).await;
    hook_runs(&node).await;
    let pause = send(&node, PAUSE).await;
    assert_eq!(pause.in_progress, ["default/web"]);
    node.delete("other", None).await;
    sleep(secs(300)).await;
    let stopped = [Kind::ExecSync, Kind::StopContainer, Kind::StopPodSandbox];
    assert_eq!(call_kinds(&node), stopped);
    let status = node.status().await;
    assert_eq!(
        (status.blocked.as_deref(), status.paused.as_ref()),
        (None, pause.paused.as_ref())
    );
    let why = refused(&node, "other/stop", &StopRequest::default()).await;
    assert_has(&why, &["paused since", "pod-teardown resume"]);
    for trace in &status.pods.terminating {
        assert!(
            trace.blocked[0].reason == BlockedReason::Paused && trace.blocked[0].message.starts_with("paused since"),
            "{:?}",
            trace.blocked
        );
    }
    assert_eq!(
        send(&node, PAUSE).await.paused,
        pause.paused,
        "the first pause is reported"
    );
    assert_eq!(send(&node, RESUME).await.paused, pause.paused);
    node.wait_torn_down("web").await;
    node.wait_torn_down("other").await;
    let hooks = call_kinds(&node).iter().filter(|kind| **kind == Kind::ExecSync).count();
    assert_eq!(hooks, 1, "a hook that has ended is not run again");
    assert_eq!(send(&node, RESUME).await, Pause::default());
}

/// Restarts the agent, possibly without its journal.
async fn restart_agent(node: &mut Node, without_journal: bool) {
    assert_eq!(node.stop().await, Ok(()));
    if without_journal {
        std::fs::write(node.path("state/journal.redb"), "damaged").unwrap();
    }
    node.start().await;
}

#[tokio::test(start_paused = true)]
async fn pause_survives_the_agent_and_its_journal() {
    for without_journal in [false, true] {
        let mut node = with_hook(secs(1)).await;
        let pause = send(&node, PAUSE).await;
        restart_agent(&mut node, without_journal).await;
        node.delete("web", None).await;
        sleep(secs(120)).await;
        assert_eq!(call_kinds(&node), []);
        assert_eq!(node.status().await.paused, pause.paused);
        send(&node, RESUME).await;
        node.wait_torn_down("web").await;
        restart_agent(&mut node, without_journal).await;
        assert_eq!(node.status().await.paused, None);
    }
}

#[tokio::test(start_paused = true)]
async fn pause_with_a_limit_ends_by_itself_also_after_a_restart() {
    for without_journal in [false, true] {
        let mut node = with_hook(secs(1)).await;
        let request = PauseRequest {
            duration_seconds: Some(600),
            reason: Some("kernel update".to_owned()),
        };
        let pause: Pause = client::post(&node.flags.socket.socket, PAUSE, &request).await.unwrap();
        let paused = pause.paused.unwrap();
        assert_eq!(paused.reason, request.reason);
        assert_eq!(paused.until.unwrap().duration_since(paused.since).as_secs(), 600);
        restart_agent(&mut node, without_journal).await;
        node.delete("web", None).await;
        sleep(secs(500)).await;
        assert_eq!(call_kinds(&node), []);
        assert_eq!(node.status().await.paused, Some(paused));
        sleep(secs(130)).await;
        assert_eq!(node.status().await.paused, None);
        node.wait_torn_down("web").await;
        restart_agent(&mut node, without_journal).await;
        assert_eq!(node.status().await.paused, None);
    }
}

#[tokio::test(start_paused = true)]
async fn kubelet_and_not_the_pause_is_reported_as_blocking() {
    let node = with_hook(secs(10)).await;
    send(&node, PAUSE).await;
    let process = kubelet(&node);
    node.delete("web", None).await;
    node.wait_blocked("web", "a kubelet runs").await;
    let blocked = node.trace("web").await.unwrap().blocked;
    assert_eq!(blocked[0].reason, BlockedReason::Guard, "{blocked:?}");
    std::fs::remove_dir_all(process).unwrap();
    node.wait_blocked("web", "paused since").await;
    let blocked = node.trace("web").await.unwrap().blocked;
    assert_eq!(blocked[0].reason, BlockedReason::Paused, "{blocked:?}");
}
