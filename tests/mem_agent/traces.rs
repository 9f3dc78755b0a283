//! Traces of teardowns at an OpenTelemetry collector. In real time.

use pod_teardown::trace_context::TraceContext;
use testbed::otlp::{OtlpReceiver, ReceivedSpan};
use tokio::{net::TcpListener, time::timeout};

use crate::prelude::*;

/// A node whose agent exports traces. Every call is answered, but the sandbox of `stuck` cannot be stopped.
async fn traced(receiver: &str) -> Node {
    let mut node = Node::new().await;
    node.flags.otlp_endpoint = Some(receiver.to_owned());
    node.add_stuck_and_simple_pod();
    node.start().await;
    node
}

/// Waits for the span with this name of this pod.
async fn span(receiver: &OtlpReceiver, pod: &str, name: &str) -> ReceivedSpan {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut spans = receiver.spans().into_iter();
        let is_wanted = |span: &ReceivedSpan| span.attributes["k8s.pod.name"] == pod && span.name == name;
        if let Some(span) = spans.find(is_wanted) {
            return span;
        }
        assert!(
            Instant::now() < deadline,
            "no span {name} of {pod}: {:?}",
            receiver.spans()
        );
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn teardown_is_one_trace_whose_spans_are_those_of_the_timeline() {
    let receiver = OtlpReceiver::start().await.unwrap();
    let node = traced(&receiver.endpoint()).await;
    node.delete("web", Some(1)).await;
    node.wait_torn_down("web").await;
    let root = span(&receiver, "web", "pod teardown").await;
    let context = TraceContext::for_pod(&uid("web"));
    let header = context.traceparent().unwrap();
    assert_eq!(
        header.to_str().unwrap(),
        format!("00-{}-{}-01", root.trace_id, root.span_id)
    );
    for (key, value) in [
        ("service.name", "pod-teardown"),
        ("k8s.node.name", "n1"),
        ("k8s.namespace.name", "default"),
        ("k8s.pod.uid", uid("web").as_str()),
    ] {
        assert_eq!(root.attributes[key], value);
    }
    let spans = receiver.spans();
    let steps: Vec<_> = spans.iter().filter(|span| span.parent == root.span_id).collect();
    assert_eq!(steps.len(), spans.len() - 1, "{spans:?}");
    for name in ["term", "sandbox", "delete", "cleanup"] {
        let step = steps.iter().find(|span| span.name == name).unwrap();
        assert_eq!((&step.trace_id, &step.error), (&root.trace_id, &None));
        assert!(
            root.start <= step.start && step.start <= step.end && step.end <= root.end,
            "{step:?}"
        );
    }
    // Each call to the runtime belongs to the trace, and those that change something to their step.
    let sandbox = steps.iter().find(|span| span.name == "sandbox").unwrap();
    let headers = node.cri.traceparents("stop_pod_sandbox");
    assert_eq!(headers, [format!("00-{}-{}-01", sandbox.trace_id, sandbox.span_id)]);
}

#[tokio::test]
async fn unfinished_teardown_is_exported_without_its_root_span_when_the_agent_stops() {
    let receiver = OtlpReceiver::start().await.unwrap();
    let mut node = traced(&receiver.endpoint()).await;
    node.flags.shutdown_timeout = "1s".to_owned();
    node.delete("stuck", Some(1)).await;
    node.wait_blocked("stuck", "no CNI configuration").await;
    node.stop().await.unwrap();
    let before = span(&receiver, "stuck", "sandbox").await;
    assert!(
        before.error.as_ref().unwrap().contains("no CNI configuration"),
        "{before:?}"
    );
    assert!(receiver.spans().iter().all(|span| span.name != "pod teardown"));
    assert_eq!(
        before.parent,
        TraceContext::for_pod(&uid("stuck"))
            .traceparent()
            .unwrap()
            .to_str()
            .unwrap()[36..52]
    );
}

#[tokio::test]
async fn collector_that_is_away_costs_only_its_traces() {
    let receiver = OtlpReceiver::start().await.unwrap();
    receiver.fail(1);
    let node = traced(&receiver.endpoint()).await;
    node.delete("web", Some(1)).await;
    node.wait_torn_down("web").await;
    // The request is repeated.
    span(&receiver, "web", "pod teardown").await;
    let counters = node.status().await.counters;
    assert_eq!(counters.traces_dropped, 0);
}

#[tokio::test]
async fn collector_with_tls_gets_traces() {
    let (receiver, certificate) = OtlpReceiver::start_with_tls().await.unwrap();
    let mut node = Node::new().await;
    let ca_file = node.flags.state_dir.with_file_name("otel-ca.pem");
    fs::write(&ca_file, certificate).unwrap();
    node.flags.otlp_endpoint = Some(receiver.endpoint());
    node.flags.otlp_ca_file = Some(ca_file);
    node.add_stuck_and_simple_pod();
    node.start().await;
    node.delete("web", Some(1)).await;
    node.wait_torn_down("web").await;
    span(&receiver, "web", "pod teardown").await;
}

#[tokio::test(start_paused = true)]
async fn collector_that_never_answers_delays_neither_a_teardown_nor_the_exit() {
    // It accepts connections.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut node = traced(&format!("http://{}", silent.local_addr().unwrap())).await;
    // Less than one request to the collector.
    let limit = Duration::from_secs(8);
    let began = Instant::now();
    node.delete("web", Some(1)).await;
    node.wait_torn_down("web").await;
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    timeout(limit, node.stop()).await.unwrap().unwrap();
}
