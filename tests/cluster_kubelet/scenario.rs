//! One pod, how far it comes, and how its end begins: the same for the kubelet and for the agent.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use testbed::{containerd::TOOL_IMAGE, rest::Patch};

/// What is looked for in a pod's object before its end begins.
pub type Until = Box<dyn Fn(&Value) -> bool + Send + Sync>;

/// See the module's documentation.
pub struct Scenario {
    /// What it is called in the table and in the list of expected differences.
    pub name: &'static str,
    /// The object, without a namespace.
    pub pod: Value,
    /// How far it has come when its end begins.
    pub until: Until,
    /// What is written to the pod once its containers run, while a kubelet works.
    pub running: Vec<Write>,
    /// What is written to it right before its deletion.
    pub before_the_end: Vec<Write>,
    /// That its node ends it before its deletion.
    pub eviction: Option<Eviction>,
    /// How it is deleted.
    pub deletion: Deletion,
    /// A container that runs until it is told to, and then fails again and again.
    pub loops: Option<&'static str>,
    /// Its object is changed now and then until it is so far.
    pub nudged: bool,
}

/// A patch by the administrator.
#[derive(Debug, Clone)]
pub struct Write {
    /// Subresource with a slash before it, or nothing.
    pub subresource: &'static str,
    /// Of which kind.
    pub kind: Patch,
    /// The patch.
    pub patch: Value,
}

/// The end of a pod by its node: a kubelet's because a volume of the pod has outgrown its limit, the agent's because
/// somebody asks for it in the kubelet's words.
#[derive(Debug, Clone, Copy)]
pub struct Eviction {
    /// The volume.
    pub volume: &'static str,
    /// The kubelet's words.
    pub message: &'static str,
}

/// How a pod is deleted.
#[derive(Debug, Clone, Copy)]
pub enum Deletion {
    /// With the grace period of its spec.
    Plain,
    /// With this one.
    Grace(i64),
    /// By the eviction API.
    Eviction,
}

/// A scenario whose pod is to run before its end begins.
pub fn scenario(name: &'static str, pod: Value) -> Scenario {
    Scenario {
        name,
        pod,
        until: Box::new(runs),
        running: Vec::new(),
        before_the_end: Vec::new(),
        eviction: None,
        deletion: Deletion::Plain,
        loops: None,
        nudged: false,
    }
}

// === impl Scenario ===

impl Scenario {
    /// Another state that it has to come to.
    pub fn until(self, until: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        Self {
            until: Box::new(until),
            ..self
        }
    }

    /// A write once its containers run.
    pub fn when_running(mut self, subresource: &'static str, patch: Value) -> Self {
        self.running.push(Write {
            subresource,
            kind: Patch::Strategic,
            patch,
        });
        self
    }

    /// A write right before its deletion.
    pub fn before_the_end(mut self, patch: Value) -> Self {
        self.before_the_end.push(Write {
            subresource: "",
            kind: Patch::Strategic,
            patch,
        });
        self
    }

    /// One of its containers is [`in_a_loop`], and has come back at least twice.
    pub fn looping(self, container: &'static str) -> Self {
        Self {
            until: Box::new(came_back(container)),
            loops: Some(container),
            ..self
        }
    }

    /// A change of its object now and then until it is so far.
    pub fn nudged(self) -> Self {
        Self { nudged: true, ..self }
    }

    /// Its node evicts it, and it is deleted once it is over.
    pub fn evicted(mut self) -> Self {
        // A kubelet makes only what a container mounts.
        for container in self.pod["containers"].as_array_mut().into_iter().flatten() {
            container["volumeMounts"] = json!([{ "name": DATA, "mountPath": "/data" }]);
        }
        self.pod["volumes"] = json!([{ "name": DATA, "emptyDir": { "sizeLimit": "1Mi" } }]);
        Self {
            eviction: Some(Eviction {
                volume: DATA,
                // A space ends it.
                message: "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ",
            }),
            ..self
        }
    }

