//! preStop hooks: out of the container's own grace, reported when they fail, never a reason to stop short.

use pod_teardown::record::Step;
use serde_json::json;
use testbed::scripted_cri::{ExecSync, Kind, RemoveContainer, RemovePodSandbox, StopContainer, StopPodSandbox, expect};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::{
    node::{Node, secs},
    pods::{exec, hooked},
};

async fn with_hook(hook: &serde_json::Value) -> Node {
    let mut node = Node::new().await;
    node.pod("web", &hooked(hook), |pod| drop(pod.container("main")));
    node.start().await;
    for pattern in [StopPodSandbox::any(), RemoveContainer::any(), RemovePodSandbox::any()] {
        node.cri.any_number_of(expect(pattern));
    }
    node
}

#[tokio::test(start_paused = true)]
async fn a_hook_runs_before_the_stop_and_out_of_the_same_grace() {
    let node = with_hook(&exec()).await;
    node.cri.in_order([
        expect(ExecSync::of("main").command(&["drain"]).timeout(secs(30))).then(secs(12)),
        expect(StopContainer::of("main").timeout(secs(18))),
    ]);
    node.delete("web", None).await;
    node.nothing_left("web").await;
    node.cri.finished().await;
    assert_eq!(node.count_events("web", "FailedPreStopHook").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_is_slept() {
    let node = with_hook(&json!({ "sleep": { "seconds": 9 } })).await;
    node.cri.in_order([expect(StopContainer::of("main").timeout(secs(21)))]);
    node.delete("web", None).await;
    node.nothing_left("web").await;
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_is_an_event_and_the_stop_goes_on() {
    let hook = || expect(ExecSync::of("main"));
    for (failing, left) in [
        (hook().exit(3), 30),
        (hook().error(Code::Unknown, "no such file"), 30),
        // What was asked for in vain until the grace period ended.
        (hook().hang(), 2),
        (hook().then(secs(31)), 2),
    ] {
        let node = with_hook(&exec()).await;
        let said = format!("{failing:?}");
        node.cri
            .in_order([failing, expect(StopContainer::of("main").timeout(secs(left)))]);
        node.delete("web", None).await;
        node.nothing_left("web").await;
        let events = node.events("web").await;
        let failed: Vec<_> = events
            .iter()
            .filter(|(reason, _)| reason == "FailedPreStopHook")
            .collect();
        assert_eq!(failed.len(), 1, "{said}");
        // What a command printed may hold secrets.
        assert_eq!(failed[0].1, "PreStopHook failed", "{said}");
        assert_eq!(node.status().await.counters.hooks_failed, 1, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_without_handler_fails_and_an_absurd_sleep_ends_with_the_grace_period() {
    for (hook, left) in [
        (json!({}), 30),
        (json!({ "exec": {} }), 30),
        (json!({ "sleep": { "seconds": i64::MAX } }), 2),
        (json!({ "httpGet": { "port": 0 } }), 30),
        (
            json!({ "httpGet": { "port": "no-such-port", "host": "127.0.0.1" } }),
            30,
        ),
    ] {
        let node = with_hook(&hook).await;
        node.cri.any_number_of(expect(ExecSync::any()).exit(1));
        node.cri
            .in_order([expect(StopContainer::of("main").timeout(secs(left)))]);
        node.delete("web", None).await;
        node.nothing_left("web").await;
        node.cri.finished().await;
        assert_eq!(node.count_events("web", "FailedPreStopHook").await, 1, "{hook}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_could_not_be_sent_is_not_taken_for_one_that_ran() {
    let node = with_hook(&exec()).await;
    node.delete("web", None).await;
    // Between the look at the pod and the hook the runtime goes away.
    node.cri.in_order([expect(ExecSync::of("main")).hang()]);
    node.calls(1, |seen| seen.kind == Kind::ExecSync).await;
    node.cri.stop().await;
    node.failing("web", "cannot be reached").await;
    node.cri.start_again().await;
    node.cri
        .in_order([expect(ExecSync::of("main")), expect(StopContainer::of("main"))]);
    let began = Instant::now();
    node.nothing_left("web").await;
    assert!(began.elapsed() < secs(10));
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_for_which_no_time_is_left_is_an_event_and_said_once() {
    let mut node = with_hook(&exec()).await;
    // The agent has begun, and ends before it could do anything; the runtime is away until the grace period is over, and
    // the stop takes two attempts.
    node.cri.stop().await;
    node.delete("web", None).await;
    node.failing("web", "cannot be reached").await;
    node.crash().await;
    sleep(secs(60)).await;
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(2))).error(Code::Unknown, "busy"),
        expect(StopPodSandbox::any()).reply_ok_but_do_nothing(),
        expect(StopContainer::of("main").timeout(secs(2))),
    ]);
    node.cri.start_again().await;
    node.start().await;
    node.failing("web", "busy").await;
    let spans = node.story("web").await.unwrap().spans;
    let hook = spans.iter().find(|span| span.step == Step::Hook).unwrap();
    assert!(hook.failure.as_ref().unwrap().contains("no time was left"));
    node.nothing_left("web").await;
    node.cri.finished().await;
    let events = node.events("web").await;
    let left_out = events.iter().filter(|(reason, _)| reason == "FailedPreStopHook");
    let messages: Vec<_> = left_out.map(|(_, message)| &**message).collect();
    assert_eq!(
        messages,
        ["PreStopHook was left out: no time was left of the grace period"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_was_away_when_the_pod_was_deleted_takes_nothing_of_its_hook_and_its_grace() {
    let node = with_hook(&exec()).await;
    node.cri.stop().await;
    node.delete("web", None).await;
    sleep(secs(100)).await;
    node.cri.in_order([
        expect(ExecSync::of("main").timeout(secs(30))).then(secs(10)),
        expect(StopContainer::of("main").timeout(secs(20))),
    ]);
    node.cri.start_again().await;
    node.nothing_left("web").await;
    node.cri.finished().await;
    assert_eq!(node.count_events("web", "FailedPreStopHook").await, 0);
}
