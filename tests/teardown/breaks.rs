//! Failures below a pod: its network plugins, its shim.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, ContainerState, CreateContainerRequest, ImageSpec, ListContainersRequest,
    Mount, PodSandboxConfig, PodSandboxMetadata, StartContainerRequest, StatusRequest,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use testbed::{
    cgroups::{self, hierarchies},
    command::Killed,
    containerd::TOOL_IMAGE,
    pods::StartedPod,
    wait::{eventually, until_ok},
};
use tokio::time::sleep;

use super::{
    drivers::{Drivers, Storage, demand},
    pods::{POLITE, STUBBORN, simple},
    scene::{PATIENCE, Scene},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetworkPart {
    Plugins,
    Configuration,
}

impl NetworkPart {
    fn set_away(self, scene: &Scene, away: bool) -> Result<()> {
        match self {
            Self::Plugins => scene.stage.containerd.set_plugins_away(away),
            Self::Configuration => scene.stage.containerd.set_network_away(away),
        }
    }
}

pub async fn sandbox_is_retried_until_its_network_plugins_are_back(scene: &mut Scene) -> Result<()> {
    waits_for_its_network(scene, NetworkPart::Plugins).await
}

pub async fn sandbox_is_retried_until_its_network_configuration_is_back(scene: &mut Scene) -> Result<()> {
    waits_for_its_network(scene, NetworkPart::Configuration).await
}

/// With its configuration, the sandbox goes, too.
pub async fn object_goes_without_its_network_after_an_approval(scene: &mut Scene) -> Result<()> {
    let pod = without_network(scene, NetworkPart::Configuration).await?;
    let item = format!("pod/{}", scene.name("web"));
    until_ok(PATIENCE, async || {
        let holds = scene.ask(&["holds"]).await?;
        ensure!(
            holds.contains(&item) && holds.contains("is not taken down"),
            "no hold: {holds}"
        );
        Ok(())
    })
    .await?;
    scene.why("web", &["pod-teardown approve pod/"]).await?;
    scene.ask(&["approve", &item, "--yes"]).await?;
    scene.gone(&pod).await?;
    NetworkPart::Configuration.set_away(scene, false)?;
    scene.clean(&pod).await?;
    scene.stop_agent().await
}

async fn waits_for_its_network(scene: &mut Scene, part: NetworkPart) -> Result<()> {
    let pod = without_network(scene, part).await?;
    let why = scene.ask(&["why", &scene.name("web")]).await?;
    let mut blocked = why.lines().skip_while(|line| !line.starts_with("BLOCKED"));
    ensure!(
        blocked
            .next()
            .is_some_and(|line| line.contains("sandbox: StopPodSandbox")),
        "{why}"
    );
    if part == NetworkPart::Configuration {
        let remedy = blocked.next().unwrap_or_default();
        ensure!(remedy.contains("repair the network plugin"), "{why}");
    }
    part.set_away(scene, false)?;
    scene.gone(&pod).await?;
    scene.clean(&pod).await?;
    scene.stop_agent().await
}

/// A deleted pod whose volume is removed, and whose network cannot be taken down.
async fn without_network(scene: &mut Scene, part: NetworkPart) -> Result<StartedPod> {
    scene.start_agent().await?;
    let mut web = simple("web", 5, POLITE);
    web["spec"]["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } }]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
    let pod = scene.run(web).await?;
    let volume = pod.volumes.get("memory").context("volume memory")?;
    part.set_away(scene, true)?;
    if part == NetworkPart::Configuration {
        // The runtime detects a change of its configuration by itself.
        eventually(PATIENCE, "a runtime without network", async || {
            let status = scene.stage.containerd.cri().status(StatusRequest::default()).await?;
            let conditions = status.into_inner().status.unwrap_or_default().conditions;
            let is_missing = conditions.iter().any(|it| it.r#type == "NetworkReady" && !it.status);
            Ok(is_missing.then_some(()))
        })
        .await?;
    }
    scene.delete(&pod, None).await?;
    let event = scene.event(&pod, "FailedKillPod").await?;
    ensure!(event["message"].to_string().contains("StopPodSandbox"), "{event}");
    until_ok(PATIENCE, async || {
        ensure!(!volume.exists(), "its volume stays for the sake of its network");
        Ok(())
    })
    .await?;
    ensure!(
        scene.object("web").await?["status"]["phase"] == "Running",
        "it is output to have ended"
    );
    Ok(pod)
}

pub async fn container_whose_shim_was_killed_before_its_stop_leaves_nothing(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("before", 5, STUBBORN)).await?;
    kill_shim(scene, &pod)?;
    let history = scene.follow(&pod).await?;
    scene.delete(&pod, None).await?;
    ended_and_clean(scene, &pod).await?;
    ensure!(
        history.end().await?.phase() == "Failed",
        "a hook without a known result has not succeeded"
    );
    scene.stop_agent().await
}

pub async fn container_whose_shim_is_killed_during_its_stop_leaves_nothing(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("meanwhile", 8, STUBBORN)).await?;
    let history = scene.follow(&pod).await?;
    scene.delete(&pod, None).await?;
    scene.wait_for_line("meanwhile", "term").await?;
    kill_shim(scene, &pod)?;
    ended_and_clean(scene, &pod).await?;
    ensure!(
        history.end().await?.phase() == "Failed",
        "a hook without a known result has not succeeded"
    );
    scene.stop_agent().await
}

/// containerd does not notice a stopped shim: it keeps reporting the container as running.
pub async fn container_with_a_hanging_shim_terminates_when_its_processes_have_exited(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let mut web = simple("wrong", 1, STUBBORN);
    web["spec"]["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } }]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
    let pod = scene.run(web).await?;
    let volume = pod.volumes.get("memory").context("volume memory")?;
    let history = scene.follow(&pod).await?;
    signal_shim(scene, &pod, Signal::SIGSTOP)?;
    kill_processes(&pod)?;
    scene.delete(&pod, None).await?;
    let gone = scene
        .stage
        .admin
        .wait_gone(&scene.namespace, "wrong", pod.uid(), PATIENCE);
    gone.await?;
    ensure!(!volume.exists(), "{} is left", volume.display());
    let states = states(scene, &pod).await?;
    ensure!(states == [ContainerState::ContainerRunning], "{states:?}");
    let states = history.end().await?;
    let end = &states.last()["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(
        end["exitCode"] == 137 && end["reason"] == "ContainerStatusUnknown" && states.phase() == "Failed",
        "{}",
        states.last()["status"]
    );
    let event = scene.event(&pod, "RuntimeStateMismatch").await?["message"].to_string();
    let why = scene.ask(&["why", pod.uid()]).await?;
    for text in [&event, &why] {
        ensure!(
            text.contains("main (process ") && text.contains("a restart of the container runtime corrects its state"),
            "{text}"
        );
    }
    signal_shim(scene, &pod, Signal::SIGCONT)?;
    ended_and_clean(scene, &pod).await?;
    scene.stop_agent().await
}

/// The runtime can neither stop nor kill it: the shim does not answer.
pub async fn container_below_a_stopped_shim_is_killed_and_its_pod_goes(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("stopped", 1, POLITE)).await?;
    let shim = scene.stage.containerd.shim(&pod.sandbox_id)?;
    let history = scene.follow(&pod).await?;
    signal_shim(scene, &pod, Signal::SIGSTOP)?;
    scene.delete(&pod, None).await?;
    let texts = [
        "sends it SIGKILL in",
        &*format!("process {shim} \"containerd-shim-runc-v2\", the shim of sandbox"),
        "is stopped (state T)",
        "container main runs as process ",
        &format!("\"sh\" in cgroup {}/", pod.cgroup),
    ];
    scene.why("stopped", &texts).await?;
    killed_and_gone(scene, &pod, &format!("shim {shim} (containerd-shim-runc-v2)")).await?;
    ensure!(history.end().await?.phase() == "Failed");
    signal_shim(scene, &pod, Signal::SIGCONT)?;
    ended_and_clean(scene, &pod).await?;
    scene.stop_agent().await
}

/// As after an upgrade that has removed the program while pods run.
pub async fn container_is_killed_when_the_program_of_the_runtime_is_missing(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("missing", 1, POLITE)).await?;
    let history = scene.follow(&pod).await?;
    scene.stage.containerd.set_runc_away(true)?;
    scene.delete(&pod, None).await?;
    let program = scene.stage.containerd.paths().runc_program.display().to_string();
    let texts = [
        "sends it SIGKILL in",
        "container main runs as process ",
        "no such file or directory",
        &program,
    ];
    scene.why("missing", &texts).await?;
    killed_and_gone(scene, &pod, "container main runs as process ").await?;
    ensure!(history.end().await?.phase() == "Failed");
    scene.stage.containerd.set_runc_away(false)?;
    ended_and_clean(scene, &pod).await?;
    scene.stop_agent().await
}

