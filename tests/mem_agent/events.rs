//! Events about stuck pods.

use crate::prelude::*;

pub async fn events(node: &Node, reason: &str) -> Vec<Value> {
    let events = node.admin.get("/api/v1/namespaces/default/events").await.unwrap();
    let events = events.body["items"].as_array().cloned().unwrap_or_default();
    events.into_iter().filter(|event| event["reason"] == reason).collect()
}

/// A deleted pod whose sandbox never stops.
async fn stuck() -> Node {
    let node = Node::started_with("web", &plain(), |pod| pod.container("main")).await;
    node.always(expect(StopContainer::any()));
    node.always(expect(StopPodSandbox::any()).error(Code::Unknown, "no CNI configuration"));
    node.delete("web", None).await;
    node
}

#[tokio::test(start_paused = true)]
async fn stuck_pod_makes_one_counted_event_per_reason() {
    let node = stuck().await;
    sleep(secs(3600)).await;
    for reason in ["FailedKillPod", "TeardownBlocked"] {
        let written = events(&node, reason).await;
        assert_eq!(written.len(), 1, "{reason}: {written:?}");
        assert!(written[0]["message"].as_str().unwrap().contains("no CNI configuration"));
        let count = written[0]["count"].as_u64().unwrap();
        assert!((100..250).contains(&count), "{reason}: {count}");
        assert_ne!(written[0]["firstTimestamp"], Value::Null);
    }
}

#[tokio::test(start_paused = true)]
async fn pod_is_reported_blocked_only_some_time_after_the_grace_period() {
    let node = stuck().await;
    sleep(secs(50)).await;
    assert_eq!(events(&node, "FailedKillPod").await.len(), 1);
    assert!(events(&node, "TeardownBlocked").await.is_empty());
    sleep(secs(120)).await;
    assert_eq!(events(&node, "TeardownBlocked").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn expired_event_is_created_again_with_its_count() {
    let node = stuck().await;
    wait_until!(!events(&node, "FailedKillPod").await.is_empty());
    let name = events(&node, "FailedKillPod").await[0]["metadata"]["name"].clone();
    let path = format!("/api/v1/namespaces/default/events/{}", name.as_str().unwrap());
    node.admin.delete(&path, None).await.unwrap();
    sleep(secs(600)).await;
    let written = events(&node, "FailedKillPod").await;
    assert_eq!(written.len(), 1);
    assert!(written[0]["count"].as_u64().unwrap() > 5 && written[0]["metadata"]["name"] == name);
}

#[tokio::test(start_paused = true)]
async fn events_counted_during_an_api_server_outage_are_sent_afterwards() {
    let node = stuck().await;
    wait_until!(!events(&node, "FailedKillPod").await.is_empty());
    inject_fault(&node, Fault::new(Action::Refuse));
    sleep(secs(1500)).await;
    node.api.faults().clear();
    sleep(secs(330)).await;
    let written = events(&node, "FailedKillPod").await;
    assert_eq!(written.len(), 1);
    assert!(written[0]["count"].as_u64().unwrap() > 20, "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn pending_events_are_sent_before_the_agent_exits() {
    let mut node = Node::running(&["web"]).await;
    inject_fault(&node, Fault::status(503).verb("create").resource("events").once());
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    assert!(events(&node, "Killing").await.is_empty());
    node.stop().await.unwrap();
    assert_eq!(events(&node, "Killing").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn refused_events_do_not_delay_the_shutdown() {
    let mut node = Node::running(&["web"]).await;
    inject_fault(&node, Fault::status(503).verb("create").resource("events"));
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    let began = Instant::now();
    node.stop().await.unwrap();
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}
