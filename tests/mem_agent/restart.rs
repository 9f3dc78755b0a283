//! Restarts of the agent during a teardown.

use crate::handover::call_kinds;
use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn deadline_survives_a_restart_and_is_over_after_a_reboot() {
    for (reboots, left) in [(false, secs(17)..=secs(18)), (true, secs(2)..=secs(2))] {
        let mut node = Node::with_stubborn_pod().await;
        node.cri.in_order([
            expect(StopContainer::of("main").timeout(secs(30))),
            expect(StopContainer::of("main").timeout_within(left)),
        ]);
        let began = Instant::now();
        node.delete("web", None).await;
        sleep(secs(6)).await;
        node.crash().await;
        sleep(secs(6)).await;
        if reboots {
            node.boot_id = "boot-2".to_owned();
        }
        node.start().await;
        node.calls(2, |_| true).await;
        node.allow_all_but_hooks();
        node.wait_torn_down("web").await;
        assert!(began.elapsed() < secs(31), "{:?}", began.elapsed());
        node.cri.finished().await;
    }
}

#[tokio::test(start_paused = true)]
async fn container_that_runs_after_a_reboot_gets_the_grace_since_boot_only_once() {
    let mut node = Node::started_with("web", &hooked(&exec()), |pod| pod.container("main").ignores_term()).await;
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
    node.restart().await;
    node.calls(3, |_| true).await;
    node.calls(4, |_| true).await;
    node.allow_all_but_hooks();
    node.wait_torn_down("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn finished_hook_is_not_rerun_after_a_restart() {
    let mut node = Node::started_with("web", &hooked(&exec()), |pod| pod.container("main").ignores_term()).await;
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
    for time_is_left in [true, false] {
        let mut node = Node::started_with("web", &hooked(&exec()), |pod| pod.container("main")).await;
        let again = expect(ExecSync::of("main").timeout_within(secs(19)..=secs(20)));
        node.cri
            .in_order([expect(ExecSync::of("main").timeout(secs(30))).hang()]);
        node.cri.in_order(time_is_left.then_some(again));
        node.allow_all_but_hooks();
        node.delete("web", None).await;
        sleep(secs(10)).await;
        node.crash().await;
        if !time_is_left {
            sleep(secs(25)).await;
        }
        node.start().await;
        node.wait_torn_down("web").await;
        node.cri.finished().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pod_whose_object_was_deleted_without_the_agent_is_torn_down() {
    let mut node = Node::with_pods(&["neighbour"]).await;
    for name in ["web", "db"] {
        node.stubborn_pod(name);
    }
    node.run().await;
    node.delete_all(["web", "db"], None).await;
    node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    node.delete_all(["web", "db"], Some(0)).await;
    node.start().await;
    node.wait_all_torn_down(["web", "db"]).await;
    node.wait_status(|it| it.counters.finished, 2).await;
    assert!(node.get("neighbour").await.is_some());
    assert_eq!(node.stop().await, Ok(()));
    assert_eq!(node.journal().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_a_pod_that_terminates_in_time_and_leaves_a_slow_one_to_the_next_start() {
    for (grace, is_in_time) in [(10, true), (60, false)] {
        let mut node = Node::with_stubborn_pod().await;
        node.cri.allow_everything();
        node.delete("web", Some(grace)).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        let began = Instant::now();
        assert_eq!(node.stop().await, Ok(()));
        assert_took(
            began,
            if is_in_time {
                secs(9)..secs(13)
            } else {
                secs(20)..secs(22)
            },
        );
        assert_eq!(node.get("web").await.is_none(), is_in_time);
        assert_eq!(node.journal().await.is_empty(), is_in_time);
        node.start().await;
        node.wait_torn_down("web").await;
    }
}

/// The second one is finished before the agent starts.
#[tokio::test(start_paused = true)]
async fn terminal_pod_keeps_its_object_containers_and_logs_and_is_neither_stopped_nor_reported_again() {
    for runs in [true, false] {
        let log = Log::new();
        let mut node = Node::with_pods(&["web"]).await;
        if !runs {
            node.cri.change(|world| {
                world.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = false);
                world.containers.values_mut().for_each(|it| it.state = SimState::Exited);
            });
        }
        let mut over = pod("web", &plain());
        over["status"]["phase"] = "Succeeded".into();
        node.insert(over);
        node.run().await;
        for _ in 0..2 {
            node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
            sleep(secs(60)).await;
            let kinds = call_kinds(&node);
            assert_eq!(
                kinds,
                if runs {
                    vec![Kind::StopContainer, Kind::StopPodSandbox]
                } else {
                    vec![]
                }
            );
            assert!(node.cri.look(|world| world.containers.len() == 1) && node.get("web").await.is_some());
            assert_eq!(node.path("logs").read_dir().unwrap().count(), 1);
            node.restart().await;
        }
        assert_eq!(log.lines("Teardown started").len(), 1);
        assert_eq!(log.lines("Teardown resumed after a restart"), Vec::<String>::new());
        // A later deletion is reported.
        node.tear_down("web").await;
        assert_eq!(log.lines("Teardown finished").len(), 1);
    }
}
