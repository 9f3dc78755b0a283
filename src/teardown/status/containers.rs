//! The three lists of container statuses (`convertToAPIContainerStatuses`).

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus};

use super::index::{ByName, Instances};
use super::input::StatusInput;
use super::restart::is_sidecar;
use super::slot::{Kind, Slot};
use super::transition::Rules;
use super::{absent, instance};

/// All container statuses of a pod: regular and ephemeral ones by name, init containers in the order of the spec.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lists {
    pub regular: Vec<ContainerStatus>,
    pub init: Vec<ContainerStatus>,
    pub ephemeral: Vec<ContainerStatus>,
}

/// The three lists of a pod's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum List {
    Regular,
    Init,
    Ephemeral,
}

// === impl Kind ===

impl Kind {
    fn list(self) -> List {
        match self {
            Self::Regular => List::Regular,
            Self::Init | Self::Sidecar => List::Init,
            Self::Ephemeral => List::Ephemeral,
        }
    }
}

// === impl List ===

impl List {
    /// In the order of their discriminants.
    const ALL: [Self; 3] = [Self::Regular, Self::Init, Self::Ephemeral];

    fn statuses(self, api: &PodStatus) -> &[ContainerStatus] {
        let list = match self {
            Self::Regular => &api.container_statuses,
            Self::Init => &api.init_container_statuses,
            Self::Ephemeral => &api.ephemeral_container_statuses,
        };
        list.as_deref().unwrap_or_default()
    }
}

/// One entry for each container of the spec. Other containers are not reported.
pub(super) fn lists(input: &StatusInput<'_>, api: &PodStatus) -> Lists {
    let mut lists = Lists::default();
    let Some(spec) = &input.pod.spec else { return lists };
    let known = Input {
        input,
        spec,
        instances: Instances::observed(input, spec),
        rules: Rules::from_spec(spec),
    };
    let before = List::ALL.map(|list| ByName::entries(list.statuses(api)));
    let mut seen = HashSet::new();
    for slot in slots(spec) {
        let list = slot.kind.list();
        if !seen.insert((list, slot.name)) {
            continue;
        }
        let entry = known.entry(&slot, before[list as usize].get(slot.name));
        match list {
            List::Regular => lists.regular.push(entry),
            List::Init => lists.init.push(entry),
            List::Ephemeral => lists.ephemeral.push(entry),
        }
    }
    lists.regular.sort_by(|a, b| a.name.cmp(&b.name));
    lists.ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
    lists
}

fn slots(spec: &PodSpec) -> impl Iterator<Item = Slot<'_>> {
    fn slot(kind: Kind, container: &Container) -> Slot<'_> {
        Slot {
            kind,
            name: &container.name,
            image: container.image.as_deref().unwrap_or_default(),
            has_startup_probe: container.startup_probe.is_some(),
            has_readiness_probe: container.readiness_probe.is_some(),
        }
    }
    let init = spec.init_containers.iter().flatten().map(|container| {
        let kind = if is_sidecar(container) {
            Kind::Sidecar
        } else {
            Kind::Init
        };
        slot(kind, container)
    });
    let regular = spec.containers.iter().map(|container| slot(Kind::Regular, container));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| Slot {
        kind: Kind::Ephemeral,
        name: &container.name,
        image: container.image.as_deref().unwrap_or_default(),
        has_startup_probe: false,
        has_readiness_probe: false,
    });
    init.chain(regular).chain(ephemeral)
}

/// Input of all entries.
struct Input<'a> {
    input: &'a StatusInput<'a>,
    spec: &'a PodSpec,
    instances: Instances<'a>,
    rules: Rules<'a>,
}

impl Input<'_> {
    /// The entry of a container: from its newest instances, or from the API if the runtime has none.
    fn entry(&self, slot: &Slot<'_>, previous: Option<&ContainerStatus>) -> ContainerStatus {
        let Self {
            input,
            spec,
            instances,
            rules,
        } = self;
        let named = instances.named(slot.name);
        let newest = named
            .first()
            .filter(|newest| !instance::is_of_an_earlier_run(input, newest, previous));
        let mut entry = match newest {
            Some(newest) => instance::entry(input, slot, previous, newest, named.get(1).copied()),
            None => absent::entry(input, spec, instances, slot, previous),
        };
        if let Some(previous) = previous {
            carry_over(&mut entry, previous);
            if !rules.is_legal(slot.kind, previous, &entry) {
                // The kubelet drops the whole update in this case, which can block the final delete forever.
                entry = previous.clone();
            }
        }
        instance::set_readiness(&mut entry, slot, previous);
        entry
    }
}

/// Fields of others in an entry, or of the kubelet that only it can compute, stay unchanged.
fn carry_over(entry: &mut ContainerStatus, previous: &ContainerStatus) {
    entry.restart_count = entry.restart_count.max(previous.restart_count);
    entry.resources.clone_from(&previous.resources);
    entry.allocated_resources.clone_from(&previous.allocated_resources);
    entry
        .allocated_resources_status
        .clone_from(&previous.allocated_resources_status);
    entry.volume_mounts.clone_from(&previous.volume_mounts);
    entry.user.clone_from(&previous.user);
    entry.stop_signal.clone_from(&previous.stop_signal);
}