/// The user has repaired the runtime before this agent kills.
pub async fn repaired_runtime_finishes_the_stop_itself(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    for repair in ["shim-is-continued", "runtime-is-restarted", "program-is-back"] {
        let pod = scene.run(simple(repair, 1, POLITE)).await?;
        match repair {
            "program-is-back" => scene.stage.containerd.set_runc_away(true)?,
            _ => signal_shim(scene, &pod, Signal::SIGSTOP)?,
        }
        scene.delete(&pod, None).await?;
        scene.why(repair, &["sends it SIGKILL in"]).await?;
        match repair {
            "program-is-back" => scene.stage.containerd.set_runc_away(false)?,
            "runtime-is-restarted" => {
                let stage = Arc::get_mut(&mut scene.stage).context("the stage serves other claims, too")?;
                stage.containerd.restart().await?;
            }
            _ => signal_shim(scene, &pod, Signal::SIGCONT)?,
        }
        scene.gone(&pod).await?;
        if repair == "runtime-is-restarted" {
            // The runtime has given it up. It still has the zombies of its children.
            signal_shim(scene, &pod, Signal::SIGCONT)?;
        }
        ended_and_clean(scene, &pod).await?;
    }
    scene.stop_agent().await
}

/// runc, with the signal to a container in the node's PID namespace as of runc 1.2: to the processes in its cgroup.
const KILLS_BY_CGROUP: &str = r#"#!/bin/sh
for word; do
    shift
    set -- "$@" "$word"
    [ "$word" = kill ] && set -- "$@" --all
