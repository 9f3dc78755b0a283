//! `why` and `plan` beside a living kubelet: pods that hang for several reasons, each named; the agent only reads.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
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
        cause::{Cause, CauseKind, Severity},
    },
    ops::{
        admin::{plan, why},
        client,
    },
    teardown::plan::{Plan, PlannedAction},
};
use serde_json::{Value, json};
use testbed::{
    cgroups, command::Killed, containerd::POLITE, mounts::Mounted, recorder::expect_reads, wait::eventually,
};

use crate::{
    in_progress::{memory, spec},
    pods::{DEAF, container},
    scene::{AGENT, Scene},
};

const START: Duration = Duration::from_secs(180);
const HANG: Duration = Duration::from_secs(60);
/// Long enough for the whole test.
const LONG_GRACE: u64 = 600;
const DRIVER: &str = "csi.missing.example.com";

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

/// The cgroup of the pod that can be frozen, with the file for that.
fn freezer_of(uid: &str) -> Result<(PathBuf, PathBuf)> {
    let names = [format!("pod{uid}"), format!("pod{}.slice", uid.replace('-', "_"))];
    let found = cgroups::find(|name| names.iter().any(|wanted| name.to_string_lossy().ends_with(wanted)))?;
    let files = found
        .iter()
        .flat_map(|dir| ["cgroup.freeze", "freezer.state"].map(|name| (dir, dir.join(name))));
    let mut files = files.filter(|(_, file)| file.exists());
    let (dir, file) = files
        .next()
        .with_context(|| format!("no cgroup of {uid} with a freezer"))?;
    Ok((dir.clone(), file))
}

/// Freezes or thaws a pod.
fn set_frozen(uid: &str, frozen: bool) -> Result<()> {
    let (_, file) = freezer_of(uid)?;
    let [thawed, froze] = match file.ends_with("cgroup.freeze") {
        true => ["0", "1"],
        false => ["THAWED", "FROZEN"],
    };
    let state = if frozen { froze } else { thawed };
    Ok(fs::write(file, state)?)
}

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
    set_frozen(&uids["frozen"], true)?;
    let holder = Killed::sleep_in(&pod_dir("busy").join("volumes/kubernetes.io~empty-dir/busy"))?;
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

    let driver = format!("{DRIVER} of volume pv-1 ");
    for (name, severity, kind, words) in [
        (
            "deaf",
            Severity::Waiting,
            CauseKind::SigtermNotHandled,
            "of container main ignores SIGTERM; ",
        ),
        (
            "no-handler",
            Severity::Waiting,
            CauseKind::SigtermNotHandled,
            "\"sleep\" of container main ignores SIGTERM: it is PID 1",
        ),
        ("frozen", Severity::Blocking, CauseKind::Frozen, ""),
        ("busy", Severity::Blocking, CauseKind::MountBusy, "\"sleep\""),
        (
            "finalizer",
            Severity::Blocking,
            CauseKind::Finalizer,
            "finalizer example.com/hold ",
        ),
        ("no-driver", Severity::Blocking, CauseKind::DriverMissing, &driver),
        ("living", Severity::Info, CauseKind::NotDeleted, "1 running container"),
    ] {
        let named = async || {
            let why = explain(&scene, name).await?;
            let is_named = |it: &Cause| it.severity == severity && it.kind == kind && it.message.contains(words);
            Ok(why.causes.iter().any(is_named).then_some(()))
        };
        let found = eventually(HANG, &format!("why names what holds {name}"), named).await;
        if found.is_err() {
            eprintln!("{:#?}", explain(&scene, name).await?);
        }
        found?;
    }
    let holder_words = format!("process {} ", holder.pid());
    // A search for holders has a time limit, within which a busy machine may not read all processes.
    let named = async || {
        let busy = explain(&scene, "busy").await?;
        Ok(busy
            .causes
            .iter()
            .any(|cause| cause.message.contains(&holder_words))
            .then_some(()))
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
    eprintln!("methods that the agent has called: {reads:?}");
    let some = ["Status", "ListPodSandbox", "ListContainers", "ContainerStatus"];
    expect_reads(&reads, &some)?;
    let writes = scene.agent_writes()?;
    ensure!(writes.is_empty(), "the agent has written: {writes:?}");

    // The end: what holds them is removed.
    drop((holder, mounted));
    set_frozen(&uids["frozen"], false)?;
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
        for pid in cgroups::processes(&freezer_of(uid)?.0) {
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).ok();
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
