//! One pod, the state that it reaches, and its deletion or eviction: the same for kubelet and agent.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use testbed::{containerd::TOOL_IMAGE, rest::Patch};

/// Condition on a pod's object before its deletion or eviction.
pub type Until = Box<dyn Fn(&Value) -> bool + Send + Sync>;

/// See the module's documentation.
pub struct Scenario {
    /// Name in the table and in the list of expected differences.
    pub name: &'static str,
    /// The object, without a namespace.
    pub pod: Value,
    /// State before its deletion or eviction.
    pub until: Until,
    /// Writes once its containers run, while a kubelet runs.
    pub running: Vec<Write>,
    /// Writes right before its deletion.
    pub write_before_deletion: Vec<Write>,
    /// Its eviction before its deletion.
    pub eviction: Option<Eviction>,
    pub deletion: Deletion,
    /// A container that runs until the trigger and then crash-loops.
    pub loops: Option<&'static str>,
    /// Its object is changed repeatedly until it reaches its state.
    pub nudged: bool,
}

/// A patch by the administrator.
#[derive(Debug, Clone)]
pub struct Write {
    /// Subresource with a leading slash, or empty.
    pub subresource: &'static str,
    pub kind: Patch,
    pub patch: Value,
}

/// Eviction by the node: by a kubelet because a volume exceeds its limit, by the agent on a request with the kubelet's
/// message.
#[derive(Debug, Clone, Copy)]
pub struct Eviction {
    pub volume: &'static str,
    /// The kubelet's message.
    pub message: &'static str,
}

/// Deletion of a pod.
#[derive(Debug, Clone, Copy)]
pub enum Deletion {
    /// With the grace period of its spec.
    Plain,
    /// With this grace period.
    Grace(i64),
    /// By the eviction API.
    Eviction,
}

/// A scenario whose pod runs before its deletion.
pub fn scenario(name: &'static str, pod: Value) -> Scenario {
    Scenario {
        name,
        pod,
        until: Box::new(runs),
        running: Vec::new(),
        write_before_deletion: Vec::new(),
        eviction: None,
        deletion: Deletion::Plain,
        loops: None,
        nudged: false,
    }
}

impl Scenario {
    /// Sets another state to reach.
    pub fn until(self, until: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        Self {
            until: Box::new(until),
            ..self
        }
    }

    /// Adds a write once its containers run.
    pub fn write_when_running(mut self, subresource: &'static str, patch: Value) -> Self {
        self.running.push(Write {
            subresource,
            kind: Patch::Strategic,
            patch,
        });
        self
    }

    /// Adds a write right before its deletion.
    pub fn write_before_deletion(mut self, patch: Value) -> Self {
        self.write_before_deletion.push(Write {
            subresource: "",
            kind: Patch::Strategic,
            patch,
        });
        self
    }

    /// Waits until this [`looping_container`] has restarted at least twice.
    pub fn looping(self, container: &'static str) -> Self {
        Self {
            until: Box::new(restarted_twice(container)),
            loops: Some(container),
            ..self
        }
    }

    /// Changes its object repeatedly until it reaches its state.
    pub fn nudged(self) -> Self {
        Self { nudged: true, ..self }
    }

    /// Its node evicts it; it is deleted once it is terminal.
    pub fn evicted(mut self) -> Self {
        // A kubelet creates only volumes that a container mounts.
        for container in self.pod["containers"].as_array_mut().into_iter().flatten() {
            container["volumeMounts"] = json!([{ "name": DATA, "mountPath": "/data" }]);
        }
        self.pod["volumes"] = json!([{ "name": DATA, "emptyDir": { "sizeLimit": "1Mi" } }]);
        Self {
            eviction: Some(Eviction {
                volume: DATA,
                // The message has a trailing space.
                message: "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ",
            }),
            ..self
        }
    }

    /// Sets another deletion.
    pub fn deleted(self, deletion: Deletion) -> Self {
        Self { deletion, ..self }
    }
}

// === parts of pods ===

/// Exits with this code on SIGTERM.
pub fn ends(code: u8) -> String {
    format!("trap 'exit {code}' TERM")
}

/// Volume and file of the trigger.
pub const TRIGGER: &str = "trigger";
/// A script in that volume that exits at the trigger and is removed then.
pub const VANISHES: &str = "vanishes";
const TRIGGER_DIR: &str = "/trigger";
const DATA: &str = "data";

/// Ignores SIGTERM.
pub const STUBBORN: &str = "trap '' TERM";

