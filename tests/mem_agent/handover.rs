//! `pod-teardown handover`: every pod reaches a safe point before a kubelet starts.

use pod_teardown::{handover::guard::HandoverResult, ops::admin::handover};

use crate::prelude::*;

/// Time that a kubelet gets to start.
const RESERVATION: Duration = secs(45);

pub async fn request_handover(node: &Node, patience: Duration) -> HandoverResult {
    request_handover_at(&node.flags.socket.socket, patience).await
}

/// The same at this socket.
pub async fn request_handover_at(socket: &Path, patience: Duration) -> HandoverResult {
    let ask = handover::HandoverRequest {
        timeout_ms: u64::try_from(patience.as_millis()).unwrap(),
    };
    client::post_with_timeout(socket, handover::HANDOVER, &ask, patience)
        .await
        .unwrap()
}

pub fn nothing_in_progress() -> HandoverResult {
    HandoverResult::default()
}

/// A running agent and a pod "web" with a hook of this duration; all other calls end at once.
pub async fn with_hook(takes: Duration) -> Node {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| pod.container("main"));
    node.pod("other", &plain(), |pod| pod.container("main"));
    node.start().await;
    node.always(expect(ExecSync::any()).then(takes));
    node.allow([StopPodSandbox::any(), RemoveContainer::any(), RemovePodSandbox::any()]);
    node.always(expect(StopContainer::any()));
    node
}

pub fn call_kinds(node: &Node) -> Vec<Kind> {
    node.kinds().into_iter().map(|(kind, _)| kind).collect()
}

pub async fn hook_runs(node: &Node) {
    node.calls(1, |seen| seen.kind == Kind::ExecSync).await;
}

