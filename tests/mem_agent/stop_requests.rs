//! Stop requests of the admin API.

use pod_teardown::ops::{
    admin::stop::{OUTCOMES, PODS, StopOutcome, StopRequest},
    client::{self, ClientError},
};
use serde_json::{Value, json};
use testbed::{
    apiserver::faults::{Action, Fault},
    scripted_cri::{Kind, StopContainer, StopPodSandbox, expect},
};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::{
    guard::kubelet,
    node::{Node, secs, wait_until},
    pods::{exec, hooked, plain, pod},
    server::inject_fault,
};

pub fn eviction(reason: &str) -> StopRequest {
    StopRequest {
        reason: Some(reason.to_owned()),
        message: Some(format!("{reason} because of a test")),
        ..StopRequest::default()
    }
}

pub fn within(seconds: i64) -> StopRequest {
    StopRequest {
        grace_period_seconds: Some(seconds),
        ..StopRequest::default()
    }
}

/// Sends a request; returns the UID and the grace period in seconds.
pub async fn ask(node: &Node, path: &str, ask: &StopRequest) -> Result<(String, u64), ClientError> {
    let granted: Value = client::post(&node.flags.socket.socket, &format!("{PODS}/default/{path}"), ask).await?;
    let uid = granted["uid"].as_str().unwrap().to_owned();
    Ok((uid, granted["gracePeriodSeconds"].as_u64().unwrap()))
}

pub async fn granted(node: &Node, path: &str, what: &StopRequest) -> u64 {
    ask(node, path, what).await.unwrap().1
}

pub async fn refused(node: &Node, path: &str, what: &StopRequest) -> String {
    ask(node, path, what).await.unwrap_err().to_string()
}

pub async fn outcome(node: &Node, name: &str, wait: u64) -> StopOutcome {
    let path = format!("{OUTCOMES}/uid-{name}?wait={wait}");
    client::get_with_timeout(&node.flags.socket.socket, &path, secs(wait))
        .await
        .unwrap()
}

pub async fn ended(node: &Node, name: &str) -> Value {
    assert!(outcome(node, name, 60).await.terminated);
    node.get(name).await.unwrap()["status"].take()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = status["conditions"].as_array().unwrap().iter();
    conditions.find(|it| it["type"] == kind).unwrap_or(&Value::Null)
}

pub async fn node_with(name: &str, containers: &Value, stubborn: bool) -> Node {
    let mut node = Node::new().await;
    node.pod(name, containers, |pod| {
        let pod = pod.container("main");
        drop(if stubborn { pod.ignores_term() } else { pod });
    });
    node.start().await;
    node.cri.allow_everything();
    node
}

#[tokio::test(start_paused = true)]
async fn stopped_pod_gets_its_hook_and_grace_and_keeps_its_object() {
    let node = node_with("web", &hooked(&exec()), true).await;
    assert_eq!(granted(&node, "web/stop", &within(9)).await, 9);
    assert!(!outcome(&node, "web", 0).await.terminated);
    let status = ended(&node, "web").await;
    assert_eq!(status["phase"], "Failed");
    assert_eq!(status["reason"], Value::Null);
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    assert_eq!(
        node.kinds()[..2],
        [(Kind::ExecSync, Some(secs(9))), (Kind::StopContainer, Some(secs(9)))]
    );
    wait_until("the pod is kept", async || {
        node.status().await.pods.awaiting_deletion == 1
    })
    .await;
    // A later deletion removes the object, containers and logs.
    node.delete("web", None).await;
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn stopped_pod_with_exit_code_zero_has_succeeded() {
    let node = node_with("web", &plain(), false).await;
    assert_eq!(granted(&node, "web/stop", &StopRequest::default()).await, 30);
    assert_eq!(ended(&node, "web").await["phase"], "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn evicted_pod_fails_with_reason_message_and_disruption_target_for_any_exit_code() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/stop", &eviction("Evicted")).await;
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"], &status["message"]),
        (&json!("Failed"), &json!("Evicted"), &json!("Evicted because of a test"))
    );
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
    let target = condition(&status, "DisruptionTarget");
    assert_eq!(
        (&target["status"], &target["reason"], &target["message"]),
        (
            &json!("True"),
            &json!("TerminationByKubelet"),
            &json!("Evicted because of a test")
        )
    );
    assert_eq!(node.count_events("web", "Evicted").await, 1);
}

