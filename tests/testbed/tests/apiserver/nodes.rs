use serde_json::{Value, json};

use super::client::{Client, server};
use super::{LEASES, PODS, pod};

#[tokio::test(start_paused = true)]
async fn a_node_is_refused_by_403_where_others_learn_that_a_pod_is_gone() {
    let server = server().await;
    let (admin, node) = (Client::admin(&server), Client::node(&server));
    assert_eq!(admin.get(&format!("{PODS}/a")).await.code, 404);
    assert_eq!(node.get(&format!("{PODS}/a")).await.code, 403);
    assert_eq!(node.delete(&format!("{PODS}/a"), Value::Null).await.code, 404);
    assert_eq!(node.patch(&format!("{PODS}/a/status"), json!({})).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_node_leaves_the_pods_of_others_alone() {
    let server = server().await;
    let (admin, node) = (Client::admin(&server), Client::node(&server));
    let uid = admin.create(PODS, pod("a", "n2")).await.body["metadata"]["uid"].clone();
    let path = format!("{PODS}/a");
    assert_eq!(
        node.delete(&path, json!({ "preconditions": { "uid": uid } }))
            .await
            .code,
        403
    );
    assert_eq!(
        node.delete(&path, json!({ "preconditions": { "uid": "old" } }))
            .await
            .code,
        409
    );
    let wish = json!({ "metadata": { "uid": "old" }, "status": { "phase": "Failed" } });
    assert_eq!(node.patch(&format!("{path}/status"), wish).await.code, 403);
    assert_eq!(node.create(PODS, pod("b", "n1")).await.code, 403);
}

#[tokio::test(start_paused = true)]
async fn a_node_reports_on_its_own_pod_but_relabels_it_not() {
    let server = server().await;
    let (admin, node) = (Client::admin(&server), Client::node(&server));
    admin.create(PODS, pod("a", "n1")).await;
    let path = format!("{PODS}/a/status");
    assert_eq!(
        node.patch(&path, json!({ "metadata": { "labels": { "x": "y" } } }))
            .await
            .code,
        403
    );
    let answer = node.patch(&path, json!({ "status": { "phase": "Running" } })).await;
    assert_eq!((answer.code, &answer.body["status"]["phase"]), (200, &json!("Running")));
    assert_eq!(answer.body["metadata"]["generation"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_keeps_its_own_lease_only() {
    let server = server().await;
    let node = Client::node(&server);
    let lease = |name: &str| json!({ "metadata": { "name": name }, "spec": {} });
    assert_eq!(node.create(LEASES, lease("n2")).await.code, 403);
    assert_eq!(node.create(LEASES, lease("n1")).await.code, 201);
    assert_eq!(node.get(LEASES).await.code, 403);
    assert_eq!(node.get(&format!("{LEASES}/n1")).await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn a_node_learns_what_it_may_do() {
    let server = server().await;
    let node = Client::node(&server);
    let may = async |attributes: Value| {
        let review = json!({ "spec": { "resourceAttributes": attributes } });
        let answer = node
            .create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            .await;
        assert_eq!(answer.code, 201);
        answer.body["status"]["allowed"].as_bool().unwrap()
    };
    assert!(may(json!({ "verb": "delete", "resource": "pods", "namespace": "default" })).await);
    assert!(!may(json!({ "verb": "list", "resource": "pods" })).await);
    let selector = json!({ "rawSelector": "spec.nodeName=n1" });
    assert!(may(json!({ "verb": "list", "resource": "pods", "fieldSelector": selector })).await);
    let requirements = json!([{ "key": "spec.nodeName", "operator": "In", "values": ["n1"] }]);
    assert!(
        may(json!({ "verb": "watch", "resource": "pods", "fieldSelector": { "requirements": requirements } })).await
    );
}
