//! Input of a status.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    model::termination::Eviction,
    node::cri::types::{Container, ContainerState as InstanceState, RuntimePod},
};

/// Termination messages read from disk, by container ID in the runtime. An empty one equals none.
pub type Messages = BTreeMap<String, String>;

/// Stage of the teardown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusStage {
    /// Before and while containers are stopped: processes may run, and no terminal phase is reported.
    Terminating,
    /// All containers are stopped and devices unprepared (the kubelet's `podIsTerminal`).
    Stopped,
    /// Volumes are unmounted and the cgroup is removed (the kubelet's `TerminatePod`).
    Terminated,
}

/// Input of a status.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    /// The pod in the API, with its status.
    pub pod: &'a Pod,
    /// The pod in the runtime.
    pub observed: &'a RuntimePod,
    /// Name of the runtime: container IDs in the API are `<runtime>://<id>`.
    pub runtime_name: &'a str,
    /// Wall clock, for start and transition times.
    pub now: Timestamp,
    /// Stage of the teardown.
    pub stage: StatusStage,
    /// The eviction that a user requested.
    pub eviction: Option<&'a Eviction>,
    /// Termination messages read from disk.
    pub messages: &'a Messages,
}

// === impl StatusInput ===

impl StatusInput<'_> {
    /// The stage to report. If a container runs, the pod is not stopped, regardless of the caller (invariant 1).
    pub(super) fn stage(&self) -> StatusStage {
        let runs = |container: &Container| container.state == InstanceState::Running;
        match self.observed.containers.iter().any(runs) {
            true => StatusStage::Terminating,
            false => self.stage,
        }
    }

    /// Whether the pod has the network of its node.
    pub(super) fn uses_host_network(&self) -> bool {
        let spec = self.pod.spec.as_ref();
        spec.and_then(|spec| spec.host_network).unwrap_or(false)
    }
}
