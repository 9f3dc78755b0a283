//! What blocks the agent: a kubelet, another agent, a node identity mismatch.

use std::{fs, os::unix::fs::symlink, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::{rest::Patch, wait::until_ok};
use tokio::{
    process::{Child, Command},
    time::sleep,
};

use super::{
    pods::{POLITE, simple},
    scene::{PATIENCE, Scene},
};

pub async fn second_agent_exits_and_names_the_first(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let first = scene.agent.as_ref().and_then(|agent| agent.pid()).context("no pid")?;
    let second = scene.spawn_agent()?;
    let code = second.ended().await?;
    ensure!(code == Some(1), "{code:?}");
    let log = scene.agent.as_ref().map(|agent| agent.log()).unwrap_or_default();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("is locked by")).collect();
    ensure!(lines.len() == 1 && lines[0].contains(&first.to_string()), "{lines:?}");
    // The first one is not affected.
    scene.fence().await?;
    scene.stop_agent().await
}

pub async fn running_kubelet_blocks_all_effects_until_it_exits(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("kubelets", 10, POLITE)).await?;
    let mut kubelet = kubelet(scene)?;
    scene.start_agent().await?;
    is_held(scene, "kubelet").await?;
    scene.delete(&pod, None).await?;
    let object = scene.object("kubelets").await?;
    waits(scene, "a kubelet runs").await?;
    let only_reads = "a kubelet runs and has to terminate the pod; this agent only reads";
    scene.why("kubelets", &[only_reads]).await?;
    scene.untouched(&pod, &object).await?;
    kubelet.kill().await.context("end the kubelet")?;
    scene.gone_and_clean(&pod).await?;
    scene.stop_agent().await
}

/// A call in flight continues. The next step waits.
pub async fn kubelet_that_starts_during_a_teardown_stops_it(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let obeys_late = "trap 'echo term >> /out/log; until [ -e /out/exit ]; do sleep 0.1; done; exit 0' TERM";
    let pod = scene.run(simple("shared", 60, obeys_late)).await?;
    scene.delete(&pod, None).await?;
    scene.wait_for_line("shared", "term").await?;
    let mut kubelet = kubelet(scene)?;
    is_held(scene, "kubelet").await?;
    fs::write(scene.out("shared").join("exit"), "").context("let the container exit")?;
    waits(scene, "a kubelet runs").await?;
    let object = scene.object("shared").await?;
    ensure!(object["status"]["phase"] == "Running", "{object}");
    let left = scene.stage.leftovers(std::slice::from_ref(&pod)).await?;
    ensure!(left.has("sandbox") && left.has("cgroup"), "{left}");
    kubelet.kill().await.context("end the kubelet")?;
    scene.gone_and_clean(&pod).await?;
    scene.stop_agent().await
}

pub async fn node_with_another_machine_id_blocks_all_effects(scene: &mut Scene) -> Result<()> {
    let path = format!("/api/v1/nodes/{}/status", scene.stage.node);
    let marks = json!({ "status": { "nodeInfo": { "machineID": "0123456789abcdef0123456789abcdef" } } });
    scene.stage.admin.patch(&path, Patch::Strategic, &marks).await?.ok()?;
    let pod = scene.run(simple("foreign", 10, POLITE)).await?;
    scene.delete(&pod, None).await?;
    let object = scene.object("foreign").await?;
    scene.agent = Some(Arc::new(scene.spawn_agent()?));
    is_held(scene, "machineID").await?;
    sees_no_pods(scene).await?;
    scene.untouched(&pod, &object).await?;
    scene.stop_agent().await
}

pub async fn node_that_was_registered_again_blocks_all_effects(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    scene.fence().await?;
    let pod = scene.run(simple("of-before", 10, POLITE)).await?;
    scene.stop_agent().await?;
    let path = format!("/api/v1/nodes/{}", scene.stage.node);
    scene.stage.admin.delete(&path, None).await?.ok()?;
    scene.stage.register_node().await?;
    scene.delete(&pod, None).await?;
    let object = scene.object("of-before").await?;
    scene.agent = Some(Arc::new(scene.spawn_agent()?));
    is_held(scene, "UID").await?;
    sees_no_pods(scene).await?;
    scene.untouched(&pod, &object).await?;
    scene.stop_agent().await
}

/// A process that looks like this node's kubelet, by its name and root directory. It is killed with the scene.
fn kubelet(scene: &Scene) -> Result<Child> {
    let binary = scene.stage.containerd.workspace().dir().join("kubelet-binary");
    fs::create_dir_all(&binary).with_context(|| format!("create {}", binary.display()))?;
    let binary = binary.join("kubelet");
    // A link: a child that another thread has forked could have a copy open for writing until exec (ETXTBSY).
    symlink("/bin/dash", &binary).with_context(|| format!("link {} to a shell", binary.display()))?;
    let child = Command::new(&binary)
        .args(["-c", "read -r _", "kubelet", "--root-dir"])
        .arg(&scene.stage.starter.dirs().kubelet_root)
        // Not a kubelet of other stages on this machine.
        .arg("--container-runtime-endpoint")
        .arg(scene.stage.containerd.endpoint())
        // Nothing is written to it: the read blocks forever.
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    child.context("start a process called kubelet")
}

/// Waits until `status` shows that all effects are blocked for this reason.
async fn is_held(scene: &Scene, reason: &str) -> Result<()> {
    until_ok(PATIENCE, async || {
        let status = scene.status().await?;
        let held = status["blocked"].as_str().is_some_and(|held| held.contains(reason));
        ensure!(held, "not held for {reason}: {status}");
        Ok(())
    })
    .await
}

/// With a node identity mismatch the pods may be of another cluster, and are never touched.
async fn sees_no_pods(scene: &Scene) -> Result<()> {
    sleep(Duration::from_secs(2)).await;
    let status = scene.status().await?;
    ensure!(
        status["watch"]["pods"] == 0 && status["counters"]["started"] == 0,
        "{status}"
    );
    Ok(())
}

/// Waits until `status` shows that a pod is blocked by this.
async fn waits(scene: &Scene, reason: &str) -> Result<()> {
    until_ok(PATIENCE, async || {
        let status = scene.status().await?;
        let mut failures = status["pods"]["terminating"][0]["blocked"]
            .as_array()
            .into_iter()
            .flatten();
        let waits = failures.any(|it| it["message"].as_str().is_some_and(|text| text.contains(reason)));
        ensure!(waits, "nothing waits for {reason}: {status}");
        Ok(())
    })
    .await
}
