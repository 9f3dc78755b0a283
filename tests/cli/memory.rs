//! The agent's memory is limited for large and for many terminal pods.

use std::{fs, ops::Range};

use serde_json::{Value, json};
use testbed::{
    api::ApiServer as _,
    apiserver::MemApiServer,
    rest::Patch,
    scripted_cri::{ScriptedCri, World},
};
use tokio::time::Instant;

use crate::{
    command::{Flags, NODE},
    run::{Agent, api},
};

/// Memory limit in MiB. Tests count only memory that is not mapped from files, because a test build of the program is several
/// times larger.
pub const LIMIT: f64 = 64.0;
/// Mapped files of the release build, in MiB.
const MAPPED_FILES: f64 = 12.0;
/// Maximum size of an object that kube-apiserver accepts, in bytes.
const LARGE: usize = 1_400_000;

/// Peak memory of an agent.
pub struct Peak {
    /// Total, in MiB.
    pub all: f64,
    /// Without mapped files, in MiB.
    pub own: f64,
}

/// A measurement with terminal pods.
pub struct Terminal {
    /// Peak memory.
    pub peak: Peak,
    /// Bytes per pod.
    pub bytes: f64,
    /// Seconds to take down another pod meanwhile.
    pub seconds: f64,
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "nodeName": NODE, "containers": [{ "name": "main", "image": "registry.test/busybox:1" }] },
        "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z" },
    })
}

/// Pods of the maximum size, each with another large field.
fn large(count: usize) -> impl Iterator<Item = Value> {
    let list = |element: &dyn Fn(usize) -> Value| -> Value {
        let length = element(0).to_string().len() + 1;
        (0..LARGE / length).map(element).collect()
    };
    let fields: [(&str, Value); 6] = [
        (
            "/spec/containers/0/env",
            list(&|at| json!({ "name": format!("VARIABLE_{at:06}"), "value": "x".repeat(1000) })),
        ),
        ("/spec/containers/0/command", json!(["x".repeat(LARGE)])),
        ("/metadata/annotations", json!({ "a": "<".repeat(LARGE) })),
        (
            "/metadata/managedFields",
            json!([{ "manager": "m", "fieldsV1": { "f": "x".repeat(LARGE) } }]),
        ),
        // Long lists take the most memory of the in-memory server.
        (
            "/spec/volumes",
            list(&|at| json!({ "name": format!("volume-{at:06}"), "emptyDir": {} })),
        ),
        (
            "/spec/containers",
            list(&|at| json!({ "name": format!("container-{at:06}"), "image": "x".repeat(100) })),
        ),
    ];
    (0..count).map(move |number| {
        let (pointer, value) = &fields[if number < fields.len() { number } else { number % 4 }];
        let mut pod = pod(&format!("large-{number}"));
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value.clone();
        pod
    })
}

/// Starts an agent, and waits until it watches the pods.
async fn watching(api: &MemApiServer, cri: &ScriptedCri, pods: usize) -> Agent {
    let flags = Flags::for_server(api).with("cri-endpoint", cri.endpoint());
    let mut agent = Agent::start(flags.with("mode", "always"));
    agent
        .until("it watches all pods", |agent| {
            let watch = &agent.status()["watch"];
            watch["state"] == "watching" && watch["pods"] == pods
        })
        .await;
    agent
}

/// A memory field of `/proc/PID/status`, in MiB.
fn memory(agent: &Agent, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib: f64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024.0
}

/// Peak memory of an agent that lists `count` large pods and observes a change of each.
pub async fn peak_with_large(count: usize) -> Peak {
    let (api, cri) = (api().await, ScriptedCri::start(World::new()).await);
    large(count).for_each(|pod| api.insert_raw(pod).unwrap());
    let mut agent = watching(&api, &cri, count).await;
    let admin = api.admin().unwrap();
    for number in 0..count {
        let path = format!("/api/v1/namespaces/default/pods/large-{number}");
        let label = json!({ "metadata": { "labels": { "changed": "yes" } } });
        admin.patch(&path, Patch::Merge, &label).await.unwrap().ok().unwrap();
    }
    api.insert_raw(pod("last")).unwrap();
    agent
        .until("it has seen the last change", |agent| {
            agent.status()["watch"]["pods"] == count + 1
        })
        .await;
    let peak = Peak::of(&agent);
    assert_eq!(agent.terminate().await, Some(0));
    peak
}

