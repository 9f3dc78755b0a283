//! Answers to the callers of stop requests.

use pod_teardown::ops::{admin::TIMELINES, stop, timeline};
use tokio::{io::AsyncWriteExt as _, net::UnixStream, task::yield_now};

use crate::prelude::*;
use crate::stop_requests::{ended, node_with, within};

/// Output of the command; the last line is the outcome or the error.
async fn output_of(socket: PathBuf, name: &str, what: &StopRequest) -> Vec<String> {
    output_within(socket, name, what, Some(Duration::MAX)).await
}

async fn output_within(socket: PathBuf, name: &str, what: &StopRequest, wait: Option<Duration>) -> Vec<String> {
    output_for(socket, &format!("default/{name}"), what, wait).await
}

async fn output_for(socket: PathBuf, pod: &str, what: &StopRequest, wait: Option<Duration>) -> Vec<String> {
    let mut output = Vec::new();
    let print = |line: &str| output.push(line.to_owned());
    let end = stop::stop(&socket, pod, what, wait, print).await;
    output.push(end.unwrap_or_else(|error| error.to_string()));
    output
}

#[tokio::test(start_paused = true)]
async fn pod_is_stopped_by_its_uid_and_no_other_pod_is() {
    let node = node_with("web", &plain(), false).await;
    let stop = async |uid: &str| {
        let socket = node.flags.socket.socket.clone();
        output_for(socket, uid, &StopRequest::default(), Some(Duration::MAX)).await
    };
    assert_eq!(
        stop("uid-other").await,
        ["no pod with UID uid-other is known on this node"]
    );
    let output = stop("uid-web").await;
    assert_eq!(output[0], "default/web (UID uid-web) is terminating, grace period 30s");
    let result = output.last().unwrap();
    assert!(result.starts_with("default/web has terminated"), "{output:?}");
    let again = stop("uid-web").await.pop().unwrap();
    assert!(again.starts_with("default/web had terminated before"), "{again}");
}

#[tokio::test(start_paused = true)]
async fn eviction_of_a_succeeded_pod_reports_that_it_is_not_evicted() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    ended(&node, "web").await;
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
    let socket = node.flags.socket.socket.clone();
    let path = format!("{PODS}/default/web/stop");
    let granted: Value = client::post(&socket, &path, &eviction("Evicted")).await.unwrap();
    assert_fields(
        &granted,
        &json!({ "alreadyTerminated": true, "phase": "Succeeded", "reason": null }),
    );
    let StopOutcome { terminated, trace } = outcome(&node, "web", 0).await;
    assert_eq!(
        (terminated, trace.phase.as_deref(), trace.reason),
        (true, Some("Succeeded"), None)
    );
    assert_eq!(
        output_of(socket, "web", &eviction("Evicted")).await,
        [
            "default/web had terminated before as Succeeded: the request changes nothing; its object, containers and logs are kept \
             until it is deleted"
        ]
    );
    assert_eq!(node.count_events("web", "Evicted").await, 0);
}

