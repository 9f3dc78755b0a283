//! The API server in memory, as its clients see it. The clock is paused, so waits take no time.

#![allow(
    clippy::unwrap_used,
    reason = "an unwrap in a test is an assertion, also outside of test functions"
)]

#[path = "apiserver/client.rs"]
mod client;
#[path = "apiserver/discovery.rs"]
mod discovery;
#[path = "apiserver/faults.rs"]
mod faults;
#[path = "apiserver/nodes.rs"]
mod nodes;
#[path = "apiserver/watches.rs"]
mod watches;
#[path = "apiserver/writes.rs"]
mod writes;

use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
    })
}

fn map(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}