/// A container that runs a script, then sleeps and wakes up only for its traps.
pub fn container(name: &str, script: &str) -> Value {
    command(name, &format!("{script}\nwhile :; do read -r _ <>/wait; done"))
}

/// A container that runs a script and exits.
pub fn command(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": TOOL_IMAGE, "command": ["sh", "-c", script] })
}

/// A container that runs until the trigger and only this script afterwards. So all loops of a half have their long backoff at
/// the same time, and none restarts during the half's deletion.
pub fn looping_container(name: &str, script: &str) -> Value {
    let script = format!("while [ ! -e {TRIGGER_DIR}/{TRIGGER} ]; do sleep 1; done\n{script}");
    with(command(name, &script), trigger_mount())
}

/// A container whose command is removed at the trigger.
pub fn vanishing_command(name: &str) -> Value {
    let container = json!({ "name": name, "image": TOOL_IMAGE, "command": [format!("{TRIGGER_DIR}/{VANISHES}")] });
    with(container, trigger_mount())
}

fn trigger_mount() -> Value {
    json!({ "volumeMounts": [{ "name": TRIGGER, "mountPath": TRIGGER_DIR }] })
}

pub fn with(mut object: Value, fields: Value) -> Value {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    object
}

/// As [`pod`], with a shorter grace period, which some of its containers use up. The others also need part of it,
/// because all pods stop at once.
pub fn short(pod: Value) -> Value {
    with(pod, json!({ "terminationGracePeriodSeconds": 10 }))
}

/// A pod of these containers, with a long grace period.
pub fn pod(policy: &str, containers: &[Value]) -> Value {
    json!({
        "restartPolicy": policy,
        "terminationGracePeriodSeconds": 30,
        "containers": containers,
    })
}

/// A pod of one container.
pub fn single(policy: &str, script: &str) -> Value {
    pod(policy, &[container("main", script)])
}

/// Adds these init containers.
pub fn after(init: &[Value], pod: Value) -> Value {
    with(pod, json!({ "initContainers": init }))
}

pub fn sidecar(name: &str, script: &str) -> Value {
    with(container(name, script), json!({ "restartPolicy": "Always" }))
}

// === states of pods ===

/// All regular containers and sidecars run.
pub fn runs(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && all(pod, "containerStatuses", |state| state.get("running").is_some())
}

/// The pod is in this phase.
pub fn phase(phase: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| pod["status"]["phase"] == phase
}

pub fn waits(container: &'static str, reason: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| status(pod, container).is_some_and(|status| status["state"]["waiting"]["reason"] == reason)
}

pub fn is(container: &'static str, state: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| status(pod, container).is_some_and(|status| !status["state"][state].is_null())
}

/// This container's status has this field.
pub fn shows(container: &'static str, field: &'static str, value: impl Into<Value>) -> impl Fn(&Value) -> bool {
    let value = value.into();
    move |pod| status(pod, container).is_some_and(|status| status[field] == value)
}

/// This container has restarted at least twice and does not run now.
pub fn restarted_twice(container: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| {
        status(pod, container)
            .is_some_and(|status| status["restartCount"].as_u64() >= Some(2) && status["state"]["running"].is_null())
    }
}

/// This restarted container is in the first half of its backoff, so that it does not restart soon. Kubelets double the
/// backoff each time, from ten seconds.
pub fn is_early_in_its_backoff(container: &str, pod: &Value, now: Timestamp) -> bool {
    let Some(status) = status(pod, container) else {
        return false;
    };
    let ends = ["state", "lastState"].map(|state| &status[state]["terminated"]["finishedAt"]);
    let ended = ends.iter().find_map(|end| end.as_str()?.parse::<Timestamp>().ok());
    let pause = status["restartCount"].as_u64().map(|count| 5 << count.min(6));
    ended
        .zip(pause)
        .is_some_and(|(ended, pause)| now < ended + SignedDuration::from_secs(pause / 2))
}

/// Both hold.
pub fn both(one: impl Fn(&Value) -> bool, other: impl Fn(&Value) -> bool) -> impl Fn(&Value) -> bool {
    move |pod| one(pod) && other(pod)
}

fn all(pod: &Value, list: &str, holds: impl Fn(&Value) -> bool) -> bool {
    let statuses = pod["status"][list].as_array();
    statuses.is_some_and(|statuses| statuses.iter().all(|status| holds(&status["state"])))
}

fn status<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ]
    .iter()
    .filter_map(|list| pod["status"][list].as_array())
    .flatten()
    .find(|status| status["name"] == container)
}
