//! One container of the spec, and what every status of one is made of.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};

/// Exit code of a container whose end nobody can tell: never success.
const UNKNOWN_EXIT: i32 = 137;
/// The reason of an end that is unknown.
pub(super) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// The place of a container in the spec, which decides what its status means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    /// Runs to its end before the regular ones start.
    Init,
    /// A restartable init container.
    Sidecar,
    Ephemeral,
}

/// What status needs of one container in the spec.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<'a> {
    pub kind: Kind,
    pub name: &'a str,
    pub image: &'a str,
    pub has_startup_probe: bool,
    pub has_readiness_probe: bool,
}

/// The end of a container that nobody can tell: 137 and no times.
pub(super) fn lost(message: &str, entry: &ContainerStatus) -> ContainerState {
    ended(ContainerStateTerminated {
        container_id: entry.container_id.clone(),
        exit_code: UNKNOWN_EXIT,
        message: Some(message.into()),
        reason: Some(STATUS_UNKNOWN.into()),
        ..Default::default()
    })
}

pub(super) fn ended(end: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(end),
        ..Default::default()
    }
}
