//! preStop hooks: within the container's grace, reported on failure, never a reason not to stop.

use testbed::scripted_cri::Fault;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::prelude::*;

async fn with_hook(hook: &serde_json::Value) -> Node {
    let node = Node::started_with("web", &hooked(hook), |pod| pod.container("main")).await;
    node.allow([StopPodSandbox::any(), RemoveContainer::any(), RemovePodSandbox::any()]);
    node
}

#[tokio::test(start_paused = true)]
async fn hook_runs_before_the_stop_within_the_same_grace() {
    let node = with_hook(&exec()).await;
    node.cri.in_order([
        expect(ExecSync::of("main").command(&["drain"]).timeout(secs(30))).then(secs(12)),
        expect(StopContainer::of("main").timeout(secs(18))),
    ]);
    node.tear_down("web").await;
    node.cri.finished().await;
    assert_eq!(node.count_events("web", "FailedPreStopHook").await, 0);
}

#[tokio::test(start_paused = true)]
async fn failed_hook_is_an_event_and_the_stop_continues() {
    let hook = || expect(ExecSync::of("main"));
    for (failing, left) in [
        (hook().exit(3), 30),
        (hook().error(Code::Unknown, "no such file"), 30),
        // Requested in vain until the grace period expired.
        (hook().hang(), 2),
        (hook().then(secs(31)), 2),
    ] {
        let node = with_hook(&exec()).await;
        let case = format!("{failing:?}");
        node.cri
            .in_order([failing, expect(StopContainer::of("main").timeout(secs(left)))]);
        node.tear_down("web").await;
        let failed = node.messages("web", "FailedPreStopHook").await;
        // The output of a command may contain secrets.
        assert_eq!(failed, ["PreStopHook failed"], "{case}");
        assert_eq!(node.status().await.counters.hooks_failed, 1, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn hook_without_handler_fails_and_absurd_sleep_ends_with_the_grace_period() {
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
        node.always(expect(ExecSync::any()).exit(1));
        node.cri
            .in_order([expect(StopContainer::of("main").timeout(secs(left)))]);
        node.tear_down("web").await;
        node.cri.finished().await;
        assert_eq!(node.count_events("web", "FailedPreStopHook").await, 1, "{hook}");
    }
}

#[tokio::test(start_paused = true)]
async fn hook_that_could_not_be_sent_does_not_count_as_run() {
    let node = with_hook(&exec()).await;
    node.delete("web", None).await;
    // The runtime becomes unavailable before the hook.
    node.cri.in_order([expect(ExecSync::of("main")).hang()]);
    node.calls(1, |seen| seen.kind == Kind::ExecSync).await;
    node.cri.stop().await;
    node.wait_blocked("web", "cannot be reached").await;
    node.cri.start_again().await;
    node.cri
        .in_order([expect(ExecSync::of("main")), expect(StopContainer::of("main"))]);
    let began = Instant::now();
    node.wait_torn_down("web").await;
    assert!(began.elapsed() < secs(10));
    node.cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn skipped_hook_without_remaining_grace_is_one_event() {
    let mut node = with_hook(&exec()).await;
    // The agent crashes right after the beginning; the runtime is down until the grace period expires, and the stop takes
    // two attempts.
    node.cri.stop().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "cannot be reached").await;
    node.crash().await;
    sleep(secs(60)).await;
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(2))).error(Code::Unknown, "busy"),
        expect(StopPodSandbox::any()).reply_ok_but_do_nothing(),
        expect(StopContainer::of("main").timeout(secs(2))),
    ]);
    node.cri.start_again().await;
    node.start().await;
    node.wait_blocked("web", "busy").await;
    let spans = node.trace("web").await.unwrap().spans;
    let hook = spans.iter().find(|span| span.step == Step::Hook).unwrap();
    assert!(hook.failure.as_ref().unwrap().contains("skipped"));
    node.wait_torn_down("web").await;
    node.cri.finished().await;
    let messages = node.messages("web", "FailedPreStopHook").await;
    assert_eq!(messages, ["PreStopHook was skipped: the grace period has no time left"]);
}