done
exec runc "$@"
"#;

/// The process of a sandbox in the node's PID namespace is outside of its cgroup, where runc 1.2 does not find it (containerd issue
/// 11984).
pub async fn process_of_a_sandbox_outside_of_its_cgroup_is_killed(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let mut host = simple("outside", 1, POLITE);
    host["spec"]["hostPID"] = true.into();
    let pod = scene.run(host).await?;
    scene.stage.containerd.replace_runc(KILLS_BY_CGROUP)?;
    let is_sandbox = |name: &OsStr| name.to_string_lossy().contains(pod.sandbox_id.as_str());
    let mut processes = cgroups::find(is_sandbox)?
        .into_iter()
        .flat_map(|it| cgroups::processes(&it));
    let pause = processes.next().context("a process in the sandbox")?;
    let outside = format!("/{}-outside", scene.stage.containerd.workspace().id());
    cgroups::create(&outside)?;
    cgroups::set(&outside, "cgroup.procs", &pause.to_string())?;
    let history = scene.follow(&pod).await?;
    let checked = named_and_killed(scene, &pod, pause, &outside).await;
    if checked.is_err() {
        kill(Pid::from_raw(pause.try_into()?), Signal::SIGKILL).ok();
    }
    cgroups::remove(&outside).await?;
    checked?;
    ensure!(history.end().await?.exit("main")? == (0, "Completed"));
    ended_and_clean(scene, &pod).await?;
    scene.stop_agent().await
}

