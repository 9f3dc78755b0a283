//! Allowed transitions of a container's status. The API server rejects the whole pod for others.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec};

use super::index::ByName;
use super::restart::{all_could_restart, is_sidecar, should_restart};
use super::slot::Kind;

/// The restart rules of one pod.
pub(super) struct Rules<'a> {
    spec: &'a PodSpec,
    regular: ByName<'a, Container>,
    init: ByName<'a, Container>,
    ephemeral: HashSet<&'a str>,
    all_could_restart: bool,
}

impl<'a> Rules<'a> {
    /// The rules of this spec.
    pub fn from_spec(spec: &'a PodSpec) -> Self {
        Self {
            spec,
            regular: ByName::containers(&spec.containers),
            init: ByName::containers(spec.init_containers.as_deref().unwrap_or_default()),
            ephemeral: spec.ephemeral_containers.iter().flatten().map(|it| &*it.name).collect(),
            all_could_restart: all_could_restart(spec),
        }
    }

    /// Whether this init container is a sidecar.
    pub fn is_sidecar(&self, name: &str) -> bool {
        self.init.get(name).is_some_and(is_sidecar)
    }

    /// Whether the spec has a container of this kind and name.
    pub fn has(&self, kind: Kind, name: &str) -> bool {
        match kind {
            Kind::Regular => self.regular.get(name).is_some(),
            Kind::Init | Kind::Sidecar => self.init.get(name).is_some(),
            Kind::Ephemeral => self.ephemeral.contains(name),
        }
    }

    /// A terminated container may get another state only if its restart policy allows that (`checkContainerStateTransition`).
    pub fn is_legal(&self, kind: Kind, from: &ContainerStatus, to: &ContainerStatus) -> bool {
        let Some(end) = from.state.as_ref().and_then(|state| state.terminated.as_ref()) else {
            return true;
        };
        if to.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
            return true;
        }
        let restarts = |containers: &ByName<'_, Container>| {
            let restarts = |container| should_restart(self.spec, container, end.exit_code);
            self.all_could_restart || containers.get(&from.name).is_some_and(restarts)
        };
        match kind {
            Kind::Regular => restarts(&self.regular),
            Kind::Init => restarts(&self.init),
            Kind::Sidecar => true,
            Kind::Ephemeral => false,
        }
    }
}
