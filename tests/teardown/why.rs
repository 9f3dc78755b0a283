//! What `why` shows on a node with a real runtime, real mounts and cgroups, with its remedies.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use k8s_cri::v1::StopPodSandboxRequest;
use nix::mount::umount;
use serde_json::json;
use testbed::{cgroups, command::Killed, pods::StartedPod};

use super::{
    pods::{POLITE, container, exec, hooked, pod, simple},
    scene::Scene,
};

pub async fn why_names_what_a_termination_waits_for(scene: &mut Scene) -> Result<()> {
    let until_told = "until [ -e /out/go ]; do sleep 0.1; done";
    let hook = exec(until_told);
    let mut sidecar = container("proxy", POLITE);
    sidecar["restartPolicy"] = "Always".into();
    let mut sides = pod(
        "sides",
        600,
        &[container("main", &format!("trap '{until_told}; exit 0' TERM"))],
    );
    sides["spec"]["initContainers"] = json!([sidecar]);
    let pods = scene.run_all(vec![hooked("hooked", 600, POLITE, &hook), sides]).await?;
    for pod in &pods {
        scene.delete(pod, None).await?;
    }
    scene
        .why(
            "hooked",
            &[
                "the preStop hook (exec) of container main may still run",
                "wait: the hook ends with the grace period at the latest",
                "s left of 600s",
                "wait, or shorten it with pod-teardown stop POD --grace-period SECONDS",
            ],
        )
        .await?;
    scene.why("sides", &["sidecar proxy is stopped after main"]).await?;
    for pod in &pods {
        fs::write(scene.out(&pod.identity.name).join("go"), "")?;
        scene.gone_and_clean(pod).await?;
    }
    Ok(())
}

/// A paused agent changes nothing, so that each state stays until the test changes it.
pub async fn why_names_what_is_left_of_a_pod_beside_a_paused_agent(scene: &mut Scene) -> Result<()> {
    const NO_PROCESS: &str = "no process does it now: start the kubelet, or resolve what blocks this agent";
    scene.start_agent().await?;
    let mut main = container("main", POLITE);
    main["volumeMounts"] = json!([
        { "name": "disk", "mountPath": "/disk" },
        { "name": "memory", "mountPath": "/memory" },
    ]);
    let mut left = pod("left", 30, &[main]);
    left["spec"]["volumes"] = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
    ]);
    scene.ask(&["pause", "--reason", "disks are replaced"]).await?;
    let pods = vec![left, simple("ended", 30, POLITE), simple("runs", 30, POLITE)];
    let [left, ended, runs] = scene.run_all(pods).await?.try_into().ok().context("three pods")?;

    scene
        .merge(
            "ended/status",
            &json!({ "status": { "phase": "Failed", "reason": "Evicted" } }),
        )
        .await?;
    let ended_texts = [
        "it has terminated as Failed (Evicted), and it is not being deleted",
        "delete it, or wait for the controller that owns it",
    ];
    scene.why("ended", &ended_texts).await?;

    scene.delete(&left, None).await?;
    let paused = "this agent is paused, and no kubelet terminates it";
    scene
        .why("left", &[paused, "disks are replaced", "pod-teardown resume"])
        .await?;

    let process = Killed::sleep_in(Path::new("/"))?;
    let lost = format!("{}/lost", left.cgroup);
    cgroups::create(&lost)?;
    cgroups::set(&lost, "cgroup.procs", &process.pid().to_string())?;
    stop_sandbox(scene, &left).await?;
    let named = format!(
        "1 process is left in the pod's cgroups: process {} \"sleep\"",
        process.pid()
    );
    let remedy = "compare them with crictl ps -a; if the runtime has lost the container, kill these processes";
    scene.why("left", &[&named, remedy]).await?;

    drop(process);
    let memory = left.volumes.get("memory").context("volume memory")?;
    let mounted = format!("tmpfs is still mounted at {}", memory.display());
    scene.why("left", &[&mounted, NO_PROCESS]).await?;
    umount(memory)?;
    scene
        .why(
            "left",
            &["directories of volumes are left, without mounts: ", NO_PROCESS],
        )
        .await?;
    fs::remove_dir_all(scene.stage.starter.dirs().pod(left.uid()).join("volumes"))?;
    scene
        .why("left", &["its cgroups are left, without processes: ", NO_PROCESS])
        .await?;
    let dirs = scene.stage.starter.dirs();
    dirs.cgroup_driver.remove(&left.cgroup).await?;
    let phase = "none of its containers runs, and the API does not show that: its phase is Running";
    scene.why("left", &[phase, NO_PROCESS]).await?;
    scene
        .merge("left/status", &json!({ "status": { "phase": "Succeeded" } }))
        .await?;
    scene
        .why("left", &["only the final delete is missing", NO_PROCESS])
        .await?;

    for pod in [&ended, &runs] {
        scene.delete(pod, None).await?;
    }
    let stage = Arc::get_mut(&mut scene.stage).context("the stage serves other claims, too")?;
    stage.containerd.kill();
    let unreachable = "the container runtime cannot be reached";
    scene
        .why("runs", &[unreachable, "start the container runtime, and read its log"])
        .await?;
    let stage = Arc::get_mut(&mut scene.stage).context("the stage serves other claims, too")?;
    stage.containerd.restart().await?;
    scene.ask(&["resume"]).await?;
    for pod in [&left, &ended, &runs] {
        scene.gone_and_clean(pod).await?;
    }
    scene.stop_agent().await
}

