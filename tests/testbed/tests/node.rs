//! The private containerd, the pod starter and the search for leftovers. Needs root and a containerd.
#![allow(clippy::unwrap_used, reason = "also in helpers of tests a panic is how they fail")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testbed::containerd::{Containerd, POLITE};
use testbed::leftovers::Leftovers;
use testbed::pods::{NodeDirs, PodStarter};
use testbed::recorder::mounts::{Change, MountRecorder};
use testbed::workspace::Workspace;
use testbed::{cgroups, direct_calls, mounts, wait};

/// Where [`victim`] reports its pod's workspace.
const VICTIM: &str = "TESTBED_VICTIM";
/// Longest wait on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn containers(names: &[&str]) -> Value {
    let one = |name: &&str| json!({"name": name, "command": ["sh", "-c", format!("echo up; {POLITE}")]});
    names.iter().map(one).collect()
}

fn pod(name: &str, spec: &Value) -> Value {
    let uid = uuid::Uuid::new_v4().to_string();
    json!({"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": spec})
}

/// Three containers, of which the first one sees a volume in memory and a projected one.
fn full_pod() -> Value {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 5,
        "containers": containers(&["one", "two", "three"]),
        "volumes": [
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            {"name": "settings", "configMap": {"name": "settings"}},
        ],
    });
    spec["containers"][0]["volumeMounts"] = json!([
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "token", "mountPath": "/token", "readOnly": true},
        {"name": "settings", "mountPath": "/settings"},
        {"name": "scratch", "mountPath": "/part", "subPath": "part"},
    ]);
    pod("full", &spec)
}

async fn node() -> (Containerd, PodStarter) {
    let containerd = Containerd::start().await.unwrap();
    let dirs = NodeDirs::create(containerd.workspace()).await.unwrap();
    let starter = PodStarter::new(&containerd, dirs);
    (containerd, starter)
}

/// Everything on the machine with the name of a workspace.
fn traces(id: &str, dir: &Path) -> Vec<String> {
    let mut traces: Vec<String> = mounts::below(dir)
        .unwrap()
        .iter()
        .map(|it| format!("mount {}", it.display()))
        .collect();
    traces.extend(
        cgroups::find(|name| name == id)
            .unwrap()
            .iter()
            .map(|it| format!("cgroup {}", it.display())),
    );
    for process in procfs::process::all_processes().unwrap().flatten() {
        let words = process.cmdline().unwrap_or_default();
        if words.iter().any(|word| word.contains(id)) && process.pid != std::process::id().cast_signed() {
            traces.push(format!("process {} {words:?}", process.pid));
        }
    }
    for path in [dir.to_owned(), Path::new("/sys/class/net").join(id)] {
        traces.extend(path.exists().then(|| path.display().to_string()));
    }
    for entry in std::fs::read_dir("/var/lib/cni/results")
        .into_iter()
        .flatten()
        .flatten()
    {
        traces.extend(
            entry
                .file_name()
                .to_string_lossy()
                .starts_with(id)
                .then(|| format!("{:?}", entry.path())),
        );
    }
    traces
}

#[tokio::test]
async fn a_started_pod_is_what_a_kubelet_would_have_left() {
    let (containerd, starter) = node().await;
    let started = starter.start(&full_pod()).await.unwrap();
    let dirs = starter.dirs();

    let said = starter
        .exec(&started, "one", &["cat", "/token/token", "/settings/data"])
        .await
        .unwrap();
    assert_eq!(
        (said.exit_code, said.stdout.as_str()),
        (0, "content of token\ncontent of data\n")
    );
    let said = starter
        .exec(&started, "one", &["sh", "-c", "df /scratch | grep tmpfs"])
        .await
        .unwrap();
    assert_eq!(said.exit_code, 0, "{said:?}");
    let said = starter
        .exec(&started, "two", &["sh", "-c", "echo bye >/dev/termination-log; exit 3"])
        .await
        .unwrap();
    assert_eq!(said.exit_code, 3);
    let last_words = std::fs::read_dir(started.dir.join("containers/two"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(std::fs::read_to_string(last_words.path()).unwrap(), "bye\n");

    // containerd copies the output later.
    wait::eventually(PATIENCE, "the container's output", async || {
        let log = std::fs::read_to_string(started.logs.join("one/0.log")).unwrap_or_default();
        Ok(log.contains("up").then_some(()))
    })
    .await
    .unwrap();
    let data = std::fs::read_link(started.volumes["settings"].join("data")).unwrap();
    assert_eq!(data, Path::new("..data/data"));
    assert!(
        started
            .dir
            .join("plugins/kubernetes.io~empty-dir/wrapped_token/ready")
            .is_file()
    );
    for root in cgroups::hierarchies().unwrap() {
        let dir = root.join(started.cgroup.trim_start_matches('/'));
        assert!(dir.is_dir(), "{}", dir.display());
        assert!(
            cgroups::processes(&dir).len() >= 4,
            "{}: a sandbox and three containers",
            dir.display()
        );
    }

    let left = Leftovers::of(dirs, containerd.cri(), started.uid()).await.unwrap();
    for kind in ["container", "sandbox", "mount", "cgroup", "process", "directory"] {
        assert!(left.has(kind), "{kind} is not among:\n{left}");
    }

    direct_calls::teardown(containerd.cri(), std::slice::from_ref(&started), Duration::from_secs(5))
        .await
        .unwrap();
    let left = Leftovers::of(dirs, containerd.cri(), started.uid()).await.unwrap();
    assert!(!left.has("process"), "{left}");
    assert!(
        left.has("mount") && left.has("cgroup"),
        "direct calls leave what is the kubelet's:\n{left}"
    );
    starter.clear_away(&started).await.unwrap();
    let left = Leftovers::of(dirs, containerd.cri(), started.uid()).await.unwrap();
    assert!(left.is_empty(), "{left}");
    containerd.stop().await.unwrap();
}

#[tokio::test]
async fn a_dropped_containerd_leaves_nothing() {
    let (containerd, starter) = node().await;
    starter.start(&full_pod()).await.unwrap();
    let (id, dir) = (
        containerd.workspace().id().to_owned(),
        containerd.workspace().dir().to_owned(),
    );
    let before = traces(&id, &dir);
    for kind in ["mount ", "cgroup ", "process ", "/sys/class/net"] {
        assert!(
            before.iter().any(|trace| trace.starts_with(kind)),
            "no {kind} in {before:#?}"
        );
    }
    drop(containerd);
    let after = traces(&id, &dir);
    assert!(after.is_empty(), "{after:#?}");
}

#[tokio::test]
async fn a_frozen_pod_does_not_keep_a_containerd_from_going() {
    let (containerd, starter) = node().await;
    let started = starter.start(&full_pod()).await.unwrap();
    cgroups::freeze(&started.cgroup).unwrap();
    containerd.stop().await.unwrap();
}

#[tokio::test]
#[ignore = "no test of its own: started and killed by those of killed runs"]
async fn victim() {
    let report = std::env::var_os(VICTIM).unwrap();
    let (containerd, starter) = node().await;
    starter.start(&full_pod()).await.unwrap();
    std::fs::write(report, containerd.workspace().dir().as_os_str().as_encoded_bytes()).unwrap();
    // It exits by itself if its killer was killed.
    tokio::time::sleep(Duration::from_secs(120)).await;
}

/// Runs [`victim`] in a separate process until its pod runs, then kills it; returns its directory.
async fn kill_a_run(before: impl FnOnce(&Path)) -> PathBuf {
    let scratch = tempfile::tempdir().unwrap();
    let report = scratch.path().join("report");
    let mut run = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "victim"])
        .env(VICTIM, &report)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let started = wait::eventually(PATIENCE, "the victim's pod", async || {
        let text = std::fs::read_to_string(&report).unwrap_or_default();
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    });
    let dir = started.await.unwrap();
    before(&dir);
    run.kill().await.unwrap();
    dir
}

