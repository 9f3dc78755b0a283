//! `why` and `plan` beside a living kubelet: pods that hang for several reasons, each named; the agent only reads.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    mount::{MsFlags, mount},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pod_teardown::{
    explanation::{
        Explanation,
        cause::{CauseKind, Severity, SigtermDisposition},
    },
    ops::{
        admin::{plan, why},
        client,
    },
    teardown::plan::{Plan, PlannedAction},
};
use serde_json::{Value, json};
use testbed::{containerd::POLITE, mounts::Mounted, wait::eventually};

use crate::{
    in_progress::{MountHolder, memory, spec},
    pods::{DEAF, container},
    scene::{AGENT, Scene},
};

const START: Duration = Duration::from_secs(180);
const HANG: Duration = Duration::from_secs(60);
/// Long enough for the whole test.
const LONG_GRACE: u64 = 600;
const DRIVER: &str = "csi.missing.example.com";

/// A frozen cgroup, thawed on drop.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(cgroup: &Path) -> Result<Self> {
        let (v2, v1) = (cgroup.join("cgroup.freeze"), cgroup.join("freezer.state"));
        if v2.exists() {
            fs::write(v2, "1")?;
        } else {
            fs::write(v1, "FROZEN")?;
        }
        Ok(Self(cgroup.to_owned()))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        fs::write(self.0.join("cgroup.freeze"), "0").ok();
        fs::write(self.0.join("freezer.state"), "THAWED").ok();
    }
}

/// What the API server, the runtime and the node show of a pod.
async fn shown(scene: &Scene, name: &str, uid: &str) -> Result<(Value, Vec<String>)> {
    let mut pod = scene.pods().await?[name].clone();
    // The kubelet may report it at any time, and delete it finally.
    pod["status"] = Value::Null;
    for field in [
        "resourceVersion",
        "managedFields",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        pod["metadata"][field] = Value::Null;
    }
    let mut paths = Vec::new();
    let mut next = vec![scene.stage.starter.dirs().pods().join(uid)];
    while let Some(dir) = next.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            // An atomic writer renews its directories.
            paths.push(entry.path().display().to_string());
            if entry.file_type()?.is_dir() && !entry.file_name().to_string_lossy().starts_with("..") {
                next.push(entry.path());
            }
        }
    }
    // The kubelet removes other directories of terminated pods at any time.
    paths.retain(|path| !path.contains("/..") && path.contains("/volumes/"));
    paths.sort();
    Ok((pod, paths))
}

/// The texts that a user sees.
fn transcript(scene: &Scene, arguments: &[&str]) -> Result<String> {
    let output = Command::new(AGENT)
        .args(arguments)
        .arg("--socket")
        .arg(scene.socket())
        .stdin(Stdio::null())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(format!("# pod-teardown {}\n{text}\n", arguments.join(" ")))
}

async fn explain(scene: &Scene, name: &str) -> Result<Explanation> {
    let path = why::request_path(&format!("default/{name}"));
    Ok(client::get(&scene.socket(), &path).await?)
}

/// The cgroup of the pod with a freezer.
fn cgroup_of(uid: &str) -> Result<PathBuf> {
    let names = [format!("pod{uid}"), format!("pod{}.slice", uid.replace('-', "_"))];
    let mut next = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = next.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let freezes = path.join("cgroup.freeze").exists() || path.join("freezer.state").exists();
            if freezes && names.iter().any(|wanted| name.ends_with(wanted.as_str())) {
                return Ok(path);
            }
            next.push(path);
        }
    }
    anyhow::bail!("no cgroup of {uid}")
}

