//! Stop requests of the admin API.

use pod_teardown::ops::{admin::stop::OUTCOMES, client::ClientError};

use crate::prelude::*;

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
    let path = format!("{OUTCOMES}uid-{name}?wait={wait}");
    let answer = client::get_raw(&node.flags.socket.socket, &path, secs(wait)).await;
    answer.unwrap().parse().unwrap()
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
        if stubborn { pod.ignores_term() } else { pod }
    });
    node.run().await;
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
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
    // A later deletion removes the object, containers and logs.
    node.tear_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn evicted_pod_fails_with_reason_message_and_disruption_target_for_any_exit_code() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/stop", &eviction("Evicted")).await;
    let status = ended(&node, "web").await;
    assert_fields(
        &status,
        &json!({ "phase": "Failed", "reason": "Evicted", "message": "Evicted because of a test" }),
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
    assert_fields(&status, &json!({ "phase": "Failed", "reason": "Second" }));
    let target = condition(&status, "DisruptionTarget");
    assert_fields(
        target,
        &json!({ "status": "True", "message": "Second because of a test" }),
    );
}

#[tokio::test(start_paused = true)]
async fn eviction_of_a_terminating_pod_is_in_its_final_status() {
    let node = node_with("web", &plain(), true).await;
    node.hold_object("web").await;
    node.delete("web", Some(20)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    granted(&node, "web/stop", &eviction("Evicted")).await;
    let status = ended(&node, "web").await;
    assert_fields(&status, &json!({ "phase": "Failed", "reason": "Evicted" }));
}

#[tokio::test(start_paused = true)]
async fn stop_only_shortens_the_grace_of_a_terminating_pod() {
    let node = Node::with_stubborn_pod().await;
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
    node.restart().await;
    let status = ended(&node, "web").await;
    assert_fields(&status, &json!({ "phase": "Failed", "reason": "Evicted" }));
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
    let mut node = Node::with_pods(&["web", "static-n1"]).await;
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
    node.wait_status(|it| it.blocked.is_some(), true).await;
    let answer = refused(&node, "web/stop", &StopRequest::default()).await;
    assert_has(&answer, &["a kubelet runs", "kubectl delete pod -n default web"]);
    sleep(secs(60)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn overdue_request_is_an_event() {
    let node = Node::started(&["web"]).await;
    node.always(expect(StopContainer::any()).error(Code::Unknown, "busy"));
    node.always(expect(StopPodSandbox::any()).reply_ok_but_do_nothing());
    granted(&node, "web/stop", &within(5)).await;
    node.wait_blocked("web", "busy").await;
    sleep(secs(8)).await;
    assert_eq!(node.count_events("web", "ExceededGracePeriod").await, 0);
    sleep(secs(60)).await;
    assert_eq!(node.count_events("web", "ExceededGracePeriod").await, 1);
    node.cri.allow_everything();
}
