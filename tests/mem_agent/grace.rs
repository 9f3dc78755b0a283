//! The running grace period: it can be shortened at every step, and never grows.

use crate::prelude::*;

fn sidecars() -> Value {
    json!([
        { "name": "mesh", "image": "i", "restartPolicy": "Always" },
        { "name": "logs", "image": "i", "restartPolicy": "Always" },
    ])
}

/// A node with a pod of two sidecars and a main container, all of which ignore SIGTERM.
async fn with_sidecars() -> Node {
    let node = with_sidecars_and_no_script().await;
    node.cri.allow_everything();
    node
}

/// The same; stops of the main container always fail.
async fn with_sidecars_and_a_stuck_container() -> Node {
    let node = with_sidecars_and_no_script().await;
    node.always(expect(StopContainer::of("main")).error(Code::Unknown, "shim is busy"));
    node.cri.allow_everything();
    node
}

async fn with_sidecars_and_no_script() -> Node {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| {
        let pod = pod.container("mesh").ignores_term();
        pod.container("logs").ignores_term().container("main").ignores_term()
    });
    let mut object = pod("web", &plain());
    object["spec"]["initContainers"] = sidecars();
    node.insert(object);
    node.start().await;
    node
}

#[tokio::test(start_paused = true)]
async fn shorter_grace_applies_to_a_running_stop_and_a_longer_one_is_ignored() {
    let node = Node::with_stubborn_pod().await;
    node.cri.allow_everything();
    let began = Instant::now();
    node.delete("web", Some(60)).await;
    sleep(secs(10)).await;
    node.delete("web", Some(15)).await;
    sleep(secs(2)).await;
    let mut longer = node.get("web").await.unwrap();
    longer["metadata"]["deletionGracePeriodSeconds"] = 600.into();
    node.insert(longer);
    node.wait_deleted("web").await;
    assert_took(began, secs(15)..secs(16));
    let stops = node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    let timeouts: Vec<_> = stops.iter().filter_map(|(_, seen)| seen.timeout).collect();
    assert_eq!(timeouts, [secs(60), secs(5)]);
}

#[tokio::test(start_paused = true)]
async fn shorter_grace_survives_a_failed_call() {
    let node = Node::with_stubborn_pod().await;
    let busy = || expect(StopContainer::of("main")).error(Code::Unknown, "shim is busy");
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(3600))),
        busy(),
        busy(),
        expect(StopContainer::of("main")),
    ]);
    let began = Instant::now();
    node.delete("web", Some(3600)).await;
    sleep(secs(10)).await;
    node.delete("web", Some(20)).await;
    node.wait_blocked("web", "shim is busy").await;
    node.calls(4, |seen| seen.kind == Kind::StopContainer).await;
    node.cri.allow_everything();
    node.wait_deleted("web").await;
    let stops = node.calls(4, |seen| seen.kind == Kind::StopContainer).await;
    let pauses: Vec<_> = stops.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    // Jitter may halve each pause.
    for (pause, most) in pauses[1..].iter().zip([secs(1), secs(2)]) {
        assert!(*pause >= most / 2 && *pause <= most, "{pauses:?}");
    }
    // The remaining grace is requested in whole seconds.
    assert_took(began, secs(20)..secs(22));
    assert_eq!(node.count_events("web", "FailedKillPod").await, 1);
    let counted = node.status().await.counters;
    assert_eq!(counted.failures, [(Step::Term, [("Unknown".into(), 2)].into())].into());
}

#[tokio::test(start_paused = true)]
async fn shorter_grace_ends_a_hook_and_the_container_gets_the_remainder() {
    let node = Node::started_with("web", &hooked(&exec()), |pod| {
        pod.container("main").ignores_term().commands(secs(50), 0, b"")
    })
    .await;
    node.cri.in_order([
        expect(ExecSync::of("main").command(&["drain"]).timeout(secs(60))),
        expect(StopContainer::of("main").timeout(secs(2))),
    ]);
    let began = Instant::now();
    node.delete("web", Some(60)).await;
    sleep(secs(10)).await;
    node.delete("web", Some(12)).await;
    node.calls(2, |_| true).await;
    assert_took(began, secs(12)..secs(13));
    node.cri.allow_everything();
    node.wait_deleted("web").await;
    assert!(began.elapsed() < secs(15), "{:?}", began.elapsed());
    assert_eq!(node.count_events("web", "FailedPreStopHook").await, 1);
}