/// A terminal pod with nothing on the node has no worker.
#[tokio::test(start_paused = true)]
async fn stop_of_a_pod_without_a_worker_reports_that_it_has_ended() {
    let mut node = Node::new().await;
    let mut web = pod("web", &plain());
    web["status"] = json!({ "phase": "Failed", "reason": "Evicted" });
    node.insert(web);
    node.start().await;
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
    let socket = node.flags.socket.socket.clone();
    assert_eq!(
        output_of(socket, "web", &StopRequest::default()).await,
        ["default/web had terminated before: the request changes nothing; nothing of it runs on this node"]
    );
    assert_eq!(node.status().await.counters.started, 0);
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn stop_of_an_evicted_pod_reports_why_it_failed() {
    let node = node_with("web", &plain(), false).await;
    let socket = || node.flags.socket.socket.clone();
    let output = output_of(socket(), "web", &eviction("Evicted")).await;
    assert_eq!(output[0], "default/web (UID uid-web) is terminating, grace period 30s");
    assert!(
        output[1].starts_with("default/web has terminated as Failed (Evicted): none"),
        "{output:?}"
    );
    let output = output_of(socket(), "web", &StopRequest::default()).await;
    assert!(
        output[0].contains("had terminated before as Failed (Evicted): the request changes nothing"),
        "{output:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn eviction_reports_what_it_waits_for_until_the_api_server_shows_it() {
    let node = node_with("web", &plain(), false).await;
    // A reported end would start the controller's timeout for a forced detach.
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~rbd/pvc-1");
    fs::create_dir_all(volume.join("mount")).unwrap();
    let socket = node.flags.socket.socket.clone();
    let waits = tokio::spawn(async move { output_of(socket, "web", &eviction("Evicted")).await });
    node.wait_blocked("web", "kubernetes.io~rbd/pvc-1").await;
    sleep(secs(300)).await;
    assert!(!waits.is_finished());
    assert!(!outcome(&node, "web", 0).await.terminated);
    assert_eq!(node.phase("web").await, "Running");
    fs::remove_dir_all(&volume).unwrap();
    let output = waits.await.unwrap();
    assert!(
        output[1].starts_with("waits for volumes") && output[1].contains("pvc-1"),
        "{output:?}"
    );
    assert!(
        output.last().unwrap().contains("has terminated as Failed (Evicted)"),
        "{output:?}"
    );
    assert_eq!(node.phase("web").await, "Failed");
}

#[tokio::test(start_paused = true)]
async fn timeout_ends_the_wait_and_not_the_stop() {
    let node = node_with("web", &plain(), false).await;
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~rbd/pvc-1");
    fs::create_dir_all(volume.join("mount")).unwrap();
    let socket = || node.flags.socket.socket.clone();
    let request = StopRequest::default();
    let accepted = output_within(socket(), "web", &request, None).await;
    assert_eq!(accepted, ["default/web (UID uid-web) is terminating, grace period 30s"]);
    node.wait_blocked("web", "kubernetes.io~rbd/pvc-1").await;
    let output = output_within(socket(), "web", &request, Some(secs(20))).await;
    let last = output.last().unwrap();
    assert_has(
        last,
        &[
            "has not terminated within 20s",
            "pvc-1",
            "the stop continues",
            "pod-teardown why default/web",
        ],
    );
    fs::remove_dir_all(&volume).unwrap();
    ended(&node, "web").await;
}

#[tokio::test(start_paused = true)]
async fn outcome_is_reported_before_the_watch_shows_it() {
    let node = node_with("web", &plain(), false).await;
    inject_fault(&node, Fault::new(Action::StallWatch));
    sleep(secs(1)).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    let began = Instant::now();
    assert!(outcome(&node, "web", 10).await.terminated);
    assert!(began.elapsed() < secs(30), "{:?}", began.elapsed());
    assert_eq!(node.phase("web").await, "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn elapsed_time_does_not_grow_after_termination() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
    ended(&node, "web").await;
    let before = outcome(&node, "web", 0).await.trace;
    sleep(secs(600)).await;
    assert_eq!(outcome(&node, "web", 0).await.trace.elapsed_ms, before.elapsed_ms);
    let path = format!("{TIMELINES}/default/web");
    let traces: Vec<_> = client::get(&node.flags.socket.socket, &path).await.unwrap();
    let text = timeline::text(&traces[0], false);
    assert_has(&text, &["terminated as Succeeded in 0.", "awaits its deletion"]);
}

#[tokio::test(start_paused = true)]
async fn request_of_a_caller_that_hangs_up_is_logged_with_its_result() {
    let log = Log::new();
    let node = node_with("web", &plain(), false).await;
    for (before, path) in ["web/stop", "missing/stop"].iter().enumerate() {
        let mut caller = UnixStream::connect(&node.flags.socket.socket).await.unwrap();
        let request = format!("POST {PODS}/default/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        caller.write_all(request.as_bytes()).await.unwrap();
        // A request whose caller hangs up before it is read does not count.
        while log.lines("Pod stop requested").len() == before {
            yield_now().await;
        }
    }
    wait_until!(log.lines("Pod stop request granted").len() + log.lines("Admin request refused").len() == 2);
    let asked = log.lines("Pod stop requested");
    assert!(
        asked.len() == 2 && asked.iter().all(|line| line.contains("peer=\"")),
        "{asked:?}"
    );
    assert!(log.lines("Pod stop request granted")[0].contains("pod.uid=\"uid-web\""));
    assert!(log.lines("Admin request refused")[0].contains("no pod default/missing"));
    wait_until!(node.phase("web").await == "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn requests_before_the_runtime_is_reached_are_refused_and_not_done_later() {
    let mut node = Node::with_pods(&["web"]).await;
    node.cri.stop().await;
    node.launch().await;
    wait_until!(
        node.try_status()
            .await
            .is_some_and(|status| status.runtime.error.is_some())
    );
    let began = Instant::now();
    for answer in [
        refused(&node, "web/stop", &StopRequest::default()).await,
        refused(&node, "web/stop", &eviction("Evicted")).await,
    ] {
        assert_has(
            &answer,
            &["the termination of default/web is not started: the container runtime has not been reached yet: "],
        );
    }
    let path = format!("{TIMELINES}/default/web");
    let answer = client::get::<Value>(&node.flags.socket.socket, &path)
        .await
        .unwrap_err()
        .to_string();
    assert!(answer.contains("has not been reached yet"), "{answer}");
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    node.cri.start_again().await;
    node.cri.allow_everything();
    wait_until!(node.try_status().await.is_some_and(|status| status.watch.pods == 1));
    sleep(secs(60)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_refuses_requests() {
    let mut node = node_with("web", &plain(), true).await;
    node.simple_pod("late");
    node.wait_status(|it| it.watch.pods, 2).await;
    let socket = node.flags.socket.socket.clone();
    granted(&node, "web/stop", &within(9)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let late = tokio::spawn(async move {
        sleep(secs(1)).await;
        output_of(socket, "late", &StopRequest::default()).await
    });
    assert_eq!(node.stop().await, Ok(()));
    let answer = late.await.unwrap();
    assert!(
        answer[0].contains("the agent is stopping") && !answer[0].contains("kubectl"),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_reports_when_the_termination_continues() {
    let mut node = node_with("web", &plain(), true).await;
    let socket = node.flags.socket.socket.clone();
    let waits = tokio::spawn(async move { output_of(socket, "web", &StopRequest::default()).await });
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(node.stop().await, Ok(()));
    let output = waits.await.unwrap();
    let last = output.last().unwrap();
    assert_has(
        last,
        &[
            "the agent has exited while default/web was terminating",
            "continues when the agent starts",
            "pod-teardown status",
        ],
    );
}
