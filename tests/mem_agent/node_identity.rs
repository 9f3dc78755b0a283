//! Another API server or a restored store proves nothing.

use std::collections::HashSet;

use testbed::api::ApiServer as _;

use crate::half_open::balanced;
use crate::prelude::*;

/// An empty server replaces the old one at its address.
pub async fn replaced(node: &mut Node, first_version: u64) {
    let listen = node.api.url().trim_start_matches("http://").parse().unwrap();
    let config = Config {
        listen,
        first_version,
        ..Config::default()
    };
    // Dropping the old server closes its connections.
    node.api = MemApiServer::start(Config::default()).await.unwrap();
    wait_until("the address is free", async || {
        let server = MemApiServer::start(config.clone()).await;
        server.is_ok_and(|server| {
            node.api = server;
            true
        })
    })
    .await;
    node.admin = node.api.admin().unwrap();
}

fn node_object(metadata: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })
}

/// The Node object, for another server.
pub async fn recorded_node(node: &Node) -> Value {
    let answer = node.admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap();
    node_object(&answer.body["metadata"])
}

/// For a while the address leads to another cluster with a node of this name and another pod.
async fn another_cluster(node: &mut Node) {
    replaced(node, 5_000).await;
    node.insert(node_object(&json!({ "name": NODE, "uid": "other-cluster" })));
    let mut stranger = pod("stranger", &plain());
    stranger["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    node.insert(stranger);
    node.wait_status(|it| it.blocked.is_some(), true).await;
    sleep(secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn connection_to_another_cluster_stops_no_pod() {
    let mut node = Node::started(&["web", "db"]).await;
    let own = recorded_node(&node).await;
    another_cluster(&mut node).await;
    assert_eq!(node.status().await.counters.started, 0);
    replaced(&mut node, 1_000_000).await;
    node.insert(own);
    for name in ["web", "db"] {
        node.insert(pod(name, &plain()));
    }
    node.wait_status(|it| it.blocked.is_none(), true).await;
    sleep(secs(700)).await;
    assert!(node.cri.effects().is_empty());
    assert_eq!(node.status().await.watch.pods, 2);
}

#[tokio::test(start_paused = true)]
async fn connection_to_another_cluster_costs_neither_hook_nor_grace() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| pod.container("main"));
    node.simple_pod("db");
    node.start().await;
    let own = recorded_node(&node).await;
    another_cluster(&mut node).await;
    node.crash().await;
    assert!(node.journal().await.is_empty());
    replaced(&mut node, 1_000_000).await;
    node.insert(own);
    node.insert(pod("web", &hooked(&exec())));
    node.insert(pod("db", &plain()));
    node.run().await;
    node.tear_down("web").await;
    let effects = node.cri.effects();
    let kinds: Vec<_> = effects.iter().map(|(_, seen)| seen.kind).collect();
    assert_eq!(kinds[..2], [Kind::ExecSync, Kind::StopContainer]);
    assert!(effects.iter().all(|(_, seen)| seen.pod_uid == "uid-web"));
    assert!(effects[1].1.timeout > Some(secs(20)), "{:?}", effects[1].1.timeout);
}

#[tokio::test(start_paused = true)]
async fn server_without_the_node_interrupts_work_in_progress() {
    let mut node = Node::started_with("web", &hooked(&json!({ "sleep": { "seconds": 20 } })), |pod| {
        pod.container("main")
    })
    .await;
    let own = recorded_node(&node).await;
    node.delete("web", None).await;
    sleep(secs(2)).await;
    replaced(&mut node, 5_000).await;
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
    let held = node.status().await.blocked.unwrap();
    assert!(held.contains("shows no Node of this agent"), "{held}");
    node.insert(own);
    node.insert(pod("web", &hooked(&json!({ "sleep": { "seconds": 20 } }))));
    node.cri.allow_everything();
    node.tear_down("web").await;
}

/// The store is restored to a state before `web` was created or deleted.
async fn restored(node: &mut Node) {
    let own = recorded_node(node).await;
    replaced(node, 1).await;
    node.insert(own);
    node.insert(pod("db", &plain()));
}

async fn wait_list_blocked(node: &Node) -> String {
    node.wait_status(|it| it.watch.absence_hold.is_some(), true).await;
    node.status().await.watch.absence_hold.unwrap()
}

#[tokio::test(start_paused = true)]
async fn pods_missing_in_a_restored_store_stay_blocked_when_its_versions_grow() {
    let mut node = Node::started(&["web", "db"]).await;
    restored(&mut node).await;
    wait_list_blocked(&node).await;
    for number in 0..400 {
        node.insert(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("c{number}"), "namespace": "default" },
        }));
    }
    let faults = node.api.faults();
    faults.inject(Fault::status(410).verb("watch").once());
    faults.inject(Fault::new(Action::CutWatch).once());
    sleep(secs(700)).await;
    assert!(wait_list_blocked(&node).await.contains("was etcd restored?"));
    assert!(node.cri.effects().is_empty() && node.pod_dir("web").exists());
    // A restart of the agent does not change it.
    node.restart().await;
    assert!(wait_list_blocked(&node).await.contains("was etcd restored?"));
    // A pod in the list is not absent, so its deletion counts.
    node.cri.allow_everything();
    node.tear_down("db").await;
    assert!(node.cri.effects().iter().all(|(_, seen)| seen.pod_uid == "uid-db"));
}

#[tokio::test(start_paused = true)]
async fn store_restored_without_the_agent_proves_no_deletion() {
    let mut node = Node::with_pods(&["db"]).await;
    node.stubborn_pod("web");
    node.run().await;
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    restored(&mut node).await;
    node.start().await;
    wait_list_blocked(&node).await;
    sleep(secs(700)).await;
    assert_eq!(node.cri.effects().len(), 1, "but for the stop from before");
    assert!(node.pod_dir("web").exists());
}

#[tokio::test(start_paused = true)]
async fn list_of_one_name_in_many_namespaces_is_read_to_the_end() {
    let mut node = Node::with_pods(&["web"]).await;
    for number in 0..60 {
        let namespace = format!("tenant-{number:02}");
        let mut other = pod("web", &plain());
        other["metadata"]["namespace"] = namespace.as_str().into();
        other["metadata"]["uid"] = format!("uid-{number}").into();
        node.insert(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }));
        node.insert(other);
    }
    node.run().await;
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    node.delete("web", Some(0)).await;
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn each_connection_shows_the_node_before_any_other_request() {
    let mut node = Node::new().await;
    let balancer = balanced(&node);
    let names = ["web", "db", "mail", "queue", "cache"];
    for name in names {
        node.pod(name, &plain(), |pod| pod.container("main").ends_after_term(secs(5), 0));
    }
    node.run().await;
    inject_fault(&node, Fault::new(Action::Refuse).resource("pods/status").times(9));
    inject_fault(&node, Fault::new(Action::LoseResponse).verb("delete").times(2));
    inject_fault(&node, Fault::new(Action::CutWatch).once());
    for name in names {
        node.delete(name, None).await;
        balancer.drop_state();
        node.wait_torn_down(name).await;
    }
    let mut seen = HashSet::new();
    for request in node.agent_requests() {
        let is_look = request.asked.verb == "get" && request.asked.path.ends_with(&format!("/nodes/{NODE}"));
        if is_look && request.code == Some(200) {
            seen.insert(request.connection);
        }
        assert!(seen.contains(&request.connection), "{request:?}");
    }
    // Each time the connection is replaced.
    assert!(seen.len() > names.len(), "{}", seen.len());
}
