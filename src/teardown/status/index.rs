//! Containers and entries by name. A pod may have thousands: linear searches of one list for each entry of another would take
//! seconds.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec};

use super::input::StatusInput;
use crate::node::cri::types::{Container as Instance, ContainerState};

/// Values by name. Names are unique in a valid pod. In an invalid one the first counts.
pub(super) struct ByName<'a, T>(HashMap<&'a str, &'a T>);

/// Instances of each container in the runtime, newest first.
pub(super) struct Instances<'a> {
    by_name: HashMap<&'a str, Vec<&'a Instance>>,
    /// A regular container was created, so initialization is complete.
    pub any_regular: bool,
}

// === impl ByName ===

impl<'a, T> ByName<'a, T> {
    fn new(all: &'a [T], name: impl Fn(&'a T) -> &'a str) -> Self {
        let mut by_name = HashMap::with_capacity(all.len());
        for value in all {
            by_name.entry(name(value)).or_insert(value);
        }
        Self(by_name)
    }

    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<&'a T> {
        self.0.get(name).copied()
    }
}

impl<'a> ByName<'a, ContainerStatus> {
    /// Entries of a status.
    pub fn entries(list: &'a [ContainerStatus]) -> Self {
        Self::new(list, |entry| &entry.name)
    }
}

impl<'a> ByName<'a, Container> {
    /// Containers of a spec.
    pub fn containers(list: &'a [Container]) -> Self {
        Self::new(list, |container| &container.name)
    }
}

// === impl Instances ===

impl<'a> Instances<'a> {
    /// The instances of this pod.
    pub fn observed(input: &StatusInput<'a>, spec: &PodSpec) -> Self {
        let mut by_name = HashMap::<&str, Vec<&Instance>>::new();
        for instance in &input.observed.containers {
            by_name.entry(&instance.name).or_default().push(instance);
        }
        let mut instances = Self {
            by_name,
            any_regular: false,
        };
        let was_created = |container: &Container| {
            let newest = instances.named(&container.name).first();
            newest.is_some_and(|instance| instance.state != ContainerState::Unknown)
        };
        instances.any_regular = spec.containers.iter().any(was_created);
        instances
    }

    /// The instances of this container.
    pub fn named(&self, name: &str) -> &[&'a Instance] {
        self.by_name.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}
