//! The private containerd, the pod starter and the search for leftovers. Needs root and a containerd.
#![allow(clippy::unwrap_used, reason = "also in helpers of tests a panic is how they fail")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
async fn a_status_says_what_runs() {
    let (_containerd, starter) = node().await;
    let mut object = full_pod();
    object["spec"]["initContainers"] = json!([
        {"name": "before", "command": ["true"]},
        {"name": "beside", "command": ["sh", "-c", POLITE], "restartPolicy": "Always"},
    ]);
    let started = starter.start(&object).await.unwrap();
    let order: Vec<&str> = started.containers.keys().map(String::as_str).collect();
    assert_eq!(order, ["before", "beside", "one", "two", "three"]);
    let status = starter.status_of(&started).await.unwrap();
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(status["podIP"].as_str(), started.ip.as_deref());
    let before = &status["initContainerStatuses"][0];
    assert_eq!(before["state"]["terminated"]["reason"], "Completed", "{before:#}");
    assert_eq!(before["ready"], true);
    let three = &status["containerStatuses"][2];
    assert_eq!(
        three["containerID"],
        format!("containerd://{}", started.containers["three"])
    );
    assert!(three["state"]["running"]["startedAt"].is_string(), "{three:#}");
    assert!(three["imageID"].as_str().unwrap().starts_with("sha256:"), "{three:#}");
}

#[tokio::test]
async fn a_pod_can_be_reached_from_the_machine() {
    let (_containerd, starter) = node().await;
    let serve = json!({"containers": [{"name": "c", "command": ["sh", "-c", "echo hello | nc -l -p 8080"]}]});
    let started = starter.start(&pod("server", &serve)).await.unwrap();
    let address = format!("{}:8080", started.ip.clone().unwrap());
    let begin = Instant::now();
    let mut stream = loop {
        match tokio::net::TcpStream::connect(&address).await {
            Ok(stream) => break stream,
            Err(error) if begin.elapsed() > PATIENCE => panic!("{address}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text)
        .await
        .unwrap();
    assert_eq!(text, "hello\n");
}

#[tokio::test]
async fn pods_live_on_while_containerd_is_away() {
    let (mut containerd, starter) = node().await;
    let started = starter.start(&full_pod()).await.unwrap();
    containerd.kill();
    assert!(starter.exec(&started, "one", &["true"]).await.is_err());
    containerd.restart().await.unwrap();
    let said = starter.exec(&started, "one", &["true"]).await.unwrap();
    assert_eq!(said.exit_code, 0);
    let status = starter.status_of(&started).await.unwrap();
    assert!(
        status["containerStatuses"][0]["state"]["running"].is_object(),
        "{status:#}"
    );
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
async fn a_containerd_dropped_by_a_panic_leaves_nothing() {
    let (sender, place) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let (containerd, starter) = node().await;
        // Dead, too: no process stops its pods.
        let mut containerd = containerd;
        starter.start(&full_pod()).await.unwrap();
        containerd.kill();
        sender
            .send((
                containerd.workspace().id().to_owned(),
                containerd.workspace().dir().to_owned(),
            ))
            .unwrap();
        panic!("on purpose");
    });
    let (id, dir) = place.await.unwrap();
    assert!(task.await.unwrap_err().is_panic());
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
async fn two_instances_live_side_by_side() {
    let ((first, first_starter), (second, second_starter)) = tokio::join!(node(), node());
    let object = full_pod();
    let (of_first, of_second) = tokio::try_join!(first_starter.start(&object), second_starter.start(&object)).unwrap();
    assert_ne!(of_first.ip, of_second.ip);
    first.stop().await.unwrap();
    let said = second_starter.exec(&of_second, "one", &["true"]).await.unwrap();
    assert_eq!(said.exit_code, 0, "the second one outlives the first");
    second.stop().await.unwrap();
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

/// A process that is killed on drop.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Runs [`victim`] in a separate process until its pod runs, then kills it; returns its directory.
async fn kill_a_run(before: impl FnOnce(&Path)) -> std::path::PathBuf {
    let scratch = tempfile::tempdir().unwrap();
    let report = scratch.path().join("report");
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "victim"])
        .env(VICTIM, &report)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let run = Run(run);
    let begin = Instant::now();
    let dir = loop {
        match std::fs::read_to_string(&report) {
            Ok(text) if !text.is_empty() => break std::path::PathBuf::from(text),
            _ if begin.elapsed() > PATIENCE => panic!("the victim has not started its pod"),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    before(&dir);
    drop(run);
    dir
}

#[tokio::test]
async fn a_killed_run_is_cleaned_up_behind() {
    let dir = kill_a_run(|_| ()).await;
    let id = dir.file_name().unwrap().to_str().unwrap();
    no_trace_within(Duration::from_secs(30), id, &dir).await;
}

async fn no_trace_within(time: Duration, id: &str, dir: &Path) {
    let begin = Instant::now();
    loop {
        let left = traces(id, dir);
        if left.is_empty() {
            return;
        }
        assert!(begin.elapsed() < time, "{left:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
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
async fn fifty_pods_start_and_go() {
    let (containerd, starter) = node().await;
    let spec = json!({
        "containers": containers(&["c"]),
        "volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}],
    });
    let pods: Vec<Value> = (0..50).map(|nth| pod(&format!("p{nth}"), &spec)).collect();
    let begin = Instant::now();
    let started = starter.start_all(&pods).await.unwrap();
    eprintln!("start: {:?}", begin.elapsed());
    let times = direct_calls::teardown(containerd.cri(), &started, Duration::from_secs(5))
        .await
        .unwrap();
    eprintln!("direct calls: {:?}", times.total);
    assert!(times.pods.iter().all(|pod| *pod <= times.total));
    let begin = Instant::now();
    starter.clear_all_away(&started).await.unwrap();
    eprintln!("clear: {:?}", begin.elapsed());
    let begin = Instant::now();
    let uids = started.iter().map(|pod| pod.uid());
    let left = Leftovers::of_all(starter.dirs(), containerd.cri(), uids).await.unwrap();
    assert!(left.is_empty(), "{left}");
    eprintln!("look: {:?}", begin.elapsed());
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