#[tokio::test(start_paused = true)]
async fn runtime_outage_at_deletion_costs_neither_hook_nor_grace() {
    let node = with_hook(&exec()).await;
    node.cri.stop().await;
    node.delete("web", None).await;
    sleep(secs(100)).await;
    node.cri.in_order([
        expect(ExecSync::of("main").timeout(secs(30))).then(secs(10)),
        expect(StopContainer::of("main").timeout(secs(20))),
    ]);
    node.cri.start_again().await;
    node.wait_torn_down("web").await;
    node.cri.finished().await;
    assert_eq!(node.count_events("web", "FailedPreStopHook").await, 0);
}

/// Two containers with HTTP hooks to a pod IP that the runtime does not report, and one without a hook.
async fn hooks_to_the_status_address() -> (Node, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let lifecycle = json!({ "preStop": { "httpGet": { "port": port } } });
    let containers = json!([
        { "name": "one", "image": "i", "lifecycle": lifecycle },
        { "name": "two", "image": "i", "lifecycle": lifecycle },
        { "name": "plain", "image": "i" },
    ]);
    let mut node = Node::new().await;
    node.pod("web", &containers, |pod| {
        pod.container("one").container("two").container("plain")
    });
    let mut object = pod("web", &containers);
    object["status"]["podIP"] = "127.0.0.1".into();
    node.insert(object);
    node.run().await;
    node.cri.fault(Read::PodSandboxStatus, Fault::Hang);
    (node, listener)
}

async fn accept_request(listener: &TcpListener) -> TcpStream {
    let asking = timeout(secs(100), listener.accept()).await;
    asking.expect("a hook that asks").unwrap().0
}

#[tokio::test(start_paused = true)]
async fn missing_pod_ip_delays_only_hooks_that_need_it() {
    let (node, listener) = hooks_to_the_status_address().await;
    node.delete("web", None).await;
    for _ in 0..2 {
        let mut asking = accept_request(&listener).await;
        let mut request = [0; 4];
        asking.read_exact(&mut request).await.unwrap();
        assert_eq!(&request, b"GET ");
        asking
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    }
    node.wait_deleted("web").await;
    let stops = node.calls(3, |seen| seen.kind == Kind::StopContainer).await;
    let mut left: Vec<_> = stops
        .iter()
        .map(|(_, seen)| (&*seen.name, seen.timeout.unwrap().as_secs()))
        .collect();
    left.sort_unstable();
    // A hook's bytes are in a TCP socket: if they are late, the paused clock advances.
    let hooked = 20..=25;
    assert!(
        matches!(&left[..], [("one", one), ("plain", 30), ("two", two)] if hooked.contains(one) && hooked.contains(two)),
        "{left:?}"
    );
    assert_eq!(node.count_events("web", "FailedPreStopHook").await, 0);
    let asked = node.cri.log().into_iter();
    let asked = asked.filter(|entry| matches!(entry.call, Logged::Read("PodSandboxStatus", _)));
    assert_eq!(asked.count(), 1, "once for all hooks");
}

#[tokio::test(start_paused = true)]
async fn missing_pod_ip_leaves_time_for_a_short_hook() {
    let (node, listener) = hooks_to_the_status_address().await;
    let began = Instant::now();
    node.delete("web", Some(4)).await;
    accept_request(&listener).await;
    assert!(began.elapsed() < secs(4), "{:?}", began.elapsed());
    node.wait_deleted("web").await;
}

#[tokio::test(start_paused = true)]
async fn http_hook_of_a_host_network_pod_goes_to_the_node_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let lifecycle = json!({ "preStop": { "httpGet": { "port": port } } });
    let containers = json!([{ "name": "main", "image": "i", "lifecycle": lifecycle }]);
    let mut node = Node::new().await;
    node.pod("web", &containers, |pod| pod.container("main"));
    let mut object = pod("web", &containers);
    object["spec"]["hostNetwork"] = true.into();
    object["status"]["hostIP"] = "127.0.0.1".into();
    // No server listens there.
    object["status"]["podIP"] = "192.0.2.1".into();
    node.insert(object);
    node.run().await;
    node.delete("web", Some(4)).await;
    accept_request(&listener).await;
    node.wait_deleted("web").await;
}