/// State of the terminal pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminals {
    /// Not deleted.
    Kept,
    /// Deleted, with a finalizer of another controller.
    Deleted,
}

/// Creates terminal pods without anything on the node.
fn insert_terminal(api: &MemApiServer, terminals: Terminals, numbers: Range<usize>) {
    for number in numbers {
        let mut pod = pod(&format!("evicted-{number:05}"));
        pod["metadata"]["uid"] = format!("0f1e2d3c-4b5a-6978-8796-a5b4c3{number:06}").into();
        pod["status"] =
            json!({ "phase": "Failed", "reason": "Evicted", "message": "The node had condition: [DiskPressure]." });
        if terminals == Terminals::Deleted {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        }
        api.insert_raw(pod).unwrap();
    }
}

async fn wait_for_all(agent: &mut Agent, terminals: Terminals, count: usize) {
    let counter = match terminals {
        Terminals::Kept => "awaitingDeletion",
        Terminals::Deleted => "awaitingFinalizers",
    };
    let is_done = |agent: &Agent| agent.status()["pods"][counter] == count;
    agent.until("all pods are processed", is_done).await;
}

/// Measures `count` terminal pods. The memory per pod is the difference to a tenth of them.
pub async fn evicted(terminals: Terminals, count: usize) -> Terminal {
    let (api, cri) = (api().await, ScriptedCri::start(World::new()).await);
    let few = count / 10;
    insert_terminal(&api, terminals, 0..few);
    let mut agent = watching(&api, &cri, few).await;
    wait_for_all(&mut agent, terminals, few).await;
    let before = memory(&agent, "RssAnon");
    assert_eq!(agent.terminate().await, Some(0));
    insert_terminal(&api, terminals, few..count);
    api.insert_raw(pod("web")).unwrap();
    let mut agent = watching(&api, &cri, count + 1).await;
    let mut after = 0.0;
    if terminals == Terminals::Kept {
        wait_for_all(&mut agent, terminals, count).await;
        after = memory(&agent, "RssAnon");
    }
    let began = Instant::now();
    api.admin().unwrap().delete_pod("default", "web", None).await.unwrap();
    agent.until("it is removed", |_| api.count("v1", "Pod") == count).await;
    let seconds = began.elapsed().as_secs_f64();
    if terminals == Terminals::Deleted {
        wait_for_all(&mut agent, terminals, count).await;
        after = memory(&agent, "RssAnon");
    } else {
        assert_eq!(agent.status()["counters"]["started"], 1, "only the deleted pod");
    }
    let peak = Peak::of(&agent);
    assert_eq!(agent.terminate().await, Some(0));
    #[allow(clippy::cast_precision_loss, reason = "pods on one node are few")]
    let bytes = (after - before) * 1024.0 * 1024.0 / (count - few) as f64;
    Terminal { peak, bytes, seconds }
}

// === impl Peak ===

impl Peak {
    fn of(agent: &Agent) -> Self {
        let all = memory(agent, "VmHWM");
        Self {
            all,
            own: all - memory(agent, "RssFile"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_limited_with_pods_of_the_maximum_size() {
    let Peak { all, own } = peak_with_large(20).await;
    println!("at most {all:.1} MiB, {own:.1} of them its own");
    assert!(own < LIMIT - MAPPED_FILES, "{own} MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_limited_with_thousands_of_terminal_pods() {
    // Deleted pods need several requests to a server built without optimization. The benchmark uses thousands.
    for (terminals, count) in [(Terminals::Kept, 3_000), (Terminals::Deleted, 300)] {
        let Terminal { peak, bytes, seconds } = evicted(terminals, count).await;
        let Peak { all, own } = peak;
        println!(
            "{terminals:?}: at most {all:.1} MiB, {own:.1} of them its own, {bytes:.0} bytes each; a deleted pod took {seconds:.1} s"
        );
        assert!(own < LIMIT - MAPPED_FILES, "{terminals:?}: {own} MiB");
    }
}
