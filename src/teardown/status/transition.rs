//! Which steps a container's status may take; the API server refuses the same ones for the whole pod.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec};

use super::restart::{all_could_restart, should_restart};
use super::slot::Kind;

/// A container that ended may show another state again only where its restart policy allows
/// (`checkContainerStateTransition`).
pub(super) fn is_legal(spec: &PodSpec, kind: Kind, from: &ContainerStatus, to: &ContainerStatus) -> bool {
    let Some(end) = from.state.as_ref().and_then(|state| state.terminated.as_ref()) else {
        return true;
    };
    if to.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        return true;
    }
    let restarts = |containers: &[Container]| {
        let mut named = containers.iter().filter(|container| container.name == from.name);
        all_could_restart(spec) || named.any(|container| should_restart(spec, container, end.exit_code))
    };
    match kind {
        Kind::Regular => restarts(&spec.containers),
        Kind::Init => restarts(spec.init_containers.as_deref().unwrap_or_default()),
        Kind::Sidecar => true,
        Kind::Ephemeral => false,
    }
}
