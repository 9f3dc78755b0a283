//! Random pods.

use serde_json::{Value, json};
use testbed::{
    containerd::{POLITE, TOOL_IMAGE},
    dice::Dice,
};

/// Ignores SIGTERM.
pub const DEAF: &str = "trap '' TERM; while :; do sleep 1; done";

pub fn pod(name: &str, dice: &mut Dice) -> Value {
    let grace = [2, 5, 15, 30][dice.up_to(4)];
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            // A container that exits or is stopped wrongly is not restarted, so that the test detects it.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace,
            "automountServiceAccountToken": false,
            "containers": [container("main", POLITE)],
        },
    });
    let spec = &mut pod["spec"];
    match dice.up_to(6) {
        0 => {}
        1 => spec["containers"] = json!([container("main", POLITE), container("deaf", DEAF)]),
        2 => {
            let mut sidecar = container("sidecar", POLITE);
            sidecar["restartPolicy"] = "Always".into();
            spec["initContainers"] = json!([sidecar]);
        }
        3 => spec["containers"] = json!([container("main", DEAF)]),
        _ => {
            // After its hook it runs until the grace period expires: long enough for a kubelet to start.
            if dice.one_in(2) {
                spec["containers"] = json!([container("main", DEAF)]);
            }
            let seconds = dice.up_to(7);
            let hook = json!({ "preStop": { "exec": { "command": ["sh", "-c", format!("sleep {seconds}")] } } });
            spec["containers"][0]["lifecycle"] = hook;
        }
    }
    if !dice.one_in(4) {
        spec["volumes"] = json!([
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "disk", "emptyDir": {} },
            { "name": "word", "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        ]);
        spec["containers"][0]["volumeMounts"] = json!([
            { "name": "memory", "mountPath": "/memory" },
            { "name": "disk", "mountPath": "/disk" },
            { "name": "word", "mountPath": "/word" },
        ]);
    }
    pod
}

pub fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": TOOL_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
    })
}
