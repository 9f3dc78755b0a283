//! A kubelet that starts again and again and never works: the agent is active between its starts.

use std::time::Duration;

use pod_teardown::explanation::Explanation;
use pod_teardown::ops::{
    admin::{stop::StopRequest, why::request_path},
    client,
};
use testbed::{
    apiserver::faults::{Action, Fault},
    scripted_cri::{Kind, RemovePodSandbox, Seen, StopContainer, expect},
};
use tokio::time::{Instant, sleep};

use crate::{
    node::{secs, wait_until},
    pods::{exec, hooked, plain, uid},
    server::inject_fault,
    standby::{NodeWithKubelet, assert_takes_threshold},
    stop_requests::granted,
};

/// Longer than the agent needs on this clock to see a start or an exit.
const PAUSE: Duration = secs(8);
const LIFE: Duration = secs(2);

/// The kubelet is dead; it starts for a while after each pause.
pub async fn starts(stage: &mut NodeWithKubelet, count: u32, pause: Duration, life: Duration) {
    for _ in 0..count {
        sleep(pause).await;
        stage.kubelet_starts();
        sleep(life).await;
        stage.kubelet_exits();
    }
}

/// A kubelet that worked has died and started so often that the agent is active between its starts. A gap has just begun.
async fn failing() -> NodeWithKubelet {
    let mut stage = NodeWithKubelet::new().await;
    stage.kubelet_works().await;
    stage.kubelet_exits();
    starts(&mut stage, 6, PAUSE, LIFE).await;
    stage.assert_untouched();
    stage
}

fn of_kind(stage: &NodeWithKubelet, kind: Kind) -> usize {
    stage.node.kinds().iter().filter(|(seen, _)| *seen == kind).count()
}

async fn is_active(stage: &NodeWithKubelet) -> bool {
    stage.role().await == "active"
}