async fn phase(node: &Node, name: &str) -> String {
    let pod = node.get(name).await.unwrap();
    pod["status"]["phase"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn handover_stops_a_pod_in_its_hook_and_begins_nothing_else() {
    let node = with_hook(secs(10)).await;
    node.delete("web", None).await;
    hook_runs(&node).await;
    let (begun, handing_back) = (Instant::now(), request_handover(&node, secs(60)));
    let meanwhile = async {
        sleep(secs(1)).await;
        node.delete("other", None).await;
        let why = refused(&node, "other/stop", &StopRequest::default()).await;
        assert!(why.contains("is being handed over"), "{why}");
    };
    let (handed_back, ()) = tokio::join!(handing_back, meanwhile);
    assert_eq!(handed_back, nothing_in_progress());
    assert!((secs(9)..secs(12)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let stopped = [Kind::ExecSync, Kind::StopContainer, Kind::StopPodSandbox];
    assert_eq!(call_kinds(&node), stopped);
    // Only its containers are gone.
    assert!(node.pod_dir("web").exists());
    assert_eq!(phase(&node, "web").await, "Running");
    sleep(RESERVATION - secs(2)).await;
    assert_eq!(call_kinds(&node), stopped);
    let held = node.status().await.blocked.unwrap();
    assert!(held.contains("was handed over") && held.contains("to start"), "{held}");
    // No kubelet has started.
    node.wait_torn_down("web").await;
    node.wait_torn_down("other").await;
    let hooks = call_kinds(&node).iter().filter(|kind| **kind == Kind::ExecSync).count();
    assert_eq!(hooks, 1, "a hook that has ended is not run again");
}

#[tokio::test(start_paused = true)]
async fn handover_that_times_out_names_unfinished_pods() {
    let node = with_hook(secs(25)).await;
    node.delete("web", None).await;
    hook_runs(&node).await;
    let begun = Instant::now();
    let in_progress = vec!["default/web".to_owned()];
    assert_eq!(request_handover(&node, secs(5)).await, HandoverResult { in_progress });
    assert!((secs(5)..secs(6)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    sleep(RESERVATION - secs(2)).await;
    assert_eq!(call_kinds(&node), [Kind::ExecSync], "nothing was called after that");
    node.wait_torn_down("web").await;
}

/// No call is in progress then, but its containers run: the kubelet would run its hook again.
#[tokio::test(start_paused = true)]
async fn handover_retries_a_failed_stop_once_and_names_the_pod_if_it_fails_again() {
    for fails in [false, true] {
        let node = with_hook(secs(1)).await;
        let many = if fails { 4 } else { 3 };
        let busy = || expect(StopContainer::any()).error(Code::Unavailable, "busy");
        node.cri.in_order((0..many).map(|_| busy()));
        node.delete("web", None).await;
        node.calls(3, |seen| seen.kind == Kind::StopContainer).await;
        sleep(secs(1)).await;
        let begun = Instant::now();
        let handed_back = request_handover(&node, secs(60)).await;
        assert!(
            begun.elapsed() < secs(2),
            "it waits for no pause: {:?}",
            begun.elapsed()
        );
        let in_progress = if fails { vec!["default/web".to_owned()] } else { vec![] };
        assert_eq!(handed_back.in_progress, in_progress);
        let stops = call_kinds(&node)
            .iter()
            .filter(|kind| **kind == Kind::StopContainer)
            .count();
        assert_eq!(stops, 4);
        assert_eq!(call_kinds(&node).contains(&Kind::StopPodSandbox), !fails);
        let counted = node.status().await.counters;
        assert_eq!(
            counted.attempts_failed, many,
            "an interruption at a safe point is no failure"
        );
        let of_each = ["Unavailable", "running"].map(|reason| (reason.into(), many));
        assert_eq!(counted.failures, [(Step::Term, of_each.into())].into());
        let (again, named) = (Instant::now(), handed_back);
        assert_eq!(
            request_handover(&node, secs(60)).await,
            named,
            "nothing has become of it since"
        );
        assert!(again.elapsed() < secs(1));
    }
}

/// One of them is at an attempt nearly always.
#[tokio::test(start_paused = true)]
async fn handover_retries_unstoppable_pods_once_and_does_not_wait_for_them() {
    let mut node = Node::new().await;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for name in names {
        node.stubborn_pod(name);
    }
    node.start().await;
    node.always(expect(StopContainer::any()).then(secs(5)).error(Code::Unknown, "hangs"));
    for name in names {
        node.delete(name, None).await;
        sleep(secs(1)).await;
    }
    node.calls(8, |seen| seen.kind == Kind::StopContainer).await;
    let begun = Instant::now();
    let handed_back = request_handover(&node, secs(60)).await;
    assert_eq!(handed_back.in_progress, names.map(|name| format!("default/{name}")));
    assert!(begun.elapsed() < secs(11), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn handover_names_a_pod_that_runs_despite_a_successful_stop() {
    let mut node = Node::with_pods(&["web"]).await;
    node.start().await;
    node.always(expect(StopContainer::any()).reply_ok_but_do_nothing());
    node.always(expect(StopPodSandbox::any()).reply_ok_but_do_nothing());
    node.delete("web", None).await;
    // Even after the grace period.
    sleep(secs(60)).await;
    node.wait_blocked("web", "still Running after its stop").await;
    let in_progress = vec!["default/web".to_owned()];
    assert_eq!(request_handover(&node, secs(60)).await, HandoverResult { in_progress });
}

#[tokio::test(start_paused = true)]
async fn handover_retries_a_failed_stop_while_it_waits_and_waits_for_that_attempt() {
    // The other pod's hook is over after the second attempt, or before.
    for (hook, second_attempt) in [(25, 0), (10, 12)] {
        let node = with_hook(secs(hook)).await;
        node.delete("web", None).await;
        hook_runs(&node).await;
        let busy = expect(StopContainer::any()).then(secs(2));
        let again = expect(StopContainer::any()).then(secs(second_attempt));
        node.cri.in_order([busy.error(Code::Unavailable, "busy"), again]);
        node.delete("other", None).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
    }
}

/// As by a unit whose program is missing or exits at once.
#[tokio::test(start_paused = true)]
async fn kubelet_that_fails_to_start_repeatedly_gets_the_reservation_once() {
    let node = with_hook(secs(1)).await;
    assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
    node.delete("other", None).await;
    let begun = Instant::now();
    let unit = async {
        loop {
            sleep(secs(10)).await;
            request_handover(&node, secs(60)).await;
        }
    };
    tokio::select! {
        biased;
        () = node.wait_torn_down("other") => {}
        () = unit => {}
    }
    let took = begun.elapsed();
    assert!((RESERVATION..RESERVATION + secs(12)).contains(&took), "{took:?}");
    // Long after that it is started once more.
    sleep(RESERVATION).await;
    assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
    sleep(RESERVATION - secs(1)).await;
    assert!(node.status().await.blocked.unwrap().contains("was handed over"));
}

#[tokio::test(start_paused = true)]
async fn kubelet_keeps_the_node_until_it_exits() {
    let node = with_hook(secs(1)).await;
    assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
    let process = kubelet(&node);
    node.delete("other", None).await;
    sleep(RESERVATION + secs(60)).await;
    let held = node.status().await.blocked.unwrap();
    assert!(held.contains("a kubelet runs on this node"), "{held}");
    assert_eq!(call_kinds(&node), []);
    fs::remove_dir_all(process).unwrap();
    node.wait_torn_down("other").await;
}

#[tokio::test(start_paused = true)]
async fn stopped_pod_is_terminal_in_the_api_before_the_handover() {
    let node = with_hook(secs(10)).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    hook_runs(&node).await;
    assert_eq!(request_handover(&node, secs(60)).await, nothing_in_progress());
    assert_eq!(phase(&node, "web").await, "Succeeded");
    assert!(
        node.pod_dir("web").join("etc-hosts").exists(),
        "what is left is the kubelet's"
    );
    let process = kubelet(&node);
    sleep(secs(60)).await;
    fs::remove_dir_all(process).unwrap();
    sleep(secs(120)).await;
    assert_eq!(node.status().await.counters.stop_requests_canceled, 0, "it was done");
}

#[tokio::test(start_paused = true)]
async fn two_handover_requests_are_both_answered() {
    let node = with_hook(secs(10)).await;
    node.delete("web", None).await;
    hook_runs(&node).await;
    let (one, two) = tokio::join!(request_handover(&node, secs(60)), request_handover(&node, secs(2)));
    assert_eq!(
        (one.in_progress.len(), two.in_progress.len()),
        (1, 1),
        "it is at a safe point for both callers"
    );
    node.wait_deleted("web").await;
}

/// A node with a deleted pod that ignores SIGTERM and has a long grace period.
async fn node_with_stubborn_pod() -> Node {
    let node = Node::with_stubborn_pod().await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node
}

fn is_running(node: &Node) -> bool {
    let runs = |world: &World| {
        world
            .containers
            .values()
            .any(|container| container.state == SimState::Running)
    };
    node.cri.look(runs)
}

#[tokio::test(start_paused = true)]
async fn canceled_stop_leaves_the_grace_period_to_the_kubelet() {
    for is_handed_over in [true, false] {
        let node = node_with_stubborn_pod().await;
        if is_handed_over {
            let in_progress = vec!["default/web".to_owned()];
            assert_eq!(request_handover(&node, secs(1)).await, HandoverResult { in_progress });
        }
        let _process = kubelet(&node);
        sleep(secs(120)).await;
        // The grace period of the agent's stop has expired.
        assert_eq!(is_running(&node), !node.finishes_abandoned_stops());
        assert_eq!(call_kinds(&node), [Kind::StopContainer]);
    }
}
