//! Six pods with different behavior.

use serde_json::{Value, json};

use crate::containerd::{POLITE, TOOL_IMAGE};

pub const NAMESPACE: &str = "demo";

/// One process that ignores SIGTERM and never wakes up.
const STUBBORN: &str = "trap '' TERM; while :; do read -r _ <>/wait; done";
/// As [`POLITE`], but it exits with an error.
const SULKY: &str = "trap 'exit 3' TERM; while :; do read -r _ <>/wait; done";
/// Two seconds of work, and a termination message.
const FAREWELL: &str = "sleep 2; echo 'queue drained' >/dev/termination-log";

/// One of the pods.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name, which describes it.
    pub name: &'static str,
    /// Its behavior at termination.
    pub does: &'static str,
    /// What its timeline shows.
    pub look_for: &'static str,
    /// Grace period of its deletion; `None`: the pod's own.
    pub grace: Option<i64>,
    spec: Value,
}

/// All six, in the order in which they are shown.
pub fn cast() -> Vec<Member> {
    vec![
        Member {
            name: "polite",
            does: "exits at once on SIGTERM",
            look_for: "a short term, no kill, exit code 0",
            grace: None,
            spec: json!({ "containers": [container("main", POLITE)] }),
        },
        Member {
            name: "stubborn",
            does: "ignores SIGTERM; it has a grace period of 4 s",
            look_for: "term fills the grace period, then kill; exit code 137",
            grace: None,
            spec: json!({ "terminationGracePeriodSeconds": 4, "containers": [container("main", STUBBORN)] }),
        },
        Member {
            name: "farewell",
            does: "has a preStop hook that drains a queue for 2 s",
            look_for: "term begins where the hook ends; its termination message is in the status",
            grace: None,
            spec: json!({ "containers": [hooked(POLITE, FAREWELL)] }),
        },
        Member {
            name: "broken-hook",
            does: "has a preStop hook that fails",
            look_for: "the hook is marked ✗ and an event reports it; the stop continues",
            grace: None,
            spec: json!({ "containers": [hooked(POLITE, "exit 7")] }),
        },
        Member {
            name: "trio",
            does: "three containers, a volume in memory and a projected one",
            look_for: "three terms side by side; volumes are unmounted before the cgroup is removed; one exit code is 3",
            grace: None,
            spec: trio(),
        },
        Member {
            name: "hurried",
            does: "ignores SIGTERM, and is deleted with grace period 0",
            look_for: "its object is deleted at once, so that no status is sent; 0 counts as 1 s, and SIGKILL follows after 2 s at the earliest",
            grace: Some(0),
            spec: json!({ "containers": [container("main", STUBBORN)] }),
        },
    ]
}

impl Member {
    /// The object to create.
    pub fn manifest(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "namespace": NAMESPACE },
            "spec": self.spec,
        })
    }
}

fn container(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": TOOL_IMAGE, "command": ["sh", "-c", script] })
}

fn hooked(script: &str, hook: &str) -> Value {
    let mut container = container("main", script);
    container["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sh", "-c", hook] } } });
    container
}

fn trio() -> Value {
    let mut containers = vec![
        container("web", POLITE),
        container("cache", POLITE),
        container("sync", SULKY),
    ];
    containers[0]["volumeMounts"] = json!([{ "name": "token", "mountPath": "/token", "readOnly": true }]);
    containers[1]["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
    json!({
        "containers": containers,
        "volumes": [
            { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
            { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } },
        ],
    })
}
