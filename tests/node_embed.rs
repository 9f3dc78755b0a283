//! A program that embeds the engine: `examples/embed.rs`. Needs root and a containerd.
#![allow(clippy::unwrap_used, reason = "also in helpers of tests a panic is how they fail")]

use std::{fs, path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use testbed::{
    containerd::{Containerd, POLITE},
    leftovers::Leftovers,
    pods::{NodeDirs, PodStarter, StartedPod},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{Instant, sleep_until, timeout},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Seconds of grace of the pod that does not obey its stop signal.
const GRACE: u64 = 15;
/// When the engine is killed.
const KILLED_AFTER: Duration = Duration::from_secs(11);

/// A pod whose hook notes in `out` that it ran.
fn pod(name: &str, grace: u64, script: &str, out: &Path) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("embed-{name}-{}", std::process::id()) },
        "spec": {
            "terminationGracePeriodSeconds": grace,
            "containers": [{
                "name": "main",
                "command": ["sh", "-c", script],
                "lifecycle": { "preStop": { "exec": { "command": ["sh", "-c", format!("echo hook >> /out/{name}")] } } },
                "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }, { "name": "out", "mountPath": "/out" }],
            }],
            "volumes": [
                { "name": "scratch", "emptyDir": { "medium": "Memory" } },
                { "name": "out", "hostPath": { "path": out } },
            ],
        },
    })
}

/// Starts the example, which `cargo test` has built beside this test.
fn embed(
    containerd: &Containerd,
    dirs: &NodeDirs,
    state: &Path,
    pods: &[StartedPod],
) -> (Child, Lines<BufReader<ChildStdout>>) {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join("embed");
    let mut command = Command::new(&program);
    command
        .arg(containerd.endpoint())
        .args([&dirs.kubelet_root])
        .arg(&dirs.cgroup_root)
        .args([&dirs.pod_logs_dir])
        .arg(state);
    for pod in pods {
        let file = state.with_file_name(pod.uid());
        fs::write(&file, serde_json::to_vec(&pod.pod).unwrap()).unwrap();
        command.arg(file);
    }
    let child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{}: {error}: cargo build --example embed", program.display()));
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<String> {
    timeout(PATIENCE, lines.next_line())
        .await
        .expect("it says nothing")
        .unwrap()
}

#[tokio::test]
async fn an_embedded_engine_that_was_killed_finishes_what_it_had_begun() {
    let containerd = Containerd::start().await.unwrap();
    let dirs = NodeDirs::create(containerd.workspace()).await.unwrap();
    let starter = PodStarter::new(&containerd, dirs);
    let dirs = starter.dirs();
    let scratch = containerd.workspace().dir();
    let (state, out) = (scratch.join("embed-state"), scratch.join("embed-out"));
    fs::create_dir(&out).unwrap();
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let pods = [pod("polite", 30, POLITE, &out), pod("stubborn", GRACE, stubborn, &out)];
    let pods = starter.start_all(&pods).await.unwrap();

    let (mut first, mut lines) = embed(&containerd, dirs, &state, &pods);
    let began = Instant::now();
    assert_eq!(line(&mut lines).await.as_deref(), Some("resumed: 0"));
    let mut planned = 0;
    // A stop signal follows the hook, so both hooks have ended. An interrupted one would run again.
    let mut awaited = vec!["default/polite term main", "default/stubborn term main"];
    while !awaited.is_empty() {
        let line = line(&mut lines).await.expect("it ended before it was killed");
        planned += usize::from(line.contains("Plan {"));
        awaited.retain(|it| *it != line);
    }
    assert_eq!(planned, 2);
    sleep_until(began + KILLED_AFTER).await;
    // By its pid, and not by a signal that it could answer.
    first.kill().await.unwrap();
    let left = Leftovers::of(dirs, containerd.cri(), pods[1].uid()).await.unwrap();
    assert!(left.has("process") && left.has("mount"), "{left}");

    let (mut second, mut lines) = embed(&containerd, dirs, &state, &pods);
    let mut said = Vec::new();
    while let Some(line) = line(&mut lines).await {
        said.push(line);
    }
    let took = began.elapsed();
    assert!(second.wait().await.unwrap().success(), "{said:#?}");
    assert_ne!(said[0], "resumed: 0", "{said:#?}");
    assert!(
        said.contains(&"default/stubborn Some(Finished)".to_owned()),
        "{said:#?}"
    );
    let left = Leftovers::of_all(dirs, containerd.cri(), pods.iter().map(StartedPod::uid))
        .await
        .unwrap();
    assert!(left.is_empty(), "{left}");
    let grace = Duration::from_secs(GRACE);
    assert!(took >= grace, "the grace period of {grace:?} took {took:?}");
    for name in ["polite", "stubborn"] {
        assert_eq!(fs::read_to_string(out.join(name)).unwrap(), "hook\n", "{name}");
    }
}
