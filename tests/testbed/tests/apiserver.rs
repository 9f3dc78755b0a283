//! What only the API server in memory has: faults, and times that a paused clock makes short. All else that its clients see is
//! claimed in `testbed::contract`.

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
#[path = "apiserver/network.rs"]
mod network;
#[path = "apiserver/watches.rs"]
mod watches;

use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
    })
}

fn map(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}
