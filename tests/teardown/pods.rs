//! Pods for the claims. Every container has a directory of the claim as `/out`, for marks.

use serde_json::{Value, json};
use testbed::containerd::TOOL_IMAGE;

/// Exits with 0 at its signal.
pub const POLITE: &str = "trap 'exit 0' TERM";
/// Writes its signals to `/out/log` and continues.
pub const STUBBORN: &str = "trap 'echo term >> /out/log' TERM";
/// Writes its signal to `/out/log` and exits.
pub const NOTING: &str = "trap 'echo term >> /out/log; exit 0' TERM";

/// A container that runs a script, marks itself as ready, and sleeps until a trap runs.
pub fn container(name: &str, script: &str) -> Value {
    let script = format!(
        "{script}\n: > /out/{}\nwhile :; do read -r _ <>/wait; done",
        ready(name)
    );
    json!({ "name": name, "image": TOOL_IMAGE, "command": ["sh", "-c", script] })
}

/// The file that marks a container as ready: an earlier signal would be lost.
pub fn ready(container: &str) -> String {
    format!("ready-{container}")
}

pub fn pod(name: &str, grace: i64, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": grace, "containers": containers },
    })
}

/// A pod of one container, called `main`.
pub fn simple(name: &str, grace: i64, script: &str) -> Value {
    pod(name, grace, &[container("main", script)])
}

/// As [`simple`], with a preStop hook.
pub fn hooked(name: &str, grace: i64, script: &str, hook: &Value) -> Value {
    let mut main = container("main", script);
    main["lifecycle"] = json!({ "preStop": hook });
    pod(name, grace, &[main])
}

/// A hook that runs a script in the container.
pub fn exec(script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", script] } })
}

/// Mounts a directory of the machine as `/out` in every container.
pub fn mount_out(pod: &mut Value, dir: &str) {
    let spec = &mut pod["spec"];
    push(
        &mut spec["volumes"],
        json!({ "name": "out", "hostPath": { "path": dir } }),
    );
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            push(
                &mut container["volumeMounts"],
                json!({ "name": "out", "mountPath": "/out" }),
            );
        }
    }
}

/// Adds an item to a list, and creates the list if it is missing.
pub fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}
