//! Teardown by CRI calls only, as a baseline.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_cri::v1::{ExecSyncRequest, StopContainerRequest, StopPodSandboxRequest};
use k8s_openapi::api::core::v1::Container;
use tokio::time::Instant;

use crate::containerd::Cri;
use crate::pods::StartedPod;

/// For each pod: runs its hooks, stops its containers and then its sidecars, and then its sandbox; all pods in parallel. Returns
/// the time until each pod's sandbox is stopped.
pub async fn teardown(cri: Cri, pods: &[StartedPod], grace: Duration) -> Result<Vec<Duration>> {
    let begin = Instant::now();
    try_join_all(pods.iter().map(|pod| one(cri.clone(), pod, grace, begin))).await
}

async fn one(cri: Cri, pod: &StartedPod, grace: Duration, begin: Instant) -> Result<Duration> {
    let spec = pod.pod.spec.as_ref().context("a pod has a spec")?;
    let regular = spec.containers.iter().map(|container| async {
        if let Some(command) = hook(container) {
            run(cri.clone(), pod, &container.name, command).await?;
        }
        stop(cri.clone(), pod, &container.name, grace).await
    });
    try_join_all(regular).await?;
    let sidecars = spec.init_containers.iter().flatten().rev();
    for sidecar in sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always")) {
        stop(cri.clone(), pod, &sidecar.name, grace).await?;
    }
    let request = StopPodSandboxRequest {
        pod_sandbox_id: pod.sandbox_id.clone(),
    };
    cri.clone()
        .stop_pod_sandbox(request)
        .await
        .with_context(|| format!("stop sandbox {}", pod.sandbox_id))?;
    Ok(begin.elapsed())
}

/// The command of a preStop hook.
fn hook(container: &Container) -> Option<&Vec<String>> {
    let handler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
    handler.exec.as_ref()?.command.as_ref()
}

async fn run(mut cri: Cri, pod: &StartedPod, container: &str, command: &[String]) -> Result<()> {
    let request = ExecSyncRequest {
        container_id: id(pod, container)?,
        cmd: command.to_vec(),
        timeout: 0,
    };
    let ran = cri.exec_sync(request).await;
    ran.map(drop).with_context(|| format!("run the hook of {container}"))
}

async fn stop(mut cri: Cri, pod: &StartedPod, container: &str, grace: Duration) -> Result<()> {
    let request = StopContainerRequest {
        container_id: id(pod, container)?,
        timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
    };
    let stopped = cri.stop_container(request).await;
    stopped.map(drop).with_context(|| format!("stop container {container}"))
}

fn id(pod: &StartedPod, container: &str) -> Result<String> {
    let id = pod.containers.get(container).cloned();
    id.with_context(|| format!("container {container} was not started"))
}