/// Names and seconds since the first of all stops.
async fn order(node: &Node, count: usize) -> Vec<(String, u64)> {
    let stops = node.calls(count, |seen| seen.kind == Kind::StopContainer).await;
    let began = stops[0].0;
    let stops = stops.into_iter();
    stops.map(|(at, seen)| (seen.name, (at - began).as_secs())).collect()
}

fn exit_3_seconds_after_sigterm(node: &Node) {
    node.cri.change(|world| {
        for container in world.containers.values_mut() {
            container.on_term = testbed::scripted_cri::OnTerm::End(secs(3), 0);
        }
    });
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_stopped_after_a_container_whose_stop_failed() {
    let node = with_sidecars().await;
    exit_3_seconds_after_sigterm(&node);
    let busy = |name| expect(StopContainer::of(name)).error(Code::Unknown, "shim is busy");
    node.cri.in_order([
        busy("main"),
        expect(StopContainer::of("main")),
        busy("logs"),
        expect(StopContainer::of("logs")),
        expect(StopContainer::of("mesh")),
    ]);
    node.delete("web", None).await;
    node.wait_blocked("web", "shim is busy").await;
    node.wait_deleted("web").await;
    let order = order(&node, 5).await;
    let names: Vec<_> = order.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["main", "main", "logs", "logs", "mesh"], "{order:?}");
    let (again, logs) = (order[1].1, order[2].1);
    assert!((0..=1).contains(&again) && logs == again + 3, "{order:?}");
    assert_eq!(order[4].1, order[3].1 + 3, "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_stopped_when_the_grace_period_expires() {
    let node = with_sidecars_and_a_stuck_container().await;
    // The backoff has grown by then.
    node.delete("web", Some(100)).await;
    node.wait_deleted("web").await;
    let order = order(&node, 3).await;
    let sidecars: Vec<_> = order.iter().filter(|(name, _)| name != "main").collect();
    assert!(
        sidecars.len() == 2 && sidecars.iter().all(|(_, at)| *at == 100),
        "{order:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn sidecar_gets_its_minimum_grace_before_the_sandbox_stop() {
    let node = with_sidecars_and_a_stuck_container().await;
    let mut object = node.get("web").await.unwrap();
    // Within the grace period this container exits by itself.
    object["spec"]["initContainers"][0]["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 60 } } });
    node.insert(object);
    sleep(secs(1)).await;
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    let effects = node.cri.effects();
    let first = |kind, name: &str| {
        effects
            .iter()
            .position(|(_, seen)| seen.kind == kind && seen.name == name)
    };
    let sandbox = first(Kind::StopPodSandbox, "web").unwrap();
    let stopped = |name| first(Kind::StopContainer, name).is_some_and(|at| at < sandbox);
    assert!(stopped("logs") && stopped("mesh"), "{effects:?}");
}

#[tokio::test(start_paused = true)]
async fn shorter_grace_applies_to_the_sequence_of_sidecars() {
    let node = with_sidecars().await;
    let began = Instant::now();
    node.delete("web", Some(60)).await;
    sleep(secs(4)).await;
    node.delete("web", Some(5)).await;
    node.wait_deleted("web").await;
    // A container not stopped by the deadline gets the minimum of two seconds.
    assert_took(began, secs(7)..secs(9));
}

#[tokio::test(start_paused = true)]
async fn absurd_grace_periods_are_harmless() {
    let mut node = Node::with_pods(&["web"]).await;
    for (name, spec, deletion) in [
        ("endless", i64::MAX, json!(i64::MAX)),
        ("negative", -1, Value::Null),
        ("lowest", i64::MIN, Value::Null),
    ] {
        node.simple_pod(name);
        let mut object = node.get(name).await.unwrap();
        object["spec"]["terminationGracePeriodSeconds"] = spec.into();
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["deletionGracePeriodSeconds"] = deletion;
        node.insert(object);
    }
    node.launch().await;
    node.cri.allow_everything();
    node.wait_all_torn_down(["endless", "negative", "lowest"]).await;
    node.tear_down("web").await;
    wait_until!(node.runs());
}

/// A pod with an endless hook and a container that ignores SIGTERM.
async fn hanging_hook() -> Node {
    let node = Node::started_with("web", &hooked(&exec()), |pod| {
        pod.container("main").ignores_term().commands(secs(1_000_000), 0, b"")
    })
    .await;
    node.cri.allow_everything();
    node
}

/// Kubernetes issue 127339.
#[tokio::test(start_paused = true)]
async fn endless_hook_is_terminated_by_a_forced_deletion() {
    let node = hanging_hook().await;
    node.delete("web", Some(300)).await;
    node.calls(1, |seen| seen.kind == Kind::ExecSync).await;
    sleep(secs(20)).await;
    let forced = Instant::now();
    node.delete("web", Some(0)).await;
    node.wait_torn_down("web").await;
    assert!(forced.elapsed() < secs(4), "{:?}", forced.elapsed());
    assert_eq!(node.calls(1, |seen| seen.kind == Kind::ExecSync).await.len(), 1);
}

/// Kubernetes issue 115817.
#[tokio::test(start_paused = true)]
async fn hanging_hook_and_container_that_ignores_sigterm_share_one_grace_period() {
    let node = hanging_hook().await;
    let began = Instant::now();
    node.delete("web", Some(20)).await;
    node.wait_deleted("web").await;
    // The minimum of a stop is two seconds.
    assert!(began.elapsed() < secs(23), "{:?}", began.elapsed());
    assert_eq!(
        node.kinds()[..2],
        [(Kind::ExecSync, Some(secs(20))), (Kind::StopContainer, Some(secs(2)))]
    );
}

#[tokio::test(start_paused = true)]
async fn hook_uses_the_grace_of_its_own_container() {
    let containers = json!([
        { "name": "slow", "image": "i", "lifecycle": { "preStop": { "sleep": { "seconds": 12 } } } },
        { "name": "quick", "image": "i", "lifecycle": { "preStop": { "sleep": { "seconds": 3 } } } },
        { "name": "none", "image": "i" },
    ]);
    let node = Node::started_with("web", &containers, |pod| {
        pod.container("slow").container("quick").container("none")
    })
    .await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    let stops = node.calls(3, |seen| seen.kind == Kind::StopContainer).await;
    let left: Vec<_> = stops
        .iter()
        .map(|(_, seen)| (&*seen.name, seen.timeout.unwrap().as_secs()))
        .collect();
    assert_eq!(left, [("none", 30), ("quick", 27), ("slow", 18)]);
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_stopped_after_the_main_container_in_reverse_order_and_their_hooks_run_at_once() {
    let node = with_sidecars().await;
    let mut object = node.get("web").await.unwrap();
    object["spec"]["initContainers"][0]["lifecycle"] = json!({ "preStop": exec() });
    node.insert(object);
    exit_3_seconds_after_sigterm(&node);
    sleep(secs(1)).await;
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    let hooks = node.calls(1, |seen| seen.kind == Kind::ExecSync).await;
    let stops = node.calls(3, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(
        (&*hooks[0].1.name, hooks[0].0.as_secs()),
        ("mesh", stops[0].0.as_secs())
    );
    assert_eq!(
        order(&node, 3).await,
        [("main", 0), ("logs", 3), ("mesh", 6)].map(|(name, at)| (name.to_owned(), at))
    );
    let timeouts: Vec<_> = stops.iter().filter_map(|(_, seen)| seen.timeout).collect();
    assert_eq!(timeouts, [secs(30), secs(27), secs(24)], "all inside the one deadline");
}