#[tokio::test(start_paused = true)]
async fn eviction_overrides_earlier_and_later_stops_and_earlier_evictions() {
    let node = node_with("web", &plain(), true).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    sleep(secs(1)).await;
    granted(&node, "web/stop", &eviction("First")).await;
    granted(&node, "web/stop", &eviction("Second")).await;
    sleep(secs(1)).await;
    assert_eq!(granted(&node, "web/stop", &within(5)).await, 5);
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("Second"))
    );
    let target = condition(&status, "DisruptionTarget");
    assert_eq!(
        (&target["status"], &target["message"]),
        (&json!("True"), &json!("Second because of a test"))
    );
}

#[tokio::test(start_paused = true)]
async fn eviction_of_a_terminating_pod_is_in_its_final_status() {
    let node = node_with("web", &plain(), true).await;
    let mut held = node.get("web").await.unwrap();
    held["metadata"]["finalizers"] = json!(["test/keep"]);
    node.insert(held);
    node.delete("web", Some(20)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    granted(&node, "web/stop", &eviction("Evicted")).await;
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("Evicted"))
    );
}

#[tokio::test(start_paused = true)]
async fn stop_only_shortens_the_grace_of_a_terminating_pod() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(30))),
        expect(StopContainer::of("main").timeout(secs(8))),
    ]);
    node.delete("web", None).await;
    let began = Instant::now();
    sleep(secs(4)).await;
    for grace in [12, 12, 60] {
        assert_eq!(granted(&node, "web/stop", &within(grace)).await, 12);
        sleep(secs(1)).await;
    }
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
    assert!(began.elapsed() < secs(15), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn stop_of_a_terminated_pod_finishes_at_once() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    let status = ended(&node, "web").await;
    wait_until("the pod is kept", async || {
        node.status().await.pods.awaiting_deletion == 1
    })
    .await;
    let (calls, began) = (node.cri.effects().len(), Instant::now());
    granted(&node, "web/stop", &eviction("TooLate")).await;
    assert_eq!(ended(&node, "web").await, status);
    assert_eq!((node.cri.effects().len(), began.elapsed()), (calls, secs(0)));
}

#[tokio::test(start_paused = true)]
async fn stop_continues_after_a_crash_with_its_deadline_and_reason() {
    let mut node = node_with("web", &plain(), true).await;
    granted(
        &node,
        "web/stop",
        &StopRequest {
            grace_period_seconds: Some(20),
            ..eviction("Evicted")
        },
    )
    .await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let began = Instant::now();
    sleep(secs(6)).await;
    node.crash().await;
    node.start().await;
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("Evicted"))
    );
    assert!(began.elapsed() < secs(22), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn stop_without_an_api_server_stops_the_pod_and_reports_it_later() {
    let node = node_with("web", &plain(), false).await;
    inject_fault(&node, Fault::new(Action::Refuse));
    granted(&node, "web/stop", &StopRequest::default()).await;
    node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    sleep(secs(30)).await;
    node.api.faults().clear();
    assert_eq!(ended(&node, "web").await["phase"], "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn requests_that_must_not_be_done_are_refused_with_a_reason() {
    let mut node = Node::new().await;
    node.simple_pod("web");
    node.simple_pod("static-n1");
    let mut mirror = pod("static-n1", &plain());
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "hash" });
    node.insert(mirror);
    node.start().await;
    let other = StopRequest {
        uid: Some("another".to_owned()),
        ..StopRequest::default()
    };
    assert!(refused(&node, "web/stop", &other).await.contains("UID uid-web"));
    assert!(
        refused(&node, "missing/stop", &StopRequest::default())
            .await
            .contains("no pod default/missing")
    );
    assert!(
        refused(&node, "static-n1/stop", &StopRequest::default())
            .await
            .contains("mirror of a static pod")
    );
    assert!(
        refused(&node, "static-n1/stop", &eviction("Evicted"))
            .await
            .contains("mirror")
    );
    kubelet(&node);
    wait_until("the hold is reported", async || node.status().await.blocked.is_some()).await;
    let answer = refused(&node, "web/stop", &StopRequest::default()).await;
    assert!(
        answer.contains("a kubelet runs") && answer.contains("kubectl delete pod -n default web"),
        "{answer}"
    );
    sleep(secs(60)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn overdue_request_is_an_event() {
    let mut node = Node::new().await;
    node.simple_pod("web");
    node.start().await;
    node.cri
        .any_number_of(expect(StopContainer::any()).error(Code::Unknown, "busy"));
    node.cri
        .any_number_of(expect(StopPodSandbox::any()).reply_ok_but_do_nothing());
    granted(&node, "web/stop", &within(5)).await;
    node.wait_blocked("web", "busy").await;
    sleep(secs(8)).await;
    assert_eq!(node.count_events("web", "ExceededGracePeriod").await, 0);
    sleep(secs(60)).await;
    assert_eq!(node.count_events("web", "ExceededGracePeriod").await, 1);
    node.cri.allow_everything();
}
