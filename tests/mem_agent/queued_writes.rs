//! Writes that wait for a slot or a connection while the cluster or the kubelet changes.

use std::sync::atomic::{AtomicBool, Ordering};

use testbed::{balancer::Balancer, network};

use crate::prelude::*;

/// Number of simultaneous writes.
const AT_ONCE: usize = 16;

/// The agent's write requests.
fn writes(api: &MemApiServer) -> Vec<String> {
    let user = format!("system:node:{NODE}");
    let asked = api.requests().into_iter().filter(|it| it.asked.user == user);
    let writes = asked.filter(|it| !["get", "list", "watch"].contains(&&*it.asked.verb));
    writes
        .map(|it| {
            format!(
                "{} {} {}: {:?}",
                it.asked.verb, it.asked.resource, it.asked.name, it.code
            )
        })
        .collect()
}

/// A cluster with a Node of the same name, and pods of the same names.
async fn another_cluster(pods: &[String]) -> MemApiServer {
    let config = Config {
        first_version: 1_000_000,
        ..Config::default()
    };
    let api = MemApiServer::start(config).await.unwrap();
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another" } });
    api.insert_raw(node).unwrap();
    for name in pods {
        let mut pod = pod(name, &plain());
        pod["metadata"]["uid"] = format!("another-{name}").into();
        api.insert_raw(pod).unwrap();
    }
    api
}

/// A node with many terminating pods and a server that takes half a minute for a status.
async fn many_writes_wait() -> (Node, Vec<String>) {
    let mut node = Node::new().await;
    let names: Vec<String> = (0..3 * AT_ONCE).map(|n| format!("p{n}")).collect();
    for name in &names {
        node.simple_pod(name);
    }
    node.run().await;
    inject_fault(&node, Fault::delay(secs(30)).verb("patch"));
    node.delete_all(&names, None).await;
    sleep(secs(10)).await;
    (node, names)
}

#[tokio::test(start_paused = true)]
async fn queued_writes_do_not_go_to_another_cluster_of_a_changed_kubeconfig() {
    let (node, names) = many_writes_wait().await;
    let other = another_cluster(&names).await;
    fs::write(node.path("kubeconfig"), other.node_kubeconfig(NODE)).unwrap();
    inject_fault(&node, Fault::new(Action::CutWatch).once());
    sleep(secs(120)).await;
    assert_eq!(writes(&other), Vec::<String>::new());
    assert!(node.status().await.blocked.is_some());
}

#[tokio::test(start_paused = true)]
async fn queued_writes_are_not_sent_once_a_kubelet_runs() {
    let (node, _) = many_writes_wait().await;
    kubelet_at(&node, &node.path("kubelet"));
    sleep(secs(5)).await;
    assert!(node.status().await.blocked.is_some());
    node.api.forget_requests();
    sleep(secs(120)).await;
    // Requests in progress may be answered.
    let writes = writes(&node.api);
    assert!(writes.len() <= AT_ONCE, "{}: {writes:#?}", writes.len());
}

#[tokio::test(start_paused = true)]
async fn new_connection_to_another_cluster_is_not_used() {
    let mut node = Node::new().await;
    let names: Vec<_> = (0..12).map(|n| format!("web-{n}")).collect();
    for name in &names {
        node.simple_pod(name);
    }
    node.simple_pod("db");
    let other = another_cluster(&names).await;
    let balancer = Balancer::start(node.api.connector().clone());
    let kubeconfig = balancer.kubeconfig(&node.api.node_kubeconfig(NODE));
    fs::write(node.path("kubeconfig"), kubeconfig).unwrap();
    let theirs = other.connector().clone();
    let is_other = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&is_other);
    // A virtual address: new connections go to the other cluster.
    node.outside.dial = Some(Arc::new(move |url| match now.load(Ordering::SeqCst) {
        true => Ok(Box::new(theirs.connect())),
        false => Ok(Box::new(network::connect(url)?)),
    }));
    node.run().await;
    node.tear_down("db").await;
    sleep(secs(120)).await;
    is_other.store(true, Ordering::SeqCst);
    balancer.drop_state();
    node.delete_all(&names, None).await;
    node.wait_status(|it| it.blocked.is_some(), true).await;
    sleep(secs(60)).await;
    assert_eq!(writes(&other), Vec::<String>::new());
    is_other.store(false, Ordering::SeqCst);
    let back = Instant::now();
    node.wait_all_torn_down(&names).await;
    assert!(back.elapsed() < secs(90), "{:?}", back.elapsed());
    assert_eq!(writes(&other), Vec::<String>::new());
}
