//! A container of the spec.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};

use crate::model::pod::{STATUS_UNKNOWN, UNKNOWN_EXIT_CODE};

/// The list of a container in the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    /// Exits before the regular containers start.
    Init,
    /// A restartable init container.
    Sidecar,
    Ephemeral,
}

/// A container of the spec, as far as its status depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<'a> {
    pub kind: Kind,
    pub name: &'a str,
    pub image: &'a str,
    pub has_startup_probe: bool,
    pub has_readiness_probe: bool,
}

/// The state of a container whose exit is unknown: no times.
pub(super) fn unknown_exit_state(message: &str, entry: &ContainerStatus) -> ContainerState {
    terminated_state(ContainerStateTerminated {
        container_id: entry.container_id.clone(),
        exit_code: UNKNOWN_EXIT_CODE,
        message: Some(message.into()),
        reason: Some(STATUS_UNKNOWN.into()),
        ..Default::default()
    })
}

pub(super) fn terminated_state(end: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(end),
        ..Default::default()
    }
}
