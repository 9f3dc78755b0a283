//! What breaks under a pod: its network's plugins, its shim.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use testbed::{cgroups::hierarchies, pods::StartedPod};
use tokio::time::{Instant, sleep};

use super::{
    pods::{POLITE, STUBBORN, simple},
    scene::{PATIENCE, Scene},
};

pub async fn a_sandbox_whose_network_plugins_are_gone_is_tried_until_they_are_back(scene: &mut Scene) -> Result<()> {
    waits_for_its_network(scene, |scene, away| scene.stage.containerd.set_plugins_away(away)).await
}

pub async fn a_sandbox_whose_network_configuration_is_gone_is_tried_until_it_is_back(scene: &mut Scene) -> Result<()> {
    waits_for_its_network(scene, |scene, away| scene.stage.containerd.set_network_away(away)).await
}

async fn waits_for_its_network(scene: &mut Scene, set_away: fn(&Scene, bool) -> Result<()>) -> Result<()> {
    scene.start_agent().await?;
    let mut web = simple("web", 5, POLITE);
    web["spec"]["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } }]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
    let pod = scene.run(web).await?;
    let volume = pod.volumes.get("memory").context("volume memory")?;
    set_away(scene, true)?;
    // The runtime notices a change of its configuration by itself.
    sleep(Duration::from_millis(500)).await;
    scene.delete(&pod, None).await?;
    let event = scene.event(&pod, "FailedKillPod").await?;
    ensure!(event["message"].to_string().contains("StopPodSandbox"), "{event}");
    let late = Instant::now() + PATIENCE;
    while volume.exists() {
        ensure!(Instant::now() < late, "its volume stays for the sake of its network");
        sleep(Duration::from_millis(50)).await;
    }
    ensure!(
        scene.object("web").await?["status"]["phase"] == "Running",
        "it is told to have ended"
    );
    set_away(scene, false)?;
    scene.gone_and_clean(&pod).await?;
    scene.stop_agent().await
}

pub async fn a_container_whose_shim_was_killed_before_its_end_leaves_nothing(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("before", 5, STUBBORN)).await?;
    kill_shim(scene, &pod)?;
    let history = scene.follow(&pod).await?;
    scene.delete(&pod, None).await?;
    ended_and_clean(scene, &pod).await?;
    ensure!(
        history.end().await?.phase() == "Failed",
        "what nobody saw end has not succeeded"
    );
    scene.stop_agent().await
}

pub async fn a_container_whose_shim_is_killed_while_it_is_stopped_leaves_nothing(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("meanwhile", 8, STUBBORN)).await?;
    let history = scene.follow(&pod).await?;
    scene.delete(&pod, None).await?;
    scene.says("meanwhile", "term").await?;
    kill_shim(scene, &pod)?;
    ended_and_clean(scene, &pod).await?;
    ensure!(
        history.end().await?.phase() == "Failed",
        "what nobody saw end has not succeeded"
    );
    scene.stop_agent().await
}

fn kill_shim(scene: &Scene, pod: &StartedPod) -> Result<()> {
    let pid = scene.stage.containerd.shim(&pod.sandbox_id)?;
    Ok(kill(Pid::from_raw(pid.try_into()?), Signal::SIGKILL)?)
}

/// Nothing of the pod runs, also nothing that only the kernel knows.
async fn ended_and_clean(scene: &Scene, pod: &StartedPod) -> Result<()> {
    scene.gone_and_clean(pod).await?;
    let late = Instant::now() + PATIENCE;
    let paths: Vec<_> = hierarchies()?
        .iter()
        .map(|root| root.join(pod.cgroup.trim_start_matches('/')))
        .collect();
    while paths.iter().any(|path| path.exists()) {
        ensure!(
            Instant::now() < late,
            "the cgroup stays: {:?}",
            fs::read_to_string("/proc/self/cgroup")
        );
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
