//! Restarts of the agent during a teardown.

use testbed::scripted_cri::{ExecSync, Kind, StopContainer, expect};
use tokio::time::{Instant, sleep};

use crate::{
    log::Log,
    node::{Node, secs, wait_until},
    pods::{exec, hooked, plain, pod, uid},
};

#[tokio::test(start_paused = true)]
async fn deadline_survives_a_restart() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(30))),
        expect(StopContainer::of("main").timeout_within(secs(17)..=secs(18))),
    ]);
    let began = Instant::now();
    node.delete("web", None).await;
    sleep(secs(6)).await;
    node.crash().await;
    sleep(secs(6)).await;
    node.start().await;
    node.calls(2, |_| true).await;
    node.allow_all_but_hooks();
    node.wait_torn_down("web").await;
    assert!(began.elapsed() < secs(31), "{:?}", began.elapsed());
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn grace_period_is_expired_after_a_reboot() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(30))),
        expect(StopContainer::of("main").timeout(secs(2))),
    ]);
    node.delete("web", None).await;
    sleep(secs(1)).await;
    node.crash().await;
    node.boot_id = "boot-2".to_owned();
    node.start().await;
    node.calls(2, |_| true).await;
    node.allow_all_but_hooks();
    node.wait_torn_down("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn container_that_runs_after_a_reboot_gets_the_grace_since_boot_only_once() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| {
        drop(pod.container("main").ignores_term());
    });
    node.start().await;
    node.cri.in_order([
        expect(ExecSync::of("main")).hang(),
        // Another container was started, which has run no hook.
        expect(ExecSync::of("main").timeout_within(secs(79)..=secs(80))).hang(),
        expect(ExecSync::of("main").timeout_within(secs(69)..=secs(70))).hang(),
        expect(StopContainer::of("main").timeout(secs(2))),
    ]);
    node.delete("web", Some(100)).await;
    node.calls(1, |_| true).await;
    sleep(secs(30)).await;
    node.crash().await;
    node.boot_id = "boot-2".to_owned();
    node.set_uptime(secs(20));
    node.start().await;
    node.calls(2, |_| true).await;
    sleep(secs(10)).await;
    node.crash().await;
    node.start().await;
    node.calls(3, |_| true).await;
    node.calls(4, |_| true).await;
    node.allow_all_but_hooks();
    node.wait_torn_down("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn finished_hook_is_not_rerun_after_a_restart() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| {
        drop(pod.container("main").ignores_term());
    });
    node.start().await;
    node.cri
        .in_order([expect(ExecSync::of("main")), expect(StopContainer::of("main"))]);
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    node.allow_all_but_hooks();
    node.start().await;
    node.wait_torn_down("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn interrupted_hook_reruns_within_the_remaining_grace() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| drop(pod.container("main")));
    node.start().await;
    node.cri.in_order([
        expect(ExecSync::of("main").timeout(secs(30))).hang(),
        expect(ExecSync::of("main").timeout_within(secs(19)..=secs(20))),
    ]);
    node.allow_all_but_hooks();
    node.delete("web", None).await;
    sleep(secs(10)).await;
    node.crash().await;
    node.start().await;
    node.wait_torn_down("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn interrupted_hook_is_not_rerun_after_the_grace_period() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| drop(pod.container("main")));
    node.start().await;
    node.cri.in_order([expect(ExecSync::of("main")).hang()]);
    node.allow_all_but_hooks();
    node.delete("web", None).await;
    sleep(secs(10)).await;
    node.crash().await;
    sleep(secs(25)).await;
    node.start().await;
    node.wait_torn_down("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn finished_pod_is_removed_from_the_journal() {
    let mut node = Node::new().await;
    node.simple_pod("web");
    node.start().await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.wait_torn_down("web").await;
    wait_until("the pod is finished", async || {
        node.status().await.counters.finished == 1
    })
    .await;
    assert_eq!(node.stop().await, Ok(()));
    assert_eq!(node.journal().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pod_whose_object_was_deleted_without_the_agent_is_torn_down() {
    let mut node = Node::new().await;
    node.simple_pod("neighbour");
    for name in ["web", "db"] {
        node.pod(name, &plain(), |pod| drop(pod.container("main").ignores_term()));
    }
    node.start().await;
    node.cri.allow_everything();
    for name in ["web", "db"] {
        node.delete(name, None).await;
    }
    node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    for name in ["web", "db"] {
        node.delete(name, Some(0)).await;
    }
    node.start().await;
    for name in ["web", "db"] {
        node.wait_torn_down(name).await;
    }
    wait_until("both are finished", async || node.status().await.counters.finished == 2).await;
    assert!(node.get("neighbour").await.is_some());
    assert_eq!(node.stop().await, Ok(()));
    assert_eq!(node.journal().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_a_pod_that_terminates_in_time() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.allow_everything();
    node.delete("web", Some(10)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let began = Instant::now();
    assert_eq!(node.stop().await, Ok(()));
    assert!(
        began.elapsed() >= secs(9) && began.elapsed() < secs(13),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(node.get("web").await, None);
    assert_eq!(node.journal().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn shutdown_leaves_a_slow_pod_to_the_next_start() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.allow_everything();
    node.delete("web", Some(60)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let began = Instant::now();
    assert_eq!(node.stop().await, Ok(()));
    assert!(
        began.elapsed() >= secs(20) && began.elapsed() < secs(22),
        "{:?}",
        began.elapsed()
    );
    assert!(node.get("web").await.is_some());
    assert_eq!(node.journal().await, [uid("web")]);
    node.start().await;
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn kept_pod_is_not_reported_again_after_a_restart() {
    let log = Log::new();
    let mut node = Node::new().await;
    node.simple_pod("web");
    let mut over = pod("web", &plain());
    over["status"]["phase"] = "Succeeded".into();
    node.insert(over);
    node.cri.allow_everything();
    node.start().await;
    wait_until("the pod is kept", async || {
        node.status().await.pods.awaiting_deletion == 1
    })
    .await;
    assert_eq!(log.lines("Teardown started").len(), 1);
    node.crash().await;
    node.start().await;
    wait_until("the pod is kept", async || {
        node.status().await.pods.awaiting_deletion == 1
    })
    .await;
    assert_eq!(log.lines("Teardown resumed after a restart"), Vec::<String>::new());
    // A later deletion is reported.
    node.delete("web", None).await;
    node.wait_torn_down("web").await;
    assert_eq!(log.lines("Teardown finished").len(), 1);
}