async fn named_and_killed(scene: &Scene, pod: &StartedPod, pause: u32, outside: &str) -> Result<()> {
    scene.delete(pod, None).await?;
    let texts = [
        "sends it SIGKILL in",
        &*format!("is not stopped: its process {pause} "),
        &format!("in cgroup {outside}"),
    ];
    let why = scene.why(&pod.identity.name, &texts).await?;
    ensure!(!why.contains("all containers have exited"), "{why}");
    killed_and_gone(scene, pod, &format!("process {pause} ")).await
}

/// Waits until the agent has killed the pod, and the pod is gone although the runtime is not repaired.
async fn killed_and_gone(scene: &Scene, pod: &StartedPod, named: &str) -> Result<()> {
    let event = scene.event(pod, "ProcessesKilled").await?["message"].to_string();
    ensure!(
        event.replace("\\\"", "\"").contains(named),
        "{named:?} is not in {event}"
    );
    scene.gone(pod).await
}

/// containerd unmounts the root of a container before it reports its exit, and retries with growing pauses.
pub async fn why_shows_a_stop_without_answer_while_a_process_uses_the_containers_root(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("open", 1, POLITE)).await?;
    let container = pod.containers.get("main").context("container main")?;
    let state = &scene.stage.containerd.paths().state;
    let root = state
        .join("io.containerd.runtime.v2.task/k8s.io")
        .join(container)
        .join("rootfs");
    let open = File::open(&root).with_context(|| format!("open {}", root.display()))?;
    let history = scene.follow(&pod).await?;
    scene.delete(&pod, None).await?;
    let why = scene.why("open", &["StopContainer (timeout 2s): no answer"]).await?;
    ensure!(!why.contains("nothing has failed"), "{why}");
    let states = states(scene, &pod).await?;
    ensure!(states == [ContainerState::ContainerRunning], "{states:?}");
    drop(open);
    let states = history.end().await?;
    ensure!(states.exit("main")? == (0, "Completed"), "{}", states.last()["status"]);
    scene.clean(&pod).await
}

/// For example an image volume in which a user has mounted something else.
pub async fn why_names_the_busy_mount_and_its_holder(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("nested", 1, POLITE)).await?;
    if let Err(refused) = run_with_image_volume(scene, &pod).await {
        // containerd has image volumes since 2.1.
        let version = scene.stage.containerd.version();
        ensure!(version.starts_with("1."), "{version}: {refused:#}");
        return scene.take_down(&pod).await.map(drop);
    }
    let state = &scene.stage.containerd.paths().state;
    let volumes = state
        .join("io.containerd.grpc.v1.cri/image-volumes")
        .join(&pod.sandbox_id);
    let volume = fs::read_dir(&volumes)?.next().context("an image volume")??.path();
    let nested = volume.join("bin");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&nested)
        .status()?;
    ensure!(mounted.success(), "{mounted}");
    let holder = Killed::sleep_in(&nested)?;
    scene.delete(&pod, None).await?;
    let output = scene.event(&pod, "FailedKillPod").await?["message"].to_string();
    let named = format!("process {} \"sleep\" (working directory)", holder.pid());
    let busy = nested.to_str().context("UTF-8")?;
    // A search that takes too long names no holder.
    let why = scene
        .why("nested", &["StopPodSandbox", "device or resource busy", busy, &named])
        .await;
    drop(holder);
    let unmounted = Command::new("umount").arg(&nested).status()?;
    ensure!(unmounted.success(), "{unmounted}");
    why?;
    ensure!(output.contains("device or resource busy"), "{output}");
    scene.gone_and_clean(&pod).await
}

