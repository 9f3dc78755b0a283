//! Spans of a real containerd and of the agent, at one collector. Needs root and a containerd 2: Debian 12's has no tracing.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::{
    apiserver::{Config, MemApiServer},
    containerd::{POLITE, TOOL_IMAGE},
    otlp::{OtlpReceiver, ReceivedSpan},
    stage::Stage,
    wait::until_ok,
};

const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");
/// Much longer than it takes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn wait_for(receiver: &OtlpReceiver, is_wanted: impl Fn(&ReceivedSpan) -> bool) -> Result<ReceivedSpan> {
    until_ok(PATIENCE, async || {
        let spans = receiver.spans();
        let found = spans.iter().find(|span| is_wanted(span)).cloned();
        found.with_context(|| format!("it does not come: {spans:#?}"))
    })
    .await
}

#[tokio::test]
async fn spans_of_containerd_hang_below_the_steps_of_the_teardown() -> Result<()> {
    let receiver = OtlpReceiver::start().await?;
    let api = MemApiServer::start(Config::default()).await?;
    let mut stage = Stage::set(Box::new(api)).await?;
    let version = stage.containerd.version().to_owned();
    ensure!(
        !version.starts_with("1."),
        "containerd {version} has no tracing: run it with CONTAINERD_VERSION=2.4"
    );
    stage
        .containerd
        .restart_with(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &receiver.endpoint()),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_SERVICE_NAME", "containerd"),
            // Batches are sent at once, in milliseconds.
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ])
        .await?;
    let agent = stage
        .agent(Path::new(AGENT))?
        .flag("--otlp-endpoint", receiver.endpoint())
        .start()
        .await?;
    let container = json!({ "name": "main", "image": TOOL_IMAGE, "command": ["sh", "-c", POLITE] });
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "traced", "namespace": "default" },
        "spec": { "terminationGracePeriodSeconds": 5, "containers": [container] },
    });
    let pod = stage.run_pod(&pod).await?;
    stage.admin.delete_pod("default", "traced", None).await?;
    stage.admin.wait_gone("default", "traced", pod.uid(), PATIENCE).await?;

    let root = wait_for(&receiver, |span| span.name == "pod teardown").await?;
    ensure!(root.trace_id == pod.uid().replace('-', ""), "{root:?}");
    for (step, call) in [
        ("term", "StopContainer"),
        ("sandbox", "StopPodSandbox"),
        ("cleanup", "RemovePodSandbox"),
    ] {
        let step = wait_for(&receiver, |span| span.parent == root.span_id && span.name == step).await?;
        let is_call = |span: &ReceivedSpan| {
            span.service == "containerd" && span.name.ends_with(call) && span.parent == step.span_id
        };
        let call = wait_for(&receiver, is_call).await?;
        ensure!(call.trace_id == root.trace_id, "{call:?}");
        ensure!(
            step.start / 1_000_000 <= call.end / 1_000_000 && call.start / 1_000_000 <= step.end / 1_000_000,
            "{step:?} {call:?}"
        );
    }
    // Other spans of containerd, such as of its shim's calls, are in the same tree. A parent ends after its children, and
    // may be sent in a later batch.
    let ours = until_ok(PATIENCE, async || {
        let mut ours = receiver.spans();
        ours.retain(|span| span.trace_id == root.trace_id);
        let is_attached = |span: &&ReceivedSpan| {
            span.span_id == root.span_id || ours.iter().any(|other| other.span_id == span.parent)
        };
        let detached = ours.iter().find(|span| !is_attached(span));
        ensure!(detached.is_none(), "{detached:?} has no parent");
        Ok(ours)
    })
    .await?;
    let from_containerd = ours.iter().filter(|span| span.service == "containerd").count();
    println!(
        "{} spans, {from_containerd} of them from containerd {version}",
        ours.len()
    );
    agent.stop().await?;
    stage.containerd.stop().await.context("remove the stage")
}
