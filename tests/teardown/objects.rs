//! The object in the API.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::pods::StartedPod;

use super::{
    pods::{POLITE, STUBBORN, container, pod, simple},
    scene::Scene,
};

/// A valid field that does not concern the agent.
const FINALIZER: &str = "example.com/hold";

pub async fn finalizer_keeps_the_object_and_nothing_on_the_node(scene: &mut Scene) -> Result<()> {
    let pod = held(scene, "held").await?;
    scene.delete(&pod, None).await?;
    scene.clean(&pod).await?;
    let object = scene.object("held").await?;
    ensure!(object["metadata"]["deletionGracePeriodSeconds"] == 0, "{object}");
    ensure!(object["status"]["phase"] == "Succeeded", "{object}");
    // Other writes to the object do not bring the pod back.
    let label = json!({ "metadata": { "labels": { "late": "yes" } } });
    scene.merge("held", &label).await?;
    scene.fence().await?;
    ensure!(scene.object("held").await?["metadata"]["uid"] == pod.uid());
    let output = scene.ask(&["why", pod.uid()]).await?;
    ensure!(
        output.contains(FINALIZER) && output.contains("The teardown on this node is complete"),
        "{output}"
    );
    release(scene, "held").await?;
    scene.gone_and_clean(&pod).await
}

pub async fn last_status_has_the_exit_of_each_container(scene: &mut Scene) -> Result<()> {
    let ends = |code: u8| format!("trap 'exit {code}' TERM");
    let containers = [
        container("well", &ends(0)),
        container("badly", &ends(7)),
        container("killed", STUBBORN),
    ];
    let mut pod = pod("states", 2, &containers);
    pod["spec"]["containers"][1]["command"][2] =
        "trap 'echo goodbye > /dev/termination-log; exit 7' TERM; : > /out/ready-badly; \
         while :; do read -r _ <>/wait; done"
            .into();
    let pod = scene.run(pod).await?;
    let history = scene.follow(&pod).await?;
    scene.take_down(&pod).await?;
    let states = history.end().await?;
    for (name, expected) in [
        ("well", (0, "Completed")),
        ("badly", (7, "Error")),
        ("killed", (137, "Error")),
    ] {
        ensure!(states.exit(name)? == expected, "{name}: {}", states.last()["status"]);
    }
    let status = &states.last()["status"];
    ensure!(states.phase() == "Failed", "{status}");
    let mut containers = status["containerStatuses"].as_array().into_iter().flatten();
    let badly = containers.find(|container| container["name"] == "badly");
    ensure!(
        badly.context("status of badly")?["state"]["terminated"]["message"] == "goodbye\n",
        "{status}"
    );
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ensure!(ready.context("condition Ready")?["status"] == "False", "{status}");
    Ok(())
}

/// Like the controller of a StatefulSet: at once, under the same name.
pub async fn pod_recreated_under_the_same_name_is_another_pod(scene: &mut Scene) -> Result<()> {
    let old = held(scene, "web-0").await?;
    scene.delete(&old, None).await?;
    scene.clean(&old).await?;
    release(scene, "web-0").await?;
    scene.gone(&old).await?;
    let middle = scene.run(simple("web-0", 10, POLITE)).await?;
    let before = scene.object("web-0").await?;
    scene.fence().await?;
    scene.untouched(&middle, &before).await?;

    scene.delete(&middle, None).await?;
    scene.gone(&middle).await?;
    // The node may still clean up the old one.
    let new = scene.run(simple("web-0", 10, POLITE)).await?;
    let before = scene.object("web-0").await?;
    scene.clean(&middle).await?;
    scene.untouched(&new, &before).await?;
    scene.take_down(&new).await.map(drop)
}

async fn held(scene: &Scene, name: &str) -> Result<StartedPod> {
    let mut pod = simple(name, 10, POLITE);
    pod["metadata"]["finalizers"] = json!([FINALIZER]);
    scene.run(pod).await
}

async fn release(scene: &Scene, name: &str) -> Result<()> {
    let none = json!({ "metadata": { "finalizers": null } });
    scene.merge(name, &none).await.map(drop)
}
