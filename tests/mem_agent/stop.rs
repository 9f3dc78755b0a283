//! Containers and sandboxes that do not stop properly.

use pod_teardown::handover::guard::holds::SafetyHold;

use crate::prelude::*;

/// Allows the sandbox stop and all removals at any time.
fn allow_remaining_calls(node: &Node) {
    node.allow([StopPodSandbox::any(), RemoveContainer::any(), RemovePodSandbox::any()]);
}

#[tokio::test(start_paused = true)]
async fn pod_is_torn_down_in_order_without_leftovers() {
    let mut node = Node::started(&["web"]).await;
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(30))),
        expect(StopPodSandbox::of("web")),
        expect(RemoveContainer::of("main")),
        expect(RemovePodSandbox::of("web")),
    ]);
    node.tear_down("web").await;
    node.cri.finished().await;
    let status = node.status().await;
    assert_eq!((status.counters.finished, status.counters.attempts_failed), (1, 0));
    assert_eq!(node.stop().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn hanging_stop_is_canceled_and_retried_without_delaying_other_pods() {
    let mut node = Node::new().await;
    node.pod("stuck", &plain(), |pod| pod.container("main"));
    node.simple_pod("web");
    node.start().await;
    allow_remaining_calls(&node);
    node.always(expect(StopContainer::of("main").in_pod("uid-web")));
    node.cri.in_order([
        expect(StopContainer::of("main").in_pod("uid-stuck")).hang(),
        // It would stop the container, too.
        expect(StopPodSandbox::of("stuck")).reply_ok_but_do_nothing(),
        expect(StopContainer::of("main").in_pod("uid-stuck").timeout(secs(2))),
    ]);
    let began = Instant::now();
    node.delete("stuck", Some(5)).await;
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
    node.wait_deleted("stuck").await;
    // The grace period, the runtime's margin, and the pause before the next attempt.
    assert!(
        began.elapsed() > secs(5 + 120) && began.elapsed() < secs(5 + 120 + 3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(node.count_events("stuck", "FailedKillPod").await, 1);
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn sandbox_stop_waits_for_a_container_whose_stop_failed_or_did_nothing() {
    let stop = || expect(StopContainer::of("main"));
    for first in [
        stop().error(Code::Internal, "shim is busy"),
        stop().reply_ok_but_do_nothing(),
    ] {
        let node = Node::started(&["web"]).await;
        node.cri.in_order([
            first,
            stop(),
            expect(StopPodSandbox::of("web")),
            expect(RemoveContainer::of("main")),
            expect(RemovePodSandbox::of("web")),
        ]);
        node.tear_down("web").await;
        node.cri.finished().await;
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_cleanups_delay_no_other() {
    let mut node = Node::new().await;
    let stuck: Vec<String> = (0..8).map(|n| format!("p{n}")).collect();
    for name in &stuck {
        node.simple_pod(name);
        let removal = RemoveContainer::any().in_pod(&uid(name));
        node.always(expect(removal).hang());
    }
    node.simple_pod("web");
    node.start().await;
    allow_remaining_calls(&node);
    node.always(expect(StopContainer::any()));
    node.delete_all(&stuck, Some(1)).await;
    sleep(secs(30)).await;
    node.delete("web", Some(1)).await;
    let began = Instant::now();
    node.wait_torn_down("web").await;
    assert!(began.elapsed() < secs(60), "{:?}", began.elapsed());
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn late_answer_is_waited_for() {
    let node = Node::started(&["web"]).await;
    allow_remaining_calls(&node);
    node.cri.in_order([expect(StopContainer::of("main")).then(secs(60))]);
    node.tear_down("web").await;
    assert_eq!(node.count_events("web", "FailedKillPod").await, 0);
}

#[tokio::test(start_paused = true)]
async fn failed_stop_is_retried_only_if_the_container_runs() {
    for does_it_though in [false, true] {
        let node = Node::started(&["web"]).await;
        allow_remaining_calls(&node);
        let stop = || expect(StopContainer::of("main"));
        if does_it_though {
            node.cri
                .in_order([stop().reply_error_but_do_it(Code::Unknown, "task is gone")]);
        } else {
            node.cri
                .in_order([stop().error(Code::Internal, "shim is busy"), stop()]);
        }
        node.tear_down("web").await;
        let failed = node.messages("web", "FailedKillPod").await;
        assert_eq!(failed.len(), 1, "{failed:?}");
        let words = if does_it_though { "task is gone" } else { "shim is busy" };
        assert_has(&failed[0], &["main", words]);
        node.cri.finished().await;
    }
}

#[tokio::test(start_paused = true)]
async fn sandbox_stop_is_retried_with_backoff_without_delaying_other_pods() {
    let node = Node::started(&["stuck", "web"]).await;
    node.always(expect(StopPodSandbox::of("stuck")).error(Code::Unknown, "network plugin is not ready"));
    node.cri.allow_everything();
    node.delete("stuck", None).await;
    node.tear_down("web").await;
    let calls = node
        .calls(8, |seen| seen.kind == Kind::StopPodSandbox && seen.name == "stuck")
        .await;
    let pauses: Vec<_> = calls.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    for (at, pause) in pauses.iter().enumerate() {
        // Jitter may halve each pause, and never makes one longer than 30 s.
        let most = secs(1 << at).min(secs(30));
        assert!(*pause >= most / 2 && *pause <= most, "{pauses:?}");
    }
    let failed = node.messages("stuck", "FailedKillPod").await;
    assert_eq!(failed.len(), 1, "the same is no news: {failed:?}");
    assert_has(&failed[0], &["network plugin is not ready"]);
    assert!(node.get("stuck").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn no_object_is_deleted_while_one_of_its_containers_runs() {
    let node = Node::with_stubborn_pod().await;
    node.always(expect(StopContainer::any()).reply_ok_but_do_nothing());
    node.always(expect(StopPodSandbox::any()).reply_ok_but_do_nothing());
    node.delete("web", Some(2)).await;
    node.wait_blocked("web", "still Running after its stop").await;
    node.calls(5, |seen| seen.kind == Kind::StopContainer).await;
    let object = node.get("web").await.expect("the object stays");
    assert_eq!(object["status"]["phase"], "Running", "no end is reported before it");
    node.cri.change(|world| {
        world.will_end("main", Instant::now(), 0);
        world.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = false);
    });
    allow_remaining_calls(&node);
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn no_object_is_deleted_while_a_sandbox_is_ready() {
    // One that stays ready after its stop, and one that appears during another's stop.
    for meanwhile in [false, true] {
        let node = Node::started_with("web", &plain(), |pod| pod.container("main").ends_after_term(secs(5), 0)).await;
        node.always(expect(StopContainer::any()));
        node.cri.in_order([if meanwhile {
            expect(StopPodSandbox::any())
        } else {
            expect(StopPodSandbox::any()).reply_ok_but_do_nothing()
        }]);
        node.delete("web", None).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        if meanwhile {
            node.cri
                .change(|world| drop(world.pod("default", "web", &uid("web")).sandbox()));
        }
        node.wait_blocked("web", "still ready after its stop").await;
        assert_eq!(node.phase("web").await, "Running");
        allow_remaining_calls(&node);
        node.wait_torn_down("web").await;
        assert!(node.count_events("web", "FailedKillPod").await > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn container_in_unknown_state_is_stopped() {
    let node = Node::started_with("web", &plain(), |pod| pod.container("main").unknown()).await;
    allow_remaining_calls(&node);
    node.cri.in_order([
        expect(StopContainer::of("main")).reply_ok_but_do_nothing(),
        expect(StopContainer::of("main")),
    ]);
    node.delete("web", None).await;
    node.wait_blocked("web", "still Unknown").await;
    node.wait_deleted("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn pod_whose_object_stays_is_counted_as_deleted_once() {
    let mut node = Node::with_pods(&["web"]).await;
    node.hold_object("web").await;
    node.start().await;
    node.allow([StopContainer::any(), StopPodSandbox::any(), RemoveContainer::any()]);
    let busy = || expect(RemovePodSandbox::any()).error(Code::Unknown, "busy");
    node.cri.in_order((0..3).map(|_| busy()));
    node.delete("web", None).await;
    node.calls(3, |seen| seen.kind == Kind::RemovePodSandbox).await;
    allow_remaining_calls(&node);
    node.wait_status(|it| it.counters.finished, 1).await;
    assert_eq!(node.status().await.counters.deleted, 1);
}

#[tokio::test(start_paused = true)]
async fn reverted_phase_does_not_end_the_teardown_and_is_sent_again() {
    let node = Node::started(&["web"]).await;
    let phase = async |phase: &str| {
        let path = "/api/v1/namespaces/default/pods/web/status";
        let patch = json!({ "status": { "phase": phase } });
        node.admin
            .patch(path, Patch::Merge, &patch)
            .await
            .unwrap()
            .ok()
            .unwrap();
    };
    node.always(expect(StopContainer::any()));
    // Another client writes the status before the second attempt.
    node.cri
        .in_order([expect(StopPodSandbox::any()).error(Code::Unknown, "busy")]);
    phase("Failed").await;
    node.wait_blocked("web", "busy").await;
    phase("Running").await;
    node.always(expect(StopPodSandbox::any()));
    wait_until("the API shows its end", async || {
        let pod = node.get("web").await.expect("it is not deleted");
        pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object() && pod["status"]["phase"] != "Running"
    })
    .await;
    sleep(secs(100)).await;
    let status = node.status().await;
    assert_eq!((status.pods.awaiting_deletion, status.counters.finished), (1, 0));
    assert!(node.pod_dir("web").exists() && node.path("logs").read_dir().unwrap().count() == 1);
    node.cri.allow_everything();
    node.tear_down("web").await;
}

/// A pod with a file in an emptyDir whose network teardown fails, although its sandbox has stopped. Returns the volume.
fn pod_without_network_plugin(node: &Node, name: &str) -> PathBuf {
    node.simple_pod(name);
    let volume = node.pod_dir(name).join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    volume
}

/// The network plugin is down: containerd has stopped all processes by then.
fn network_teardown_fails(node: &Node) {
    node.always(
        expect(StopPodSandbox::any()).reply_error_but_do_it(Code::Unknown, "failed to destroy network: no multus.sock"),
    );
    node.always(expect(StopContainer::any()));
}

/// A process that the kernel does not let exit: the file gets the request to kill, and no process a signal.
fn process_that_stays(cgroup: &Path) {
    fs::write(cgroup.join("cgroup.kill"), "").unwrap();
    fs::write(cgroup.join("cgroup.procs"), "4711\n").unwrap();
}

/// The runtime reports as exited what runs, and the network is gone.
#[tokio::test(start_paused = true)]
async fn process_that_is_left_is_killed_although_the_network_cannot_be_taken_down() {
    let mut node = Node::new().await;
    let volume = pod_without_network_plugin(&node, "web");
    let id = node.cri.look(|world| world.container("main").unwrap().id.clone());
    let container = node.pod_cgroup("web").join(id);
    let mut process = Bystander::in_cgroup(&container);
    node.start().await;
    network_teardown_fails(&node);
    node.delete("web", None).await;
    process.wait_killed().await;
    // As the kernel does.
    fs::remove_dir_all(&container).unwrap();
    wait_until!(!volume.exists());
    assert!(node.get("web").await.is_some(), "its network may still exist");
}

#[tokio::test(start_paused = true)]
async fn failed_network_teardown_blocks_the_object_until_an_approval_and_not_the_volumes() {
    let mut node = Node::new().await;
    let volume = pod_without_network_plugin(&node, "web");
    node.start().await;
    network_teardown_fails(&node);
    node.delete("web", None).await;
    wait_until!(!volume.exists());
    node.wait_blocked("web", "no multus.sock").await;
    sleep(secs(20)).await;
    assert!(hold_items(&node).await.is_empty(), "it may come back soon");
    let facts = wait_held(&node, "pod/default/web").await.facts;
    assert!(facts.len() == 1 && facts[0].starts_with("sandbox "), "{facts:?}");
    sleep(secs(600)).await;
    assert_eq!(node.phase("web").await, "Running");
    assert!(node.pod_cgroup("web").exists() && node.pod_dir("web").exists());
    assert!(node.count_events("web", "FailedKillPod").await > 0);
    node.allow([RemoveContainer::any(), RemovePodSandbox::any()]);
    approve(&node, "pod/default/web").await.unwrap();
    node.wait_deleted("web").await;
    assert!(!node.pod_cgroup("web").exists());
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn no_approval_is_offered_while_a_process_runs_or_for_another_error_than_one_of_the_network() {
    for what in ["process", "error"] {
        let mut node = Node::new().await;
        pod_without_network_plugin(&node, "web");
        node.start().await;
        if what == "process" {
            process_that_stays(&node.pod_cgroup("web"));
            network_teardown_fails(&node);
        } else {
            let fails = expect(StopPodSandbox::any()).reply_error_but_do_it(Code::Unknown, "no space left on device");
            node.always(fails);
            node.always(expect(StopContainer::any()));
        }
        node.delete("web", None).await;
        sleep(secs(900)).await;
        let is_offered = |item: &SafetyHold| item.approval_effect.contains("network");
        assert!(!hold_items(&node).await.iter().any(is_offered), "{what}");
        assert!(node.get("web").await.is_some(), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_stay_while_a_process_may_run_after_a_failed_network_teardown() {
    for what in ["sandbox", "process", "request"] {
        let mut node = Node::new().await;
        let volume = pod_without_network_plugin(&node, "web");
        if what == "process" {
            process_that_stays(&node.pod_cgroup("web"));
        }
        node.start().await;
        match what {
            "sandbox" => {
                node.always(expect(StopPodSandbox::any()).error(Code::Unknown, "no multus.sock"));
                node.always(expect(StopContainer::any()));
            }
            _ => network_teardown_fails(&node),
        }
        if what == "request" {
            // A kubelet would restart the pod with its volumes.
            granted(&node, "web/stop", &StopRequest::default()).await;
        } else {
            node.delete("web", None).await;
        }
        node.wait_blocked("web", "no multus.sock").await;
        sleep(secs(60)).await;
        assert!(volume.join("file").exists(), "{what}");
    }
}
