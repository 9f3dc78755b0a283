//! Containers in states other than running.

use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn created_or_exited_container_gets_no_hook_and_is_removed_with_its_sandbox() {
    for is_created in [true, false] {
        let node = Node::started_with("web", &hooked(&exec()), |pod| match is_created {
            true => pod.container("main").created(),
            false => pod.container("main").exited(0),
        })
        .await;
        node.cri.allow_everything();
        node.tear_down("web").await;
        let kinds: Vec<_> = node.kinds().into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(
            kinds,
            [Kind::StopPodSandbox, Kind::RemoveContainer, Kind::RemovePodSandbox]
        );
        assert_eq!(node.count_events("web", "FailedPreStopHook").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn container_started_during_termination_is_stopped_before_the_object_is_deleted() {
    for restarts in [false, true] {
        let mut node = Node::new().await;
        node.pod("web", &plain(), |pod| {
            let pod = pod.container("main").ends_after_term(secs(5), 0);
            if restarts { pod } else { pod.container("late").created() }
        });
        node.run().await;
        node.delete("web", None).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        sleep(secs(1)).await;
        // A kubelet that was killed during a start may still have requested it, in the newest sandbox.
        node.cri.change(|world| {
            let pod = world.pod("default", "web", &uid("web"));
            drop(pod.container(if restarts { "main" } else { "late" }).ignores_term());
        });
        node.wait_blocked("web", "still Running").await;
        assert!(node.get("web").await.is_some());
        node.wait_torn_down("web").await;
        assert!(node.cri.look(|world| world.is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn sandboxes_in_every_state_are_stopped_and_removed() {
    let node = Node::started_with("web", &plain(), |pod| {
        pod.container("main")
            .exited(1)
            .sandbox()
            .container("main")
            .exited(2)
            .sandbox()
            .container("main")
    })
    .await;
    node.cri.allow_everything();
    node.tear_down("web").await;
    for kind in [Kind::StopPodSandbox, Kind::RemovePodSandbox] {
        let mut ids: Vec<_> = node
            .cri
            .effects()
            .into_iter()
            .filter(|(_, seen)| seen.kind == kind)
            .map(|(_, seen)| seen.id)
            .collect();
        ids.sort_unstable();
        assert_eq!(
            ids,
            ["sandbox-uid-web-0", "sandbox-uid-web-1", "sandbox-uid-web-2"],
            "{kind:?}"
        );
    }
    let stops = node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(stops.len(), 1, "only the one that runs");
}

#[tokio::test(start_paused = true)]
async fn container_that_exits_during_its_hook_is_stopped() {
    let node = Node::started_with("web", &hooked(&json!({ "sleep": { "seconds": 10 } })), |pod| {
        pod.container("main")
    })
    .await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    sleep(secs(2)).await;
    node.cri.change(|world| {
        let main = world.containers.values_mut().next().unwrap();
        (main.state, main.exit_code) = (SimState::Exited, 7);
    });
    node.wait_torn_down("web").await;
    assert_eq!(node.count_events("web", "FailedKillPod").await, 0);
}

#[tokio::test(start_paused = true)]
async fn unstoppable_container_does_not_delay_other_stops() {
    let containers = json!([{ "name": "stuck", "image": "i" }, { "name": "main", "image": "i" }]);
    let node = Node::started_with("web", &containers, |pod| pod.container("stuck").container("main")).await;
    node.cri.in_any_order([
        expect(StopContainer::of("stuck")).error(tonic::Code::Unknown, "shim is gone"),
        expect(StopContainer::of("main")),
    ]);
    node.delete("web", None).await;
    node.wait_blocked("web", "shim is gone").await;
    node.cri.finished().await;
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn frozen_container_is_thawed_before_its_stop() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| {
        pod.container("main").ends_after_term(secs(5), 3)
    });
    let dir = node.pod_cgroup("web").join("container-uid-web-main-0");
    std::fs::create_dir_all(&dir).unwrap();
    let freezer = dir.join("cgroup.freeze");
    std::fs::write(&freezer, "1\n").unwrap();
    node.start().await;
    node.cri.in_order([expect(ExecSync::of("main")).then(secs(2))]);
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::ExecSync).await;
    assert_eq!(std::fs::read_to_string(&freezer).unwrap().trim(), "0");
    std::fs::remove_file(&freezer).unwrap();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn sidecar_restarted_during_termination_is_stopped_within_the_remaining_grace() {
    let mut node = Node::new().await;
    let mut object = pod("web", &plain());
    object["spec"]["initContainers"] = json!([{ "name": "proxy", "image": "i", "restartPolicy": "Always" }]);
    node.insert(object);
    node.pod_without_object("web", |pod| {
        pod.container("proxy").container("main").ends_after_term(secs(10), 0)
    });
    node.run().await;
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(2)).await;
    node.cri.change(|world| {
        let old = world.containers.values_mut().find(|it| it.name == "proxy").unwrap();
        (old.state, old.exit_code) = (SimState::Exited, 1);
        let pod = world.pod("default", "web", &uid("web"));
        drop(pod.container("proxy").ends_after_term(secs(3), 0));
    });
    node.wait_torn_down("web").await;
    let stops = node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let again = stops.iter().find(|(_, seen)| seen.id == "container-uid-web-proxy-1");
    let (_, again) = again.expect("the new one is stopped, too");
    let left = again.timeout.unwrap();
    assert!(left > secs(5) && left <= secs(20), "{stops:?}");
    let kills = node.cri.effects();
    let sandbox = kills
        .iter()
        .position(|(_, seen)| seen.kind == Kind::StopPodSandbox)
        .unwrap();
    assert!(
        kills[..sandbox]
            .iter()
            .any(|(_, seen)| seen.id == "container-uid-web-proxy-1"),
        "before its sandbox"
    );
}