#[tokio::test(start_paused = true)]
async fn agent_is_active_between_the_starts_once_none_has_worked_for_the_threshold() {
    let mut stage = NodeWithKubelet::new().await;
    stage.kubelet_works().await;
    stage.node.delete("web", None).await;
    stage.kubelet_exits();
    let died = Instant::now();
    loop {
        for _ in 0..PAUSE.as_secs() {
            sleep(secs(1)).await;
            let threshold = secs(45);
            assert!(died.elapsed() > threshold - secs(6) || !is_active(&stage).await);
        }
        if is_active(&stage).await {
            break;
        }
        stage.assert_untouched();
        stage.kubelet_starts();
        sleep(LIFE).await;
        assert_eq!(stage.role().await, "kubelet-started");
        stage.kubelet_exits();
    }
    assert!(died.elapsed() < secs(60), "{:?}", died.elapsed());
    starts(&mut stage, 1, secs(0), LIFE).await;
    wait_until("it continues", async || is_active(&stage).await).await;
    stage.node.wait_torn_down("web").await;
    let role = stage.node.status().await.role.unwrap();
    let message = role.message.unwrap();
    assert!(
        message.starts_with("between the starts of a failing kubelet: ") && message.ends_with("s, none worked"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_gap_begins_without_a_new_waiting_time_and_each_start_ends_it() {
    for life in [LIFE, secs(20), secs(40)] {
        let mut stage = failing().await;
        for _ in 0..10 {
            sleep(secs(2)).await;
            assert!(is_active(&stage).await, "{}", stage.role().await);
            sleep(secs(6)).await;
            stage.kubelet_starts();
            sleep(secs(2)).await;
            assert_eq!(stage.role().await, "kubelet-started");
            let blocked = stage.node.status().await.blocked.unwrap();
            assert!(blocked.contains("starts again and again and never works"), "{blocked}");
            sleep(life - secs(2)).await;
            stage.kubelet_exits();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answer_or_renewal_begins_the_threshold_anew() {
    let mut stage = failing().await;
    sleep(PAUSE).await;
    assert!(is_active(&stage).await);
    stage.node.delete("web", None).await;
    stage.kubelet_starts();
    sleep(LIFE).await;
    let stops = stage.node.cri.effects().len();
    // In its last moment.
    stage.renew().await;
    stage.kubelet_exits();
    let died = Instant::now();
    while died.elapsed() < secs(30) {
        sleep(PAUSE).await;
        assert!(!is_active(&stage).await);
        stage.kubelet_starts();
        sleep(LIFE).await;
        stage.kubelet_exits();
    }
    assert_eq!(stage.node.cri.effects().len(), stops);
    let took = died.elapsed() + stage.wait_for_takeover().await;
    assert_takes_threshold(took);
}

#[tokio::test(start_paused = true)]
async fn grace_period_that_spans_ten_gaps_is_counted_from_its_beginning() {
    let mut stage = failing().await;
    stage
        .node
        .pod("stubborn", &plain(), |pod| drop(pod.container("main").ignores_term()));
    sleep(secs(2)).await;
    let begun = Instant::now();
    stage.node.delete("stubborn", Some(100)).await;
    let node = stage.node.get("stubborn").await;
    assert!(node.is_some());
    let pod_is_gone = async |stage: &NodeWithKubelet| stage.node.get("stubborn").await.is_none();
    let mut gaps = 0;
    while !pod_is_gone(&stage).await {
        gaps += 1;
        starts(&mut stage, 1, PAUSE, LIFE).await;
        assert!(gaps < 20, "{:?}", begun.elapsed());
    }
    assert!(gaps >= 10, "{gaps}");
    let took = begun.elapsed();
    assert!((secs(100)..secs(125)).contains(&took), "{took:?}");
    let stops: Vec<_> = stage
        .node
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
    let mut stage = failing().await;
    stage.node.pod("hooked", &hooked(&exec()), |pod| {
        drop(pod.container("main").ignores_term().commands(secs(3), 0, b""));
    });
    sleep(secs(1)).await;
    stage.node.delete("hooked", Some(60)).await;
    starts(&mut stage, 8, PAUSE, LIFE).await;
    stage.node.wait_torn_down("hooked").await;
    assert_eq!(of_kind(&stage, Kind::ExecSync), 1);
}

#[tokio::test(start_paused = true)]
async fn hook_that_a_start_cut_off_runs_in_what_is_left_of_the_grace_period() {
    let mut stage = failing().await;
    stage.node.pod("hooked", &hooked(&exec()), |pod| {
        drop(pod.container("main").ignores_term().commands(secs(11), 0, b""));
    });
    sleep(secs(1)).await;
    let begun = Instant::now();
    stage.node.delete("hooked", Some(60)).await;
    starts(&mut stage, 2, PAUSE, LIFE).await;
    assert_eq!(of_kind(&stage, Kind::StopContainer), 0, "{:?}", stage.node.kinds());
    // Long enough for the hook.
    starts(&mut stage, 1, secs(20), LIFE).await;
    let hooks = of_kind(&stage, Kind::ExecSync);
    assert_eq!(hooks, 3, "twice cut off, then run to its end");
    starts(&mut stage, 8, PAUSE, LIFE).await;
    stage.node.wait_torn_down("hooked").await;
    assert_eq!(of_kind(&stage, Kind::ExecSync), hooks);
    assert!(begun.elapsed() < secs(130), "{:?}", begun.elapsed());
    let stops: Vec<_> = stage
        .node
        .kinds()
        .into_iter()
        .filter_map(|(kind, timeout)| timeout.filter(|_| kind == Kind::StopContainer))
        .collect();
    assert!(stops[0] <= secs(32), "the hook has used its part: {stops:?}");
}

#[tokio::test(start_paused = true)]
async fn stop_request_in_flight_is_canceled_by_the_next_start() {
    let mut stage = failing().await;
    stage
        .node
        .pod("stubborn", &plain(), |pod| drop(pod.container("main").ignores_term()));
    sleep(secs(2)).await;
    granted(&stage.node, "stubborn/stop", &StopRequest::default()).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    starts(&mut stage, 1, secs(3), LIFE).await;
    let stops = of_kind(&stage, Kind::StopContainer);
    starts(&mut stage, 3, PAUSE, LIFE).await;
    assert_eq!(of_kind(&stage, Kind::StopContainer), stops);
    let status = stage.node.status().await;
    assert_eq!(status.counters.stop_requests_canceled, 1);
    assert!(stage.node.get("stubborn").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn outage_of_the_api_server_ends_the_gaps_for_the_threshold() {
    let mut stage = failing().await;
    sleep(secs(2)).await;
    assert!(is_active(&stage).await);
    inject_fault(&stage.node, Fault::new(Action::Refuse).resource("leases"));
    sleep(secs(20)).await;
    assert!(is_active(&stage).await, "an active agent stays active");
    starts(&mut stage, 1, PAUSE, LIFE).await;
    for _ in 0..5 {
        starts(&mut stage, 1, PAUSE, LIFE).await;
        sleep(secs(4)).await;
        assert_eq!(stage.role().await, "kubelet-unknown");
    }
    stage.node.api.faults().clear();
    let again = Instant::now();
    while !is_active(&stage).await {
        starts(&mut stage, 1, PAUSE, LIFE).await;
        sleep(secs(2)).await;
    }
    assert!(again.elapsed() >= secs(44), "{:?}", again.elapsed());
}

/// Its work is cut off at each start, and it must not wait longer after each.
#[tokio::test(start_paused = true)]
async fn attempt_that_a_start_cut_off_is_made_again_in_the_next_gap() {
    let mut stage = failing().await;
    let hang = || expect(RemovePodSandbox::any()).hang();
    stage.node.cri.in_order((0..6).map(|_| hang()));
    sleep(secs(2)).await;
    stage.node.delete("web", None).await;
    for gap in 0..6 {
        stage
            .node
            .calls(gap + 1, |seen| seen.kind == Kind::RemovePodSandbox)
            .await;
        let left = PAUSE - secs(4);
        starts(&mut stage, 1, left, LIFE).await;
        sleep(secs(2)).await;
        assert_eq!(
            of_kind(&stage, Kind::RemovePodSandbox),
            gap + 2,
            "in the gap that has just begun"
        );
    }
    stage.node.wait_torn_down("web").await;
}

/// Short gaps are not spent on waiting for the pods that are stopped first.
#[tokio::test(start_paused = true)]
async fn pod_deleted_by_force_that_cannot_be_stopped_delays_others_in_its_first_gap_only() {
    let mut stage = failing().await;
    stage
        .node
        .pod("zombie", &plain(), |pod| drop(pod.container("main").ignores_term()));
    starts(&mut stage, 1, PAUSE, LIFE).await;
    let of_zombie = |stage: &NodeWithKubelet| {
        let effects = stage.node.cri.effects();
        let stops = effects.iter().map(|(_, seen)| seen);
        stops
            .filter(|seen| seen.kind == Kind::StopContainer && *seen.pod_uid == *uid("zombie"))
            .count()
    };
    let zombie = || expect(StopContainer::any().in_pod(&uid("zombie"))).hang();
    stage.node.cri.in_order((0..6).map(|_| zombie()));
    stage.kubelet_starts();
    stage.node.delete("zombie", Some(0)).await;
    sleep(LIFE).await;
    stage.kubelet_exits();
    starts(&mut stage, 1, secs(4), LIFE).await;
    stage.kubelet_starts();
    stage.node.delete("web", None).await;
    sleep(LIFE).await;
    stage.kubelet_exits();
    let begun = Instant::now();
    let of_web = |seen: &Seen| seen.kind == Kind::StopContainer && *seen.pod_uid == *uid("web");
    stage.node.calls(1, of_web).await;
    assert!(begun.elapsed() < secs(2), "{:?}", begun.elapsed());
    assert!((1..6).contains(&of_zombie(&stage)), "it cannot be stopped yet");
    while of_zombie(&stage) < 6 {
        starts(&mut stage, 1, PAUSE, LIFE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn status_and_why_speak_of_the_starts() {
    let mut stage = failing().await;
    stage
        .node
        .pod("stubborn", &plain(), |pod| drop(pod.container("main").ignores_term()));
    sleep(secs(2)).await;
    stage.node.delete("stubborn", Some(600)).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let why = async |stage: &NodeWithKubelet| {
        let path = request_path("default/stubborn");
        let answer = client::get::<Explanation>(&stage.node.flags.socket.socket, &path).await;
        answer.unwrap().text()
    };
    let text = why(&stage).await;
    assert!(
        text.contains("this agent terminates it between the starts of a failing kubelet: 6 starts in"),
        "{text}"
    );
    sleep(secs(4)).await;
    stage.kubelet_starts();
    sleep(LIFE).await;
    let text = why(&stage).await;
    assert!(
        text.contains("the kubelet of this node starts again and again and never works: 7 starts in")
            && text.contains("this agent continues when that process exits"),
        "{text}"
    );
}