#[tokio::test]
async fn a_killed_run_is_cleaned_up_behind() {
    let dir = kill_a_run(|_| ()).await;
    let id = dir.file_name().unwrap().to_str().unwrap();
    no_trace_within(Duration::from_secs(30), id, &dir).await;
}

async fn no_trace_within(time: Duration, id: &str, dir: &Path) {
    let none = wait::until_ok(time, async || {
        let left = traces(id, dir);
        anyhow::ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    });
    none.await.unwrap();
}

#[tokio::test]
async fn the_leftovers_of_a_killed_run_are_swept() {
    let dir = kill_a_run(kill_watchdog).await;
    let id = dir.file_name().unwrap().to_str().unwrap();
    assert!(
        traces(id, &dir).iter().any(|trace| trace.starts_with("process ")),
        "nothing is left to sweep"
    );
    Workspace::sweep().unwrap();
    // Another test may remove leftovers at the same time.
    no_trace_within(Duration::from_secs(30), id, &dir).await;
}

fn kill_watchdog(dir: &Path) {
    let watchdog = procfs::process::all_processes().unwrap().flatten().find(|process| {
        let words = process.cmdline().unwrap_or_default();
        words.first().is_some_and(|word| word == "sh") && words.last().is_some_and(|word| Path::new(word) == dir)
    });
    let pid = nix::unistd::Pid::from_raw(watchdog.unwrap().pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_mount_from_another_namespace_is_heard_with_the_process_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let (shared, aside) = (dir.path().join("shared"), dir.path().join("aside"));
    for at in [&shared.join("volume"), &aside] {
        std::fs::create_dir_all(at).unwrap();
    }
    // Always unmount.
    struct Clean<'a>(&'a Path);
    impl Drop for Clean<'_> {
        fn drop(&mut self) {
            mounts::detach_below(self.0).unwrap();
        }
    }
    let _clean = Clean(dir.path());
    mounts::share(&shared).unwrap();
    let recorder = MountRecorder::start(&shared).unwrap();
    mounts::tmpfs(&aside, None).unwrap();
    let volume = shared.join("volume");
    let unshare = [
        "--mount",
        "--propagation",
        "unchanged",
        "mount",
        "-t",
        "tmpfs",
        "volume",
    ];
    let mut other = Command::new("unshare").args(unshare).arg(&volume).spawn().unwrap();
    assert!(other.wait().unwrap().success());
    // Its path is read only while it is mounted.
    changes(&recorder, 1).await;
    mounts::detach_below(&volume).unwrap();
    changes(&recorder, 2).await;
    let heard = recorder.heard().unwrap();
    let heard: Vec<_> = heard.iter().map(|it| (it.change, it.by.pid, &*it.point)).collect();
    let (its, ours) = (other.id().cast_signed(), std::process::id().cast_signed());
    assert_eq!(
        heard,
        [(Change::Mount, its, &*volume), (Change::Unmount, ours, &*volume)]
    );
}

/// Waits until this many changes were heard.
async fn changes(recorder: &MountRecorder, number: usize) {
    wait::eventually(Duration::from_secs(20), "a change of mounts", async || {
        Ok((recorder.heard()?.len() >= number).then_some(()))
    })
    .await
    .unwrap();
}
