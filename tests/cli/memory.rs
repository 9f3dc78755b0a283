//! However large the objects of a node's pods are, and however many have ended there, the agent stays small.

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

/// The most memory, in MiB, of which the program itself is 12. A build for tests is several times larger, so that tests
/// count only what is no file.
pub const MOST: f64 = 64.0;
const OF_FILES: f64 = 12.0;
/// As much as a kube-apiserver takes for one object.
const LARGE: usize = 1_400_000;

/// The most memory of an agent.
pub struct Peak {
    /// All of it, in MiB.
    pub all: f64,
    /// What of it is no file.
    pub own: f64,
}

/// What was measured with terminal pods.
pub struct Terminal {
    /// The most memory.
    pub peak: Peak,
    /// Bytes that each of them takes.
    pub bytes: f64,
    /// Seconds until the object of a pod that was deleted beside them was removed.
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

/// Pods of the largest size, each by another field.
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
        // Long lists cost the server in memory most.
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
        let (place, value) = &fields[if number < fields.len() { number } else { number % 4 }];
        let mut pod = pod(&format!("large-{number}"));
        let (parent, field) = place.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value.clone();
        pod
    })
}

/// An agent that watches these pods.
async fn watching(api: &MemApiServer, cri: &ScriptedCri, pods: usize) -> Agent {
    let flags = Flags::at(api).with("cri-endpoint", cri.endpoint());
    let mut agent = Agent::start(flags.with("pods", "always"));
    agent
        .until("it watches all pods", |agent| {
            let watch = &agent.status()["watch"];
            watch["state"] == "watching" && watch["pods"] == pods
        })
        .await;
    agent
}

/// What the kernel has of the agent's memory, in MiB.
fn memory(agent: &Agent, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib: f64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024.0
}

/// The most memory of an agent that lists so many large pods and sees each of them change.
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

/// What has become of terminal pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminals {
    /// Nobody has deleted them.
    Kept,
    /// They are deleted, and a finalizer of another controller holds their objects.
    Deleted,
}

/// Terminal pods of which nothing is on the node.
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

async fn all_have_ended(agent: &mut Agent, terminals: Terminals, count: usize) {
    let counter = match terminals {
        Terminals::Kept => "kept",
        Terminals::Deleted => "finished",
    };
    let has_ended = |agent: &Agent| agent.status()["pods"][counter] == count;
    agent.until("all have ended", has_ended).await;
}

/// What so many terminal pods cost. Each is what it costs beside a tenth of them.
pub async fn evicted(terminals: Terminals, count: usize) -> Terminal {
    let (api, cri) = (api().await, ScriptedCri::start(World::new()).await);
    let few = count / 10;
    insert_terminal(&api, terminals, 0..few);
    let mut agent = watching(&api, &cri, few).await;
    all_have_ended(&mut agent, terminals, few).await;
    let before = memory(&agent, "RssAnon");
    assert_eq!(agent.terminate().await, Some(0));
    insert_terminal(&api, terminals, few..count);
    api.insert_raw(pod("web")).unwrap();
    let mut agent = watching(&api, &cri, count + 1).await;
    let mut after = 0.0;
    if terminals == Terminals::Kept {
        all_have_ended(&mut agent, terminals, count).await;
        after = memory(&agent, "RssAnon");
    }
    let began = Instant::now();
    api.admin().unwrap().delete_pod("default", "web", None).await.unwrap();
    agent.until("it is removed", |_| api.count("v1", "Pod") == count).await;
    let seconds = began.elapsed().as_secs_f64();
    if terminals == Terminals::Deleted {
        all_have_ended(&mut agent, terminals, count).await;
        after = memory(&agent, "RssAnon");
    } else {
        assert_eq!(agent.status()["counters"]["begun"], 1, "the deleted one alone");
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
async fn pods_of_the_largest_size_do_not_make_the_agent_large() {
    let Peak { all, own } = peak_with_large(20).await;
    println!("at most {all:.1} MiB, {own:.1} of them its own");
    assert!(own < MOST - OF_FILES, "{own} MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_terminal_pods_do_not_make_the_agent_large() {
    // Each deleted one takes some requests of a server that is not optimised here. The bench has thousands of these, too.
    for (terminals, count) in [(Terminals::Kept, 3_000), (Terminals::Deleted, 300)] {
        let Terminal { peak, bytes, seconds } = evicted(terminals, count).await;
        let Peak { all, own } = peak;
        println!(
            "{terminals:?}: at most {all:.1} MiB, {own:.1} of them its own, {bytes:.0} bytes each; a deleted pod took {seconds:.1} s"
        );
        assert!(own < MOST - OF_FILES, "{terminals:?}: {own} MiB");
    }
}
