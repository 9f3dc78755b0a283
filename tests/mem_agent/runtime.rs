//! Outages and restarts of the runtime.

use testbed::scripted_cri::{Fault, Kind, Read, StopContainer, expect};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::{
    node::{Node, secs, wait_until},
    pods::plain,
};

#[tokio::test(start_paused = true)]
async fn agent_waits_for_a_runtime_that_is_down_at_start() {
    let mut node = Node::new().await;
    node.simple_pod("web");
    node.delete("web", None).await;
    node.cri.stop().await;
    node.launch().await;
    sleep(secs(120)).await;
    assert!(node.runs());
    node.cri.allow_everything();
    node.cri.start_again().await;
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn agent_exits_if_the_endpoint_is_no_runtime() {
    let mut node = Node::new().await;
    node.cri.speak_another_protocol().await;
    node.launch().await;
    let problem = node.ended().await.unwrap_err();
    assert!(problem.what.contains("does not speak CRI"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn runtime_outage_is_waited_for_without_loss() {
    let mut node = Node::with_pods(&["web", "db"]).await;
    node.start().await;
    node.cri.stop().await;
    for name in ["web", "db"] {
        node.delete(name, None).await;
        node.wait_blocked(name, "cannot be reached").await;
    }
    sleep(secs(300)).await;
    for name in ["web", "db"] {
        assert_eq!(node.get(name).await.unwrap()["status"]["phase"], "Running");
        assert_eq!(node.count_events(name, "FailedKillPod").await, 1, "the same is no news");
    }
    node.cri.allow_everything();
    node.cri.start_again().await;
    for name in ["web", "db"] {
        node.wait_torn_down(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn runtime_restart_during_a_stop_costs_no_grace() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(20), 0));
    });
    node.start().await;
    node.cri.allow_everything();
    let began = Instant::now();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(5)).await;
    node.cri.start_again().await;
    wait_until("the phase is terminal", async || {
        node.get("web")
            .await
            .is_none_or(|pod| pod["status"]["phase"] == "Succeeded")
    })
    .await;
    // CRI-O never answers the second stop. The exit is found in a list, requested every 2 s.
    let late = if node.finishes_abandoned_stops() {
        secs(24)
    } else {
        secs(22)
    };
    assert!(
        began.elapsed() >= secs(20) && began.elapsed() < late,
        "{:?}",
        began.elapsed()
    );
    node.wait_torn_down("web").await;
    let stops = node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    assert!(stops[1].1.timeout.unwrap() <= secs(25), "{stops:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_or_hanging_runtime_query_proves_nothing() {
    for fault in [
        Fault::Hang,
        Fault::Error(Code::Unknown, "database is locked".to_owned()),
        Fault::Error(Code::Unimplemented, String::new()),
    ] {
        for read in [Read::ListContainers, Read::ListPodSandbox] {
            let mut node = Node::new().await;
            node.simple_pod("web");
            node.start().await;
            node.cri.fault(read, fault.clone());
            node.delete("web", Some(1)).await;
            sleep(secs(200)).await;
            let object = node.get("web").await.expect("the object stays");
            assert_eq!(object["status"]["phase"], "Running", "{read:?} {fault:?}");
            assert!(node.cri.effects().is_empty() && node.pod_dir("web").exists());
            node.cri.heal();
            node.cri.allow_everything();
            node.wait_torn_down("web").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unresponsive_runtime_blocks_only_steps_that_need_it() {
    let mut node = Node::new().await;
    node.simple_pod("web");
    node.start().await;
    node.cri.fall_silent().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "no answer within").await;
    assert_eq!(node.status().await.watch.pods, 1);
    node.cri.in_order([expect(StopContainer::of("main"))]);
    node.cri.allow_everything();
    node.cri.start_again().await;
    node.wait_torn_down("web").await;
}
