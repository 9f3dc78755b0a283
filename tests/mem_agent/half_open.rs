//! Connections and headers of requests to the API server.

use std::sync::Mutex;

use testbed::balancer::Balancer;

use crate::prelude::*;

/// The node reaches the API server through a load balancer that speaks TLS.
pub fn balanced(node: &Node) -> Balancer {
    let balancer = Balancer::with_tls(node.api.connector().clone()).unwrap();
    let kubeconfig = balancer.kubeconfig(&node.api.node_kubeconfig(NODE));
    fs::write(node.path("kubeconfig"), kubeconfig).unwrap();
    balancer
}

#[tokio::test(start_paused = true)]
async fn pod_deleted_over_a_half_open_connection_is_torn_down_within_a_minute() {
    let mut node = Node::new().await;
    let balancer = balanced(&node);
    node.simple_pod("web");
    node.run().await;
    // Idle or busy.
    sleep(secs(100)).await;
    balancer.drop_state();
    let begun = Instant::now();
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    assert!(begun.elapsed() < secs(60), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn all_requests_of_a_node_share_one_connection_over_tls() {
    let mut node = Node::new().await;
    let _balancer = balanced(&node);
    for name in ["a", "b", "c"] {
        node.simple_pod(name);
    }
    node.run().await;
    node.delete_all(["a", "b", "c"], None).await;
    node.wait_all_torn_down(["a", "b", "c"]).await;
    let mut connections: Vec<u64> = node.agent_requests().iter().map(|it| it.connection).collect();
    connections.dedup();
    assert_eq!(connections.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_request_accepts_compression_or_asks_for_an_unsafe_deletion() {
    let mut node = Node::with_pods(&["web"]).await;
    let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
    let captured = Arc::clone(&bodies);
    node.api.set_witness(Box::new(move |asked, body, code| {
        if asked.user.starts_with("system:node:") && asked.verb == "delete" && code.is_none() {
            captured
                .lock()
                .unwrap()
                .push(String::from_utf8_lossy(body).into_owned());
        }
    }));
    node.run().await;
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    let bodies = bodies.lock().unwrap();
    assert!(!bodies.is_empty());
    for body in bodies.iter() {
        assert!(
            body.contains(r#""uid":"#) && !body.contains("ignoreStoreRead"),
            "{body}"
        );
    }
    assert!(!node.api.was_asked_to_compress());
}