/// Starts another container in the pod's sandbox, with a mounted image.
async fn run_with_image_volume(scene: &Scene, pod: &StartedPod) -> Result<()> {
    let mut cri = scene.stage.containerd.cri();
    let image = Some(ImageSpec {
        image: TOOL_IMAGE.to_owned(),
        ..Default::default()
    });
    let label = |key: &str, value: &str| (format!("io.kubernetes.{key}"), value.to_owned());
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "reads".to_owned(),
            attempt: 0,
        }),
        image: image.clone(),
        command: ["sleep", "1000"].map(str::to_owned).into(),
        labels: [
            label("pod.uid", pod.uid()),
            label("pod.name", &pod.identity.name),
            label("pod.namespace", &scene.namespace),
            label("container.name", "reads"),
        ]
        .into(),
        mounts: vec![Mount {
            container_path: "/image".to_owned(),
            readonly: true,
            image,
            ..Default::default()
        }],
        ..Default::default()
    };
    let request = CreateContainerRequest {
        pod_sandbox_id: pod.sandbox_id.clone(),
        config: Some(config),
        sandbox_config: Some(PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: pod.identity.name.clone(),
                uid: pod.uid().to_owned(),
                namespace: scene.namespace.clone(),
                attempt: 0,
            }),
            ..Default::default()
        }),
    };
    let container_id = cri.create_container(request).await?.into_inner().container_id;
    cri.start_container(StartContainerRequest { container_id }).await?;
    Ok(())
}

fn kill_shim(scene: &Scene, pod: &StartedPod) -> Result<()> {
    signal_shim(scene, pod, Signal::SIGKILL)
}

fn signal_shim(scene: &Scene, pod: &StartedPod, signal: Signal) -> Result<()> {
    let pid = scene.stage.containerd.shim(&pod.sandbox_id)?;
    Ok(kill(Pid::from_raw(pid.try_into()?), signal)?)
}

/// Kills all processes in the cgroups of the pod's containers and sandbox.
fn kill_processes(pod: &StartedPod) -> Result<()> {
    let ids: Vec<_> = pod.containers.values().chain([&pod.sandbox_id]).collect();
    let is_of_pod = |name: &OsStr| ids.iter().any(|id| name.to_string_lossy().contains(id.as_str()));
    let mut pids = BTreeSet::new();
    for cgroup in cgroups::find(is_of_pod)? {
        pids.extend(cgroups::processes(&cgroup));
    }
    ensure!(!pids.is_empty(), "the pod has no process");
    for pid in pids {
        kill(Pid::from_raw(pid.try_into()?), Signal::SIGKILL)?;
    }
    Ok(())
}

/// The pod's containers in the runtime.
async fn states(scene: &Scene, pod: &StartedPod) -> Result<Vec<ContainerState>> {
    let mut cri = scene.stage.containerd.cri();
    let list = cri.list_containers(ListContainersRequest::default()).await;
    let list = list?.into_inner().containers;
    let of_pod = list.iter().filter(|it| it.pod_sandbox_id == pod.sandbox_id);
    Ok(of_pod.map(|it| it.state()).collect())
}

/// Checks that nothing of the pod runs, in the runtime or in the kernel.
async fn ended_and_clean(scene: &Scene, pod: &StartedPod) -> Result<()> {
    scene.gone_and_clean(pod).await?;
    until_ok(PATIENCE, async || {
        for root in hierarchies()? {
            let path = root.join(pod.cgroup.trim_start_matches('/'));
            ensure!(!path.exists(), "{} stays", path.display());
        }
        Ok(())
    })
    .await
}

/// Without the OCI runtime's program a shim that dies leaves its processes, and the runtime reports them as exited. One of them was
/// moved out of the pod's cgroup by hand.
pub async fn process_that_was_named_is_killed_though_the_runtime_reports_its_exit(scene: &mut Scene) -> Result<()> {
    let drivers = Drivers::start(&scene.stage)?;
    scene.start_agent().await?;
    let mut held = simple("named", 1, STUBBORN);
    demand(&mut held);
    let (pod, storage) = drivers.run(scene, held, None).await?;
    let main = first_process(pod.containers.get("main").context("container main")?)?;
    let outside = format!("/{}-outside", scene.stage.containerd.workspace().id());
    cgroups::create(&outside)?;
    cgroups::set(&outside, "cgroup.procs", &main.to_string())?;
    scene.stage.containerd.set_runc_away(true)?;
    scene.delete(&pod, None).await?;
    scene
        .why(
            "named",
            &[&format!("as process {main} \"sh\""), "this agent sends it SIGKILL"],
        )
        .await?;
    kill_shim(scene, &pod)?;
    nothing_is_taken_from(main, &drivers, &storage).await?;
    scene.gone_and_clean(&pod).await?;
    cgroups::remove(&outside).await?;
    scene.stage.containerd.set_runc_away(false)?;
    scene.stop_agent().await
}

