//! Pods that a kubelet has started, as if the starter had.

use std::collections::HashMap;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_cri::v1::{ContainerFilter, ContainerState, ContainerStateValue, ListContainersRequest};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{Identity, NodeDirs, StartedPod, volumes::VolumeDirs};
use crate::containerd::Cri;

/// From their objects and their running containers.
pub(super) async fn find(mut cri: Cri, dirs: &NodeDirs, pods: Vec<Value>) -> Result<Vec<StartedPod>> {
    let state = ContainerState::ContainerRunning.into();
    let filter = ContainerFilter {
        state: Some(ContainerStateValue { state }),
        ..Default::default()
    };
    let request = ListContainersRequest { filter: Some(filter) };
    let answer = cri.list_containers(request).await.context("list containers")?;
    let mut by_uid: HashMap<String, Vec<_>> = HashMap::new();
    for mut container in answer.into_inner().containers {
        let uid = container.labels.remove("io.kubernetes.pod.uid").unwrap_or_default();
        by_uid.entry(uid).or_default().push(container);
    }
    let found = pods.into_iter().map(|pod| {
        let pod: Pod = serde_json::from_value(pod).context("read a pod object")?;
        let identity = Identity::of(&pod)?;
        let own = by_uid.remove(&identity.uid).unwrap_or_default();
        let first = own
            .first()
            .with_context(|| format!("pod {} runs no container", identity.name))?;
        Ok(StartedPod {
            sandbox_id: first.pod_sandbox_id.clone(),
            ip: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
            cgroup: dirs.cgroup(&pod, &identity.uid),
            dir: dirs.pod(&identity.uid),
            logs: dirs.logs(&identity),
            volumes: VolumeDirs::default(),
            started_at: Timestamp::now(),
            containers: own
                .into_iter()
                .map(|it| (it.metadata.unwrap_or_default().name, it.id))
                .collect(),
            pod,
            identity,
        })
    });
    found.collect()
}