    /// Another way to delete it.
    pub fn deleted(self, deletion: Deletion) -> Self {
        Self { deletion, ..self }
    }
}

// === what pods are made of ===

/// Ends with this code at its signal.
pub fn ends(code: u8) -> String {
    format!("trap 'exit {code}' TERM")
}

/// The volume in which containers find the word, and the file that is the word.
pub const WORD: &str = "word";
/// A script in that volume that ends at the word, and is taken away then.
pub const VANISHES: &str = "vanishes";
const WORD_DIR: &str = "/word";
const DATA: &str = "data";

/// Ignores its signal.
pub const STUBBORN: &str = "trap '' TERM";

/// A container that runs a script, then sleeps without waking up but for its traps.
pub fn container(name: &str, script: &str) -> Value {
    command(name, &format!("{script}\nwhile :; do read -r _ <>/wait; done"))
}

/// A container that runs a script and ends with it.
pub fn command(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": TOOL_IMAGE, "command": ["sh", "-c", script] })
}

/// A container that waits for a word, and does nothing but this from then on. So all loops of a half have their long
/// pauses at the same time, and none goes round again while the half's end begins.
pub fn in_a_loop(name: &str, script: &str) -> Value {
    let script = format!("while [ ! -e {WORD_DIR}/{WORD} ]; do sleep 1; done\n{script}");
    with(command(name, &script), word_mount())
}

/// A container whose command vanishes at the word.
pub fn of_a_vanishing_command(name: &str) -> Value {
    let container = json!({ "name": name, "image": TOOL_IMAGE, "command": [format!("{WORD_DIR}/{VANISHES}")] });
    with(container, word_mount())
}

fn word_mount() -> Value {
    json!({ "volumeMounts": [{ "name": WORD, "mountPath": WORD_DIR }] })
}

/// Adds fields to an object.
pub fn with(mut object: Value, fields: Value) -> Value {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    object
}

/// As [`pod`], with little grace: some of its containers use all of it.
pub fn short(pod: Value) -> Value {
    with(pod, json!({ "terminationGracePeriodSeconds": 4 }))
}

/// A pod of these containers, with more grace than they need.
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

/// A pod that has these init containers, too.
pub fn after(init: &[Value], pod: Value) -> Value {
    with(pod, json!({ "initContainers": init }))
}

/// An init container that goes on beside the others.
pub fn sidecar(name: &str, script: &str) -> Value {
    with(container(name, script), json!({ "restartPolicy": "Always" }))
}

// === states of pods ===

/// All containers of the pod run, ordinary ones and sidecars.
pub fn runs(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && all(pod, "containerStatuses", |state| state.get("running").is_some())
}

/// The pod is in this phase.
pub fn phase(phase: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| pod["status"]["phase"] == phase
}

/// This container waits for this reason.
pub fn waits(container: &'static str, reason: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| status(pod, container).is_some_and(|status| status["state"]["waiting"]["reason"] == reason)
}

/// This container is in this state.
pub fn is(container: &'static str, state: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| status(pod, container).is_some_and(|status| !status["state"][state].is_null())
}

/// This container's status has this field.
pub fn shows(container: &'static str, field: &'static str, value: impl Into<Value>) -> impl Fn(&Value) -> bool {
    let value = value.into();
    move |pod| status(pod, container).is_some_and(|status| status[field] == value)
}

/// This container has come back at least twice, and does not run now.
pub fn came_back(container: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| {
        status(pod, container)
            .is_some_and(|status| status["restartCount"].as_u64() >= Some(2) && status["state"]["running"].is_null())
    }
}

/// This container, which has come back, has not paused for half as long as a kubelet lets it: none goes round again
/// before whatever begins now has been done. Kubelets double the pause each time, from ten seconds after the first.
pub fn pauses_for_long(container: &str, pod: &Value, now: Timestamp) -> bool {
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
