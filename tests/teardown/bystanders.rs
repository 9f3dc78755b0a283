//! Pods that the agent must not touch, or only in part.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::pods::StartedPod;

use super::{
    pods::{POLITE, simple},
    scene::Scene,
};

pub async fn pod_that_is_not_deleted_is_not_touched(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("lives", 10, POLITE)).await?;
    let before = scene.object("lives").await?;
    scene.fence().await?;
    scene.untouched(&pod, &before).await?;
    ensure!(scene.events(&pod).await?.is_empty());
    scene.take_down(&pod).await.map(drop)
}

/// The runtime runs it here, and the API has it on another node: here it is an orphan, and its object must not be touched.
pub async fn object_of_a_pod_on_another_node_is_kept_although_its_containers_stop_here(
    scene: &mut Scene,
) -> Result<()> {
    // While the API server has none of the node's pods, no orphan is taken down.
    let other = scene.run(simple("other", 10, POLITE)).await?;
    let mut pod = simple("elsewhere", 10, POLITE);
    pod["spec"]["nodeName"] = "elsewhere".into();
    // A running agent takes it down when it has a sandbox.
    let pod = start_only(scene, pod).await?;
    scene.delete(&pod, None).await?;
    let before = scene.object("elsewhere").await?;
    scene.start_agent().await?;
    scene.clean(&pod).await?;
    scene.fence().await?;
    ensure!(scene.object("elsewhere").await? == before);
    scene.delete(&pod, Some(0)).await?;
    scene.gone(&pod).await?;
    scene.take_down(&other).await?;
    scene.stop_agent().await
}

pub async fn mirror_pod_is_not_touched(scene: &mut Scene) -> Result<()> {
    // While the API server has none of the node's pods, no orphan is taken down.
    let other = scene.run(simple("other", 10, POLITE)).await?;
    let mut pod = simple("static", 10, POLITE);
    pod["spec"]["nodeName"] = scene.stage.node.as_str().into();
    pod["metadata"]["annotations"] = json!({
        "kubernetes.io/config.mirror": "1234",
        "kubernetes.io/config.hash": "1234",
        "kubernetes.io/config.source": "file",
    });
    let pod = start_only(scene, pod).await?;
    scene.delete(&pod, None).await?;
    let before = scene.object("static").await?;
    ensure!(before["metadata"]["deletionTimestamp"].is_string(), "{before}");
    scene.fence().await?;
    scene.untouched(&pod, &before).await?;
    // Its object is deleted and created again. That does not affect the static pod.
    scene.delete(&pod, Some(0)).await?;
    scene.gone(&pod).await?;
    // After a list of the runtime has found that the API server does not have it.
    let stranger = format!("{}/static", scene.namespace);
    loop {
        let unmanaged = scene.status().await?["housekeeping"]["unmanaged"].to_string();
        if unmanaged.contains(&stranger) {
            break;
        }
        // The time limit of claims ends this loop.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let alive = scene.stage.starter.exec(&pod, "main", &["true"]).await;
    alive.context("a static pod has to run on")?;
    scene.stage.starter.clear_away(&pod).await?;
    scene.take_down(&other).await.map(drop)
}

/// Its phase was set to Failed: nothing of it runs, but its containers and logs stay.
pub async fn failed_pod_is_cleaned_and_kept_until_it_is_deleted(scene: &mut Scene) -> Result<()> {
    let mut pod = simple("failed", 10, POLITE);
    pod["spec"]["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory" } }]);
    let pod = scene.run(pod).await?;
    let evicted = json!({ "status": { "phase": "Failed", "reason": "Evicted", "message": "no room" } });
    scene.merge("failed/status", &evicted).await?;
    let left = loop {
        let left = scene.stage.leftovers(std::slice::from_ref(&pod)).await?;
        if !["mount", "cgroup", "process"].iter().any(|kind| left.has(kind)) {
            break left;
        }
        // The time limit of claims ends this loop.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    ensure!(left.has("container") && left.has("sandbox"), "{left}");
    scene.fence().await?;
    let object = scene.object("failed").await?;
    ensure!(object["metadata"]["deletionTimestamp"].is_null(), "{object}");
    let status = &object["status"];
    ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status}");
    ensure!(
        status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0,
        "{status}"
    );
    let left = scene.stage.leftovers(std::slice::from_ref(&pod)).await?;
    ensure!(left.has("container"), "{left}");
    scene.delete(&pod, None).await?;
    scene.gone_and_clean(&pod).await
}

/// Starts a pod that is not, or not only, on the stage's node.
async fn start_only(scene: &Scene, mut pod: Value) -> Result<StartedPod> {
    pod["metadata"]["namespace"] = scene.namespace.as_str().into();
    scene.give_out(&mut pod)?;
    let stored = scene.stage.admin.create_pod(&pod).await?;
    scene.stage.starter.start(&stored).await
}