/// The shim died before the stop, and the OCI runtime's program is missing: the processes are in the pod's cgroups.
pub async fn devices_and_volumes_are_taken_down_after_the_last_process(scene: &mut Scene) -> Result<()> {
    let drivers = Drivers::start(&scene.stage)?;
    scene.start_agent().await?;
    let mut held = simple("survives", 3, STUBBORN);
    demand(&mut held);
    let (pod, storage) = drivers.run(scene, held, None).await?;
    let main = first_process(pod.containers.get("main").context("container main")?)?;
    scene.stage.containerd.set_runc_away(true)?;
    kill_shim(scene, &pod)?;
    scene.delete(&pod, None).await?;
    nothing_is_taken_from(main, &drivers, &storage).await?;
    scene.gone_and_clean(&pod).await?;
    scene.stage.containerd.set_runc_away(false)?;
    scene.stop_agent().await
}

/// Another pod's process has the name and the command line of a shim of virtual machines.
pub async fn process_of_a_pod_that_calls_itself_a_shim_delays_no_other_pod(scene: &mut Scene) -> Result<()> {
    const SHIM: &str = "/tmp/containerd-shim-kata-v2";
    scene.start_agent().await?;
    let script = format!(
        "mkdir -p /tmp; printf '#!/bin/sh\\nwhile :; do sleep 1; done\\n' > {SHIM}; chmod 755 {SHIM}; \
         (until [ -s /out/id ]; do sleep 0.1; done; exec {SHIM} -id $(cat /out/id)) & {POLITE}"
    );
    let tenant = scene.run(simple("tenant", 1, &script)).await?;
    let victim = scene.run(simple("victim", 1, STUBBORN)).await?;
    let id = victim.containers.get("main").context("container main")?;
    fs::write(scene.out("tenant").join("id"), id)?;
    let is_named =
        |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "containerd-shim\n");
    let of_tenant = tenant.containers.get("main").context("container main")?.clone();
    eventually(PATIENCE, "the name of a shim", async || {
        Ok(processes_of(&of_tenant)?.into_iter().any(is_named).then_some(()))
    })
    .await?;
    scene.stage.containerd.set_runc_away(true)?;
    scene.delete(&victim, None).await?;
    scene.gone(&victim).await?;
    scene.stage.containerd.set_runc_away(false)?;
    scene.clean(&victim).await?;
    scene.take_down(&tenant).await?;
    scene.stop_agent().await
}

/// Waits for the exit of this process. Until then no driver is called.
async fn nothing_is_taken_from(pid: u32, drivers: &Drivers, storage: &Storage) -> Result<()> {
    while runs(pid) {
        ensure!(
            storage.claims_asked(drivers).is_empty() && storage.volumes_asked(drivers).is_empty(),
            "devices or volumes are taken from a process that runs"
        );
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn processes_of(id: &str) -> Result<Vec<u32>> {
    let is_named = |name: &OsStr| name.to_string_lossy().contains(id);
    Ok(cgroups::find(is_named)?
        .iter()
        .flat_map(|it| cgroups::processes(it))
        .collect())
}

fn first_process(id: &str) -> Result<u32> {
    processes_of(id)?.first().copied().context("a process")
}

/// Whether the process has not exited. A zombie has.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, behind)| !behind.starts_with(['Z', 'X']))
}
