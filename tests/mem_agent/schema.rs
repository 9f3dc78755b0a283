//! Real answers on the admin socket are as their JSON schemas say.

use pod_teardown::ops::admin::{STATUS, TIMELINES, holds, pause, stop::OUTCOMES, why};
use testbed::schema::violations;

use crate::disk::cgroup;
use crate::prelude::*;

pub async fn assert_valid(node: &Node, schema: &str, path: &str) -> Value {
    let answer = client::get::<Value>(&node.flags.socket.socket, path).await.unwrap();
    assert_eq!(
        violations(schema, &answer).unwrap(),
        Vec::<String>::new(),
        "{path}: {answer:#}"
    );
    answer
}

async fn assert_valid_command(node: &Node, schema: &str, path: &str, body: &Value) {
    let answer = client::post::<Value>(&node.flags.socket.socket, path, body)
        .await
        .unwrap();
    assert_eq!(
        violations(schema, &answer).unwrap(),
        Vec::<String>::new(),
        "{path}: {answer:#}"
    );
}

#[tokio::test(start_paused = true)]
async fn answers_about_a_pod_that_fails_match_their_schemas() {
    let mut node = Node::started(&["web", "db"]).await;
    node.cri
        .in_order([expect(StopContainer::any()).error(Code::Unavailable, "busy")]);
    node.delete("web", None).await;
    wait_until("it is reported", async || {
        let status = node.status().await;
        status.pods.terminating.iter().any(|trace| !trace.blocked.is_empty())
    })
    .await;
    let status = assert_valid(&node, "status", STATUS).await;
    assert!(status["pods"]["terminating"][0]["blocked"][0].is_object(), "{status:#}");
    assert_valid(&node, "timelines", &format!("{TIMELINES}/default/web")).await;
    assert_valid(&node, "why", &why::request_path("default/web")).await;
    assert_valid(&node, "plan", "/v1/plan?pod=default/db").await;

    node.cri.allow_everything();
    node.wait_torn_down("web").await;
    assert_valid_command(
        &node,
        "stop",
        &format!("{PODS}/default/db/stop"),
        &json!({ "gracePeriodSeconds": 5 }),
    )
    .await;
    assert_valid(&node, "outcome", &format!("{OUTCOMES}uid-db?wait=60")).await;
    assert_valid_command(&node, "pause", pause::PAUSE, &json!({})).await;
    assert_valid(&node, "status", STATUS).await;
    assert_valid_command(&node, "pause", pause::RESUME, &json!({})).await;
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_about_a_hold_and_a_kubelet_match_their_schemas() {
    let mut node = Node::with_pods(&["web"]).await;
    node.cri.change(|world| {
        world.containers.clear();
        world.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = false);
    });
    let _process = Bystander::in_cgroup(&cgroup(&node, "web").join("0123456789abcdef"));
    node.run().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "pod-teardown approve pod/default/web").await;
    let holds = assert_valid(&node, "holds", holds::HOLDS).await;
    assert_eq!(holds["items"][0]["item"], "pod/default/web");
    let status = assert_valid(&node, "status", STATUS).await;
    assert!(
        status["pods"]["terminating"][0]["mismatch"]["kind"].is_string(),
        "{status:#}"
    );
    let kubelet = kubelet(&node);
    node.wait_status(|it| it.blocked.is_some(), true).await;
    assert_valid(&node, "status", STATUS).await;
    assert_valid(&node, "holds", holds::HOLDS).await;
    assert_valid(&node, "why", &why::request_path("default/web")).await;
    fs::remove_dir_all(kubelet).unwrap();
    let approval = json!({ "item": "pod/default/web" });
    node.wait_status(|it| it.blocked.is_none(), true).await;
    assert_valid_command(&node, "approve", holds::APPROVE, &approval).await;
    assert_valid_command(&node, "handover", "/v1/handover", &json!({ "timeoutMs": 1000 })).await;
}