/// Its process writes to a frozen file system, and no signal ends that.
pub async fn why_names_a_process_that_waits_in_the_kernel(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let dir = scene.stage.containerd.workspace().dir().join("disk");
    let disk = Disk::mounted(&dir)?;
    let mut main = container("main", "trap 'echo x > /disk/x; exit 0' TERM");
    main["volumeMounts"] = json!([{ "name": "disk", "mountPath": "/disk" }]);
    let mut stuck = pod("stuck", 2, &[main]);
    stuck["spec"]["volumes"] = json!([{ "name": "disk", "hostPath": { "path": dir.display().to_string() } }]);
    let stuck = scene.run(stuck).await?;
    run("fsfreeze", &["-f".as_ref(), &dir])?;
    scene.delete(&stuck, None).await?;
    let waits = "of container main is in uninterruptible sleep (state D) in ";
    let remedy = "repair the disk, server or driver that it waits for (/proc/PID/stack shows it; in percpu_rwsem_wait, thaw the \
                  file system: fsfreeze -u MOUNTPOINT), or restart the node";
    let shown = scene.why("stuck", &[waits, "no signal terminates it", remedy]).await;
    run("fsfreeze", &["-u".as_ref(), &dir])?;
    shown?;
    scene.gone_and_clean(&stuck).await?;
    drop(disk);
    scene.stop_agent().await
}

/// A file system of its own; thawed and unmounted on drop.
struct Disk(PathBuf);

impl Disk {
    fn mounted(at: &Path) -> Result<Self> {
        let image = at.with_extension("img");
        fs::create_dir(at)?;
        fs::File::create(&image)?.set_len(16 << 20)?;
        run("mkfs.ext4", &["-q".as_ref(), &image])?;
        run("mount", &["-o".as_ref(), "loop".as_ref(), &image, at])?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // After a failure it is still frozen.
        Command::new("fsfreeze").arg("-u").arg(&self.0).output().ok();
        run("umount", &[&self.0]).ok();
    }
}

fn run(program: &str, arguments: &[&Path]) -> Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// As another program does: the agent is paused.
async fn stop_sandbox(scene: &Scene, pod: &StartedPod) -> Result<()> {
    let request = StopPodSandboxRequest {
        pod_sandbox_id: pod.sandbox_id.clone(),
    };
    scene.stage.containerd.cri().stop_pod_sandbox(request).await?;
    Ok(())
}
