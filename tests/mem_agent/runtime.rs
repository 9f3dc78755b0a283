//! Outages and restarts of the runtime.

use testbed::scripted_cri::Fault;

use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn runtime_outage_is_waited_for_without_loss() {
    let node = Node::started(&["web", "db"]).await;
    node.cri.stop().await;
    for name in ["web", "db"] {
        node.delete(name, None).await;
        node.wait_blocked(name, "cannot be reached").await;
    }
    sleep(secs(300)).await;
    for name in ["web", "db"] {
        assert_eq!(node.phase(name).await, "Running");
        assert_eq!(node.count_events(name, "FailedKillPod").await, 1, "the same is no news");
    }
    node.cri.allow_everything();
    node.cri.start_again().await;
    node.wait_all_torn_down(["web", "db"]).await;
}

#[tokio::test(start_paused = true)]
async fn runtime_restart_during_a_stop_costs_no_grace() {
    let node = Node::started_with("web", &plain(), |pod| {
        pod.container("main").ends_after_term(secs(20), 0)
    })
    .await;
    node.cri.allow_everything();
    let began = Instant::now();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(5)).await;
    node.cri.start_again().await;
    wait_until!(
        node.get("web")
            .await
            .is_none_or(|pod| pod["status"]["phase"] == "Succeeded")
    );
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
            let node = Node::started(&["web"]).await;
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
    let node = Node::started(&["web"]).await;
    node.cri.fall_silent().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "no answer within").await;
    assert_eq!(node.status().await.watch.pods, 1);
    node.cri.in_order([expect(StopContainer::of("main"))]);
    node.cri.allow_everything();
    node.cri.start_again().await;
    node.wait_torn_down("web").await;
}
