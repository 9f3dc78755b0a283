//! The pods of a round.

use serde::Serialize;
use serde_json::{Value, json};

use crate::containerd::{POLITE, TOOL_IMAGE};

/// As [`POLITE`], but needs four seconds to exit.
const SLOW: &str = "trap 'sleep 4; exit 0' TERM INT; while :; do read -r _ <>/wait; done";

/// How many pods, and of what kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Size {
    /// How many.
    pub pods: usize,
    /// Each like this.
    pub kind: Kind,
}

/// Properties of the pods, besides their one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing more.
    Plain,
    /// An emptyDir in memory.
    Memory,
    /// A preStop hook and a sidecar.
    Hooked,
    /// Four seconds from the stop signal to the exit.
    Slow,
    /// As [`Self::Memory`], made by a real kubelet.
    OfKubelet,
}

// === impl Size ===

impl Size {
    pub(super) fn manifests(self) -> Vec<Value> {
        (0..self.pods).map(|index| self.manifest(index)).collect()
    }

    fn manifest(self, index: usize) -> Value {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": format!("pod-{index}"), "namespace": "default" },
            "spec": {
                "containers": [{
                    "name": "main", "image": TOOL_IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", POLITE],
                }],
            },
        });
        match self.kind {
            Kind::Plain => {}
            Kind::Slow => pod["spec"]["containers"][0]["command"][2] = SLOW.into(),
            Kind::Memory | Kind::OfKubelet => {
                pod["spec"]["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory" } }]);
                pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
            }
            Kind::Hooked => {
                let sidecar = json!({
                    "name": "sidecar", "image": TOOL_IMAGE, "command": ["sh", "-c", POLITE], "restartPolicy": "Always",
                });
                pod["spec"]["initContainers"] = json!([sidecar]);
                pod["spec"]["containers"][0]["lifecycle"] = json!({ "preStop": { "exec": { "command": ["true"] } } });
            }
        }
        pod
    }
}
