//! A kubelet that starts again and again and never works: the agent is active between its starts.

use crate::prelude::*;

/// Longer than the agent needs on this clock to see a start or an exit.
const PAUSE: Duration = secs(8);
const LIFE: Duration = secs(2);

/// The kubelet is dead; it starts for a while after each pause.
pub async fn starts(node: &mut NodeWithKubelet, count: u32, pause: Duration, life: Duration) {
    for _ in 0..count {
        sleep(pause).await;
        node.kubelet_starts();
        sleep(life).await;
        node.kubelet_exits();
    }
}

/// A kubelet that worked has died and started so often that the agent is active between its starts. A gap has just begun.
async fn failing() -> NodeWithKubelet {
    let mut node = NodeWithKubelet::new().await;
    node.kubelet_works().await;
    node.kubelet_exits();
    starts(&mut node, 6, PAUSE, LIFE).await;
    node.assert_untouched();
    node
}

fn of_kind(node: &NodeWithKubelet, kind: Kind) -> usize {
    node.kinds().iter().filter(|(seen, _)| *seen == kind).count()
}

async fn is_active(node: &NodeWithKubelet) -> bool {
    node.role().await == "active"
}

#[tokio::test(start_paused = true)]
async fn agent_is_active_between_the_starts_once_none_has_worked_for_the_threshold() {
    let mut node = NodeWithKubelet::new().await;
    node.kubelet_works().await;
    node.delete("web", None).await;
    node.kubelet_exits();
    let died = Instant::now();
    loop {
        for _ in 0..PAUSE.as_secs() {
            sleep(secs(1)).await;
            let threshold = secs(45);
            assert!(died.elapsed() > threshold - secs(6) || !is_active(&node).await);
        }
        if is_active(&node).await {
            break;
        }
        node.assert_untouched();
        node.kubelet_starts();
        sleep(LIFE).await;
        assert_eq!(node.role().await, "kubelet-started");
        node.kubelet_exits();
    }
    assert!(died.elapsed() < secs(60), "{:?}", died.elapsed());
    starts(&mut node, 1, secs(0), LIFE).await;
    wait_until!(is_active(&node).await);
    node.wait_torn_down("web").await;
    let role = node.status().await.role.unwrap();
    let message = role.message.unwrap();
    assert!(
        message.starts_with("between the starts of a failing kubelet: ") && message.ends_with("s, none worked"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_gap_begins_without_a_new_waiting_time_and_each_start_ends_it() {
    for life in [LIFE, secs(20), secs(40)] {
        let mut node = failing().await;
        for _ in 0..10 {
            sleep(secs(2)).await;
            assert!(is_active(&node).await, "{}", node.role().await);
            sleep(secs(6)).await;
            node.kubelet_starts();
            sleep(secs(2)).await;
            assert_eq!(node.role().await, "kubelet-started");
            let blocked = node.status().await.blocked.unwrap();
            assert!(blocked.contains("starts again and again and never works"), "{blocked}");
            sleep(life - secs(2)).await;
            node.kubelet_exits();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answer_or_renewal_begins_the_threshold_anew() {
    let mut node = failing().await;
    sleep(PAUSE).await;
    assert!(is_active(&node).await);
    node.delete("web", None).await;
    node.kubelet_starts();
    sleep(LIFE).await;
    let stops = node.cri.effects().len();
    // In its last moment.
    node.renew().await;
    node.kubelet_exits();
    let died = Instant::now();
    while died.elapsed() < secs(30) {
        sleep(PAUSE).await;
        assert!(!is_active(&node).await);
        node.kubelet_starts();
        sleep(LIFE).await;
        node.kubelet_exits();
    }
    assert_eq!(node.cri.effects().len(), stops);
    let took = died.elapsed() + node.wait_for_takeover().await;
    assert_takes_threshold(took);
}

#[tokio::test(start_paused = true)]
async fn grace_period_that_spans_ten_gaps_is_counted_from_its_beginning() {
    let mut node = failing().await;
    node.stubborn_pod("stubborn");
    sleep(secs(2)).await;
    let begun = Instant::now();
    node.delete("stubborn", Some(100)).await;
    assert!(node.get("stubborn").await.is_some());
    let pod_is_gone = async |node: &NodeWithKubelet| node.get("stubborn").await.is_none();
    let mut gaps = 0;
    while !pod_is_gone(&node).await {
        gaps += 1;
        starts(&mut node, 1, PAUSE, LIFE).await;
        assert!(gaps < 20, "{:?}", begun.elapsed());
    }
    assert!(gaps >= 10, "{gaps}");
    let took = begun.elapsed();
    assert!((secs(100)..secs(125)).contains(&took), "{took:?}");
    let stops: Vec<_> = node
        .kinds()
        .into_iter()
        .filter(|(kind, _)| *kind == Kind::StopContainer)
        .collect();
    let left: Vec<_> = stops.iter().filter_map(|(_, timeout)| *timeout).collect();
    assert!(left.len() >= 10, "{left:?}");
    assert!(
        left.is_sorted_by(|one, next| one > next || next.is_zero() || *next <= secs(2)),
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn hook_that_ended_in_a_gap_is_not_run_again() {
    let mut node = failing().await;
    node.pod("hooked", &hooked(&exec()), |pod| {
        pod.container("main").ignores_term().commands(secs(3), 0, b"")
    });
    sleep(secs(1)).await;
    node.delete("hooked", Some(60)).await;
    starts(&mut node, 8, PAUSE, LIFE).await;
    node.wait_torn_down("hooked").await;
    assert_eq!(of_kind(&node, Kind::ExecSync), 1);
}

#[tokio::test(start_paused = true)]
async fn hook_that_a_start_cut_off_runs_in_what_is_left_of_the_grace_period() {
    let mut node = failing().await;
    node.pod("hooked", &hooked(&exec()), |pod| {
        pod.container("main").ignores_term().commands(secs(11), 0, b"")
    });
    sleep(secs(1)).await;
    let begun = Instant::now();
    node.delete("hooked", Some(60)).await;
    starts(&mut node, 2, PAUSE, LIFE).await;
    assert_eq!(of_kind(&node, Kind::StopContainer), 0, "{:?}", node.kinds());
    // Long enough for the hook.
    starts(&mut node, 1, secs(20), LIFE).await;
    let hooks = of_kind(&node, Kind::ExecSync);
    assert_eq!(hooks, 3, "twice cut off, then run to its end");
    starts(&mut node, 8, PAUSE, LIFE).await;
    node.wait_torn_down("hooked").await;
    assert_eq!(of_kind(&node, Kind::ExecSync), hooks);
    assert!(begun.elapsed() < secs(130), "{:?}", begun.elapsed());
    let stops: Vec<_> = node
        .kinds()
        .into_iter()
        .filter_map(|(kind, timeout)| timeout.filter(|_| kind == Kind::StopContainer))
        .collect();
    assert!(stops[0] <= secs(32), "the hook has used its part: {stops:?}");
}

#[tokio::test(start_paused = true)]
async fn stop_request_in_flight_is_canceled_by_the_next_start() {
    let mut node = failing().await;
    node.stubborn_pod("stubborn");
    sleep(secs(2)).await;
    granted(&node, "stubborn/stop", &StopRequest::default()).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    starts(&mut node, 1, secs(3), LIFE).await;
    let stops = of_kind(&node, Kind::StopContainer);
    starts(&mut node, 3, PAUSE, LIFE).await;
    assert_eq!(of_kind(&node, Kind::StopContainer), stops);
    let status = node.status().await;
    assert_eq!(status.counters.stop_requests_canceled, 1);
    assert!(node.get("stubborn").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn outage_of_the_api_server_ends_the_gaps_for_the_threshold() {
    let mut node = failing().await;
    sleep(secs(2)).await;
    assert!(is_active(&node).await);
    inject_fault(&node, Fault::new(Action::Refuse).resource("leases"));
    sleep(secs(20)).await;
    assert!(is_active(&node).await, "an active agent stays active");
    starts(&mut node, 1, PAUSE, LIFE).await;
    for _ in 0..5 {
        starts(&mut node, 1, PAUSE, LIFE).await;
        sleep(secs(4)).await;
        assert_eq!(node.role().await, "kubelet-unknown");
    }
    node.api.faults().clear();
    let again = Instant::now();
    while !is_active(&node).await {
        starts(&mut node, 1, PAUSE, LIFE).await;
        sleep(secs(2)).await;
    }
    assert!(again.elapsed() >= secs(44), "{:?}", again.elapsed());
}

/// Its work is cut off at each start, and it must not wait longer after each.
#[tokio::test(start_paused = true)]
async fn attempt_that_a_start_cut_off_is_made_again_in_the_next_gap() {
    let mut node = failing().await;
    let hang = || expect(RemovePodSandbox::any()).hang();
    node.cri.in_order((0..6).map(|_| hang()));
    sleep(secs(2)).await;
    node.delete("web", None).await;
    for gap in 0..6 {
        node.calls(gap + 1, |seen| seen.kind == Kind::RemovePodSandbox).await;
        let left = PAUSE - secs(4);
        starts(&mut node, 1, left, LIFE).await;
        sleep(secs(2)).await;
        assert_eq!(
            of_kind(&node, Kind::RemovePodSandbox),
            gap + 2,
            "in the gap that has just begun"
        );
    }
    node.wait_torn_down("web").await;
}

/// Short gaps are not spent on waiting for the pods that are stopped first.
#[tokio::test(start_paused = true)]
async fn pod_deleted_by_force_that_cannot_be_stopped_delays_others_in_its_first_gap_only() {
    let mut node = failing().await;
    node.stubborn_pod("zombie");
    starts(&mut node, 1, PAUSE, LIFE).await;
    let of_zombie = |node: &NodeWithKubelet| {
        let effects = node.cri.effects();
        let stops = effects.iter().map(|(_, seen)| seen);
        stops
            .filter(|seen| seen.kind == Kind::StopContainer && *seen.pod_uid == *uid("zombie"))
            .count()
    };
    let zombie = || expect(StopContainer::any().in_pod(&uid("zombie"))).hang();
    node.cri.in_order((0..6).map(|_| zombie()));
    node.kubelet_starts();
    node.delete("zombie", Some(0)).await;
    sleep(LIFE).await;
    node.kubelet_exits();
    starts(&mut node, 1, secs(4), LIFE).await;
    node.kubelet_starts();
    node.delete("web", None).await;
    sleep(LIFE).await;
    node.kubelet_exits();
    let begun = Instant::now();
    let of_web = |seen: &Seen| seen.kind == Kind::StopContainer && *seen.pod_uid == *uid("web");
    node.calls(1, of_web).await;
    assert!(begun.elapsed() < secs(2), "{:?}", begun.elapsed());
    assert!((1..6).contains(&of_zombie(&node)), "it cannot be stopped yet");
    while of_zombie(&node) < 6 {
        starts(&mut node, 1, PAUSE, LIFE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn status_and_why_speak_of_the_starts() {
    let mut node = failing().await;
    node.stubborn_pod("stubborn");
    sleep(secs(2)).await;
    node.delete("stubborn", Some(600)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let text = node.why("stubborn").await;
    assert_has(
        &text,
        &["this agent terminates it between the starts of a failing kubelet: 6 starts in"],
    );
    sleep(secs(4)).await;
    node.kubelet_starts();
    sleep(LIFE).await;
    let text = node.why("stubborn").await;
    assert_has(
        &text,
        &[
            "the kubelet of this node starts again and again and never works: 7 starts in",
            "this agent continues when that process exits",
        ],
    );
}
