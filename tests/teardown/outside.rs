//! Output of crictl for pods that the agent takes down: `docs/how-to/runbook.md` has these commands.

use anyhow::{Result, ensure};
use testbed::{claims::Claim, control_plane::ControlPlane, crictl::Crictl, pods::StartedPod};

use crate::cases::{
    Scene, Shared, claims,
    pods::{POLITE, STUBBORN, simple},
};

/// Length of IDs in the tables of crictl.
const SHORT: usize = 13;

pub fn cases() -> Vec<Claim<Shared<ControlPlane>>> {
    claims! {
        in outside on ControlPlane;
        Shared: [
            crictl_shows_a_pod_until_its_teardown_and_another_pod_after_that,
            exit_of_a_container_stopped_with_crictl_is_reported_at_once,
        ],
    }
}

async fn crictl_shows_a_pod_until_its_teardown_and_another_pod_after_that(
    scene: &mut Scene,
    _: &ControlPlane,
) -> Result<()> {
    let crictl = Crictl::of(&scene.stage.containerd).await?;
    let pods = ["goes", "stays"].map(|name| simple(name, 10, POLITE));
    let pods = scene.run_all(pods.into()).await?;
    for pod in &pods {
        shows(&crictl, pod).await?;
    }
    let [goes, stays] = &pods[..] else { unreachable!() };
    // The agent names containers as the tables do.
    let table = crictl.run(&["ps"]).await?;
    for id in goes.containers.values() {
        ensure!(table.contains(&id[..SHORT]), "{id} is not in {table}");
    }
    scene.take_down(goes).await?;
    for list in [&["pods"][..], &["ps", "--all"]] {
        let left = crictl.ids_of(goes.uid(), list).await?;
        ensure!(left.is_empty(), "{list:?}: {left:?}");
    }
    shows(&crictl, stays).await?;
    scene.take_down(stays).await.map(drop)
}

/// During its grace period, which then ends early.
async fn exit_of_a_container_stopped_with_crictl_is_reported_at_once(
    scene: &mut Scene,
    _: &ControlPlane,
) -> Result<()> {
    let crictl = Crictl::of(&scene.stage.containerd).await?;
    let pod = scene.run(simple("by-hand", 100, STUBBORN)).await?;
    let history = scene.follow(&pod).await?;
    scene.delete(&pod, None).await?;
    scene.wait_for_line("by-hand", "term").await?;
    for id in pod.containers.values() {
        crictl.run(&["stop", "--timeout", "0", id]).await?;
    }
    let states = history.end().await?;
    let ended = (states.phase(), states.exit("main")?);
    ensure!(ended == ("Failed", (137, "Error")), "{ended:?}");
    scene.clean(&pod).await
}

/// Checks that crictl shows the pod as it was started: one ready sandbox, all containers running.
async fn shows(crictl: &Crictl, pod: &StartedPod) -> Result<()> {
    let sandboxes = crictl.ids_of(pod.uid(), &["pods", "--state", "ready"]).await?;
    ensure!(sandboxes == [pod.sandbox_id.as_str()], "{sandboxes:?}");
    let containers = crictl.ids_of(pod.uid(), &["ps", "--state", "running"]).await?;
    let mut started: Vec<_> = pod.containers.values().cloned().collect();
    started.sort();
    ensure!(containers == started, "{containers:?} are not {started:?}");
    Ok(())
}
