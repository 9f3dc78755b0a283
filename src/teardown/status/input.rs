//! Input of a status.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::message::Messages;
use crate::{
    model::termination::Eviction,
    node::cri::types::{Container, ContainerState, RuntimePod},
};

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
        let runs = |container: &Container| container.state == ContainerState::Running;
        if self.observed.containers.iter().any(runs) {
            StatusStage::Terminating
        } else {
            self.stage
        }
    }
}
