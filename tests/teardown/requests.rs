//! Stops on request, and orphans in the runtime.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::cgroups::Driver;

use super::{
    pods::{POLITE, STUBBORN, exec, hooked, simple},
    scene::{AGENT, Scene},
};

pub async fn stopped_pod_runs_its_hook_and_keeps_its_object(scene: &mut Scene) -> Result<()> {
    let pod = scene
        .run(hooked("stopped", 3600, STUBBORN, &exec("echo hook >> /out/log")))
        .await?;
    // The pod's own grace period does not count.
    let output = scene
        .ask(&["stop", &scene.name("stopped"), "--grace-period", "2s"])
        .await?;
    ensure!(output.contains("has terminated"), "{output}");
    ensure!(
        scene.logged("stopped") == ["hook", "term"],
        "{:?}",
        scene.logged("stopped")
    );
    let status = scene.object("stopped").await?["status"].clone();
    ensure!(status["phase"] == "Failed" && status["reason"].is_null(), "{status}");
    scene.take_down(&pod).await.map(drop)
}

pub async fn evicted_pod_has_failed_although_its_container_succeeded(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("evicted", 30, POLITE)).await?;
    let (name, message) = (scene.name("evicted"), "The node runs out of disk.");
    scene
        .ask(&["stop", &name, "--failed", "--reason", "Evicted", "--message", message])
        .await?;
    let status = scene.object("evicted").await?["status"].clone();
    ensure!(
        (&status["phase"], &status["reason"], &status["message"])
            == (&json!("Failed"), &json!("Evicted"), &json!(message)),
        "{status}"
    );
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    ensure!(
        conditions
            .iter()
            .any(|it| it["type"] == "DisruptionTarget" && it["status"] == "True" && it["message"] == message),
        "{status}"
    );
    scene.event(&pod, "Evicted").await?;
    scene.take_down(&pod).await.map(drop)
}

/// Its object was deleted while no agent ran, and none had ever seen it.
pub async fn orphan_in_the_runtime_is_taken_down(scene: &mut Scene) -> Result<()> {
    let lives = scene.run(simple("lives", 5, POLITE)).await?;
    let orphan = scene.run(simple("orphan", 30, STUBBORN)).await?;
    let before = scene.object("lives").await?;
    scene.delete(&orphan, Some(0)).await?;
    scene.gone(&orphan).await?;
    scene.start_agent().await?;
    scene.clean(&orphan).await?;
    scene.untouched(&lives, &before).await?;
    scene.take_down(&lives).await?;
    scene.stop_agent().await
}

/// By the kernel and the kubelet's configuration, not by flags.
pub async fn check_shows_the_cgroup_driver_and_version_of_the_node(scene: &mut Scene) -> Result<()> {
    let (output, code) = scene.stage.check(Path::new(AGENT)).await?;
    let row = output.lines().find(|line| line.contains("cgroups")).unwrap_or_default();
    let (driver, systemd) = match scene.stage.starter.dirs().cgroup_driver {
        Driver::Systemd => ("systemd driver", ", systemd 2"),
        Driver::Cgroupfs => ("cgroupfs driver", ""),
    };
    let kernel = fs::read_to_string("/proc/self/mountinfo")?;
    let (v1, v2) = (kernel.contains(" - cgroup "), kernel.contains(" - cgroup2 "));
    let version = match (v1, v2) {
        (false, _) => ", v2",
        (true, true) => ", hybrid: ",
        (true, false) => ", v1: ",
    };
    for words in [driver, version, systemd] {
        ensure!(row.contains(words), "{words:?} is not in {output}");
    }
    ensure!(code == Some(0), "{code:?}: {output}");
    Ok(())
}