/// PIDs in the cgroup and below it.
fn processes(cgroup: &Path) -> Vec<i32> {
    let mut pids = Vec::new();
    let mut next = vec![cgroup.to_owned()];
    while let Some(dir) = next.pop() {
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        pids.extend(procs.lines().filter_map(|line| line.parse::<i32>().ok()));
        let below = fs::read_dir(&dir).into_iter().flatten().flatten();
        next.extend(below.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    pids
}

type IsCause = fn(&CauseKind) -> bool;

/// Runs the test.
pub async fn run() -> Result<()> {
    // Long: the kubelet lives to the end.
    let scene = Scene::start("1h").await?;
    let mut no_handler = container("main", "");
    no_handler["command"] = json!(["sleep", "100000"]);
    let mut busy = spec(1, &[container("main", POLITE)]);
    (busy["volumes"], busy["containers"][0]["volumeMounts"]) = memory(&["busy"]);
    let pods = [
        ("deaf", spec(LONG_GRACE, &[container("main", DEAF)])),
        ("no-handler", spec(LONG_GRACE, &[no_handler])),
        ("frozen", spec(LONG_GRACE, &[container("main", POLITE)])),
        ("busy", busy),
        ("finalizer", spec(1, &[container("main", POLITE)])),
        ("no-driver", spec(1, &[container("main", POLITE)])),
        ("living", spec(1, &[container("main", POLITE)])),
    ];
    let mut uids = BTreeMap::new();
    for (name, spec) in pods {
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
        if name == "finalizer" {
            pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
        }
        uids.insert(name.to_owned(), scene.create(pod).await?);
    }
    for name in uids.keys() {
        let runs = async || Ok((scene.pods().await?[name]["status"]["phase"] == "Running").then_some(()));
        eventually(START, &format!("{name} to run"), runs).await?;
    }

    // Everything that holds them.
    let pod_dir = |name: &str| scene.stage.starter.dirs().pods().join(&uids[name]);
    let frozen = Frozen::freeze(&cgroup_of(&uids["frozen"])?)?;
    let holder = MountHolder::of(&pod_dir("busy").join("volumes/kubernetes.io~empty-dir/busy"))?;
    let volume = pod_dir("no-driver").join("volumes/kubernetes.io~csi/pv-1");
    fs::create_dir_all(volume.join("mount"))?;
    let data = json!({ "driverName": DRIVER, "volumeHandle": "vol-1", "specVolID": "pv-1", "volumeLifecycleMode": "Persistent" });
    fs::write(volume.join("vol_data.json"), data.to_string())?;
    mount(
        Some("tmpfs"),
        &volume.join("mount"),
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )?;
    let mounted = Mounted(volume.join("mount"));
    for name in uids.keys().filter(|name| *name != "living") {
        scene.delete(name, None).await?;
    }

    let is: [(&str, Severity, IsCause); 7] = [
        (
            "deaf",
            Severity::Waiting,
            |kind| matches!(kind, CauseKind::SigtermNotHandled { how: SigtermDisposition::Ignored, container, .. } if container == "main"),
        ),
        ("no-handler", Severity::Waiting, |kind| {
            let how = SigtermDisposition::InitWithoutHandler;
            matches!(kind, CauseKind::SigtermNotHandled { how: found, process, .. } if *found == how && process.command == "sleep")
        }),
        ("frozen", Severity::Blocking, |kind| {
            matches!(kind, CauseKind::Frozen { .. })
        }),
        (
            "busy",
            Severity::Blocking,
            |kind| matches!(kind, CauseKind::MountBusy { holders, .. } if holders.iter().any(|it| it.command == "sleep")),
        ),
        (
            "finalizer",
            Severity::Blocking,
            |kind| matches!(kind, CauseKind::Finalizer { finalizer, .. } if finalizer == "example.com/hold"),
        ),
        (
            "no-driver",
            Severity::Blocking,
            |kind| matches!(kind, CauseKind::DriverMissing { driver, needed_by, .. } if driver == DRIVER && needed_by.contains("pv-1")),
        ),
        ("living", Severity::Info, |kind| {
            matches!(kind, CauseKind::NotDeleted { running: Some(1), .. })
        }),
    ];
    for (name, severity, is_cause) in is {
        let named = async || {
            let why = explain(&scene, name).await?;
            let found = why
                .causes
                .iter()
                .any(|cause| cause.severity == severity && is_cause(&cause.kind));
            Ok(found.then_some(()))
        };
        let found = eventually(HANG, &format!("why names what holds {name}"), named).await;
        if found.is_err() {
            eprintln!("{:#?}", explain(&scene, name).await?);
        }
        found?;
    }
    let pid = i32::try_from(holder.pid())?;
    let names_holder = |kind: &CauseKind| matches!(kind, CauseKind::MountBusy { holders, .. } if holders.iter().any(|it| it.pid == pid));
    // A search for holders has a time limit, within which a busy machine may not read all processes.
    let named = async || {
        let busy = explain(&scene, "busy").await?;
        Ok(busy.causes.iter().any(|cause| names_holder(&cause.kind)).then_some(()))
    };
    eventually(HANG, "why names the holder", named).await?;

    // The pods as they hang, before and after.
    let mut before = BTreeMap::new();
    for (name, uid) in &uids {
        before.insert(name, shown(&scene, name, uid).await?);
    }
    let mut text = String::new();
    for (name, uid) in &uids {
        let pod = format!("default/{name}");
        text += &transcript(&scene, &["why", &pod])?;
        text += &transcript(&scene, &["plan", &pod])?;
        let path = plan::request_path(&pod);
        let has_stop = |plan: &Plan| {
            let mut actions = plan.actions();
            actions.any(|(_, action)| matches!(action, PlannedAction::StopContainer { .. }))
        };
        let runs = ["deaf", "no-handler", "frozen", "living"].contains(&&**name);
        let complete = async || {
            let plan: Plan = client::get(&scene.socket(), &path).await?;
            Ok(Some(plan).filter(|plan| plan.unknown.is_empty() && has_stop(plan) == runs))
        };
        // Facts are read within a time limit, and containers that exit may still do so.
        let plan = eventually(HANG, &format!("a complete plan of {name}"), complete).await;
        if plan.is_err() {
            eprintln!("{}", transcript(&scene, &["plan", &pod])?);
        }
        let plan = plan?;
        ensure!(plan.blocked.iter().any(|why| why.contains("kubelet")), "{plan:#?}");
        ensure!(plan.is_deleted == (name != "living"), "{plan:#?}");
        let has = |wanted: &dyn Fn(&PlannedAction) -> bool| plan.actions().any(|(_, action)| wanted(action));
        ensure!(
            has(&|action| matches!(action, PlannedAction::DeleteObject { uid: of, .. } if of == uid)),
            "{plan:#?}"
        );
        if name == "no-driver" {
            let unpublishes = |action: &PlannedAction| {
                matches!(action, PlannedAction::UnpublishVolume { driver: Some(driver), handle: Some(handle), .. }
                    if driver == DRIVER && handle == "vol-1")
            };
            ensure!(has(&unpublishes), "{plan:#?}");
        }
        if name == "busy" {
            let unmounts = |action: &PlannedAction| matches!(action, PlannedAction::Unmount { path, .. } if path.ends_with("/busy"));
            ensure!(has(&unmounts), "{plan:#?}");
        }
    }
    for (name, uid) in &uids {
        let after = shown(&scene, name, uid).await?;
        ensure!(
            after == before[name],
            "{name} has changed: {:?} {after:?}",
            before[name]
        );
    }
    eprintln!("{text}");

    let reads = scene.agent_methods();
    let is_read = |method: &String| {
        method.starts_with("List")
            || method.starts_with("Stream")
            || method.ends_with("Status")
            || ["Version", "RuntimeConfig", "GetContainerEvents"].contains(&&**method)
    };
    eprintln!("methods that the agent has called: {reads:?}");
    ensure!(reads.iter().all(is_read), "{reads:?}");
    for method in ["Status", "ListPodSandbox", "ListContainers", "ContainerStatus"] {
        ensure!(reads.iter().any(|it| it == method), "no {method}: {reads:?}");
    }
    let writes = scene.agent_writes()?;
    ensure!(writes.is_empty(), "the agent has written: {writes:?}");

    // The end: what holds them is removed.
    drop((frozen, holder, mounted));
    fs::remove_dir_all(&volume).context("remove the volume of the missing driver")?;
    let path = "/api/v1/namespaces/default/pods/finalizer";
    let none = json!({ "metadata": { "finalizers": null } });
    scene
        .stage
        .admin
        .patch(path, testbed::rest::Patch::Merge, &none)
        .await?
        .ok()?;
    scene.delete("living", None).await?;
    // The kubelet waits for the end of a StopContainer with the first grace period, whatever a later deletion says.
    for uid in ["deaf", "no-handler"].map(|name| &uids[name]) {
        for pid in processes(&cgroup_of(uid)?) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
    let gone = async || Ok(scene.pods().await?.is_empty().then_some(()));
    let all_gone = eventually(START, "the kubelet to terminate all pods", gone).await;
    if all_gone.is_err() {
        for name in scene.pods().await?.keys() {
            eprintln!("{}", transcript(&scene, &["why", &format!("default/{name}")])?);
        }
    }
    all_gone
}
