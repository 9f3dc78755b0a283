//! The shortest way to be rid of pods: two kinds of CRI calls and nothing else. What others are measured against.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_cri::v1::{StopContainerRequest, StopPodSandboxRequest};
use tokio::time::Instant;

use crate::containerd::Cri;
use crate::pods::StartedPod;

/// How long it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// Per pod, from the common start until its sandbox was stopped; in the order of the pods.
    pub pods: Vec<Duration>,
    /// Until the last one was stopped.
    pub total: Duration,
}

/// Stops the containers of each pod, all at once, and then its sandbox; all pods in parallel.
pub async fn teardown(cri: Cri, pods: &[StartedPod], grace: Duration) -> Result<Times> {
    let begin = Instant::now();
    let pods = try_join_all(pods.iter().map(|pod| one(cri.clone(), pod, grace, begin))).await?;
    Ok(Times {
        pods,
        total: begin.elapsed(),
    })
}

async fn one(cri: Cri, pod: &StartedPod, grace: Duration, begin: Instant) -> Result<Duration> {
    let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
    let stops = pod.containers.values().map(|id| {
        let mut cri = cri.clone();
        async move {
            let request = StopContainerRequest {
                container_id: id.clone(),
                timeout,
            };
            cri.stop_container(request)
                .await
                .with_context(|| format!("stop container {id}"))
        }
    });
    try_join_all(stops).await?;
    let request = StopPodSandboxRequest {
        pod_sandbox_id: pod.sandbox_id.clone(),
    };
    cri.clone()
        .stop_pod_sandbox(request)
        .await
        .with_context(|| format!("stop sandbox {}", pod.sandbox_id))?;
    Ok(begin.elapsed())
}
