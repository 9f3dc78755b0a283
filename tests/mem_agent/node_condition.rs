//! The agent's role in the cluster: a condition of its Node, and events about the Node.

use crate::prelude::*;
use crate::{events::events, failing_kubelet::starts};

async fn conditions(node: &Node) -> Vec<Value> {
    let answer = node.admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap();
    let conditions = answer.body["status"]["conditions"].as_array();
    conditions.cloned().unwrap_or_default()
}

/// Waits for the condition with this reason.
pub async fn wait_for_condition(node: &Node, reason: &str) -> Value {
    let condition = async || {
        let all = conditions(node).await;
        all.into_iter()
            .find(|it| it["type"] == "PodTeardownActive" && it["reason"] == reason)
    };
    wait_until(reason, async || condition().await.is_some()).await;
    condition().await.unwrap()
}

pub async fn node_with_kubelet() -> NodeWithKubelet {
    let mut node = NodeWithKubelet::new().await;
    node.stop().await.unwrap();
    node.flags.node_condition = true;
    let ready =
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] } });
    let path = format!("/api/v1/nodes/{NODE}/status");
    let answer = node.admin.patch(&path, Patch::Merge, &ready).await.unwrap();
    assert_eq!(answer.code(), 200);
    node.start().await;
    node
}

#[tokio::test(start_paused = true)]
async fn condition_of_the_node_follows_the_role_also_beside_a_kubelet() {
    let mut node = node_with_kubelet().await;
    node.kubelet_works().await;
    assert_eq!(wait_for_condition(&node, "KubeletAlive").await["status"], "False");
    node.kubelet_exits();
    wait_for_condition(&node, "TakeoverPending").await;
    node.wait_for_takeover().await;
    let active = wait_for_condition(&node, "KubeletDown").await;
    assert_eq!(active["status"], "True");
    node.kubelet_starts();
    wait_for_condition(&node, "KubeletStarted").await;
    node.kubelet_works().await;
    wait_for_condition(&node, "KubeletAlive").await;
    for reason in ["TeardownActive", "TeardownStandby"] {
        wait_until(reason, async || !events(&node, reason).await.is_empty()).await;
    }
    let about = &events(&node, "TeardownActive").await[0]["involvedObject"];
    assert_fields(about, &json!({ "kind": "Node", "name": NODE }));
    node.stop().await.unwrap();
    assert_eq!(wait_for_condition(&node, "AgentStopped").await["status"], "Unknown");
    let all = conditions(&node).await;
    assert_eq!(all[0]["reason"], "KubeletReady", "conditions of others stay");
    assert_eq!(all.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn restart_in_the_same_role_sends_no_second_event() {
    let mut node = node_with_kubelet().await;
    node.kubelet_works().await;
    wait_for_condition(&node, "KubeletAlive").await;
    wait_until!(!events(&node, "TeardownStandby").await.is_empty());
    node.restart().await;
    node.kubelet_works().await;
    sleep(secs(60)).await;
    let sent = events(&node, "TeardownStandby").await;
    assert_eq!((sent.len(), sent[0]["count"].as_u64().unwrap_or(1)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_to_a_node_of_another_cluster() {
    let mut node = node_with_kubelet().await;
    wait_for_condition(&node, "KubeletStarted").await;
    let mut other = recorded_node(&node).await;
    other["metadata"] = json!({ "name": NODE, "uid": "other-cluster" });
    replaced(&mut node, 5_000).await;
    node.insert(other);
    sleep(secs(700)).await;
    assert_eq!(conditions(&node).await, Vec::<Value>::new());
    node.stop().await.unwrap();
    assert_eq!(conditions(&node).await, Vec::<Value>::new(), "also not at the end");
}

#[tokio::test(start_paused = true)]
async fn refused_condition_is_logged_once_and_sent_when_the_server_accepts_it() {
    let log = Log::new();
    for code in [403, 409, 422] {
        let mut node = node_with_kubelet().await;
        wait_for_condition(&node, "KubeletUnresponsive").await;
        inject_fault(&node, Fault::status(code).verb("patch").resource("nodes/status"));
        node.kubelet_exits();
        sleep(secs(30)).await;
        let line = "Condition of the Node cannot be sent; will retry";
        let lines = log.lines(line);
        let logged = lines.iter().filter(|it| it.contains(&code.to_string())).count();
        assert_eq!(logged, 1, "{code}: {lines:?}");
        node.api.faults().clear();
        wait_for_condition(&node, "KubeletDown").await;
    }
}

#[tokio::test(start_paused = true)]
async fn kubelet_that_starts_again_and_again_is_one_condition_and_one_event() {
    for life in [secs(2), secs(20)] {
        let mut node = node_with_kubelet().await;
        node.kubelet_works().await;
        node.kubelet_exits();
        starts(&mut node, 10, secs(10), life).await;
        let first = wait_for_condition(&node, "KubeletFailing").await;
        assert_eq!(first["status"], "True");
        node.api.forget_requests();
        starts(&mut node, 60, secs(10), life).await;
        let requests = node.api.requests();
        let writes = requests
            .iter()
            .filter(|it| it.asked.verb == "patch" && it.asked.path.contains("/nodes/"))
            .count();
        let took = 60 * (secs(10) + life);
        let heartbeats = usize::try_from(took.as_secs() / 300).unwrap();
        assert!((heartbeats..=heartbeats + 1).contains(&writes), "{life:?}: {writes}");
        let last = wait_for_condition(&node, "KubeletFailing").await;
        assert_eq!(last["lastTransitionTime"], first["lastTransitionTime"]);
        let sent = events(&node, "KubeletFailing").await;
        assert_eq!((sent.len(), sent[0]["count"].as_u64().unwrap_or(1)), (1, 1));
        assert_eq!(sent[0]["type"], "Warning");
    }
}
