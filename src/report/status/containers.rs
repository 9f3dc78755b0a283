//! The three lists of container statuses (`convertToAPIContainerStatuses`).

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, PodSpec, PodStatus,
};

use super::restart::is_sidecar;
use super::{Facts, Stage, instance, transition};
use crate::node::cri::types::ContainerState as RuntimeState;

/// Exit code of a container whose end nobody can tell: never success.
pub(super) const UNKNOWN_EXIT: i32 = 137;
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// All container statuses of a pod: regular and ephemeral ones by name, init ones in the order of the spec.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lists {
    pub regular: Vec<ContainerStatus>,
    pub init: Vec<ContainerStatus>,
    pub ephemeral: Vec<ContainerStatus>,
}

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

/// Which of the three lists of a pod's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    fn of(self, api: &PodStatus) -> &[ContainerStatus] {
        let list = match self {
            Self::Regular => &api.container_statuses,
            Self::Init => &api.init_container_statuses,
            Self::Ephemeral => &api.ephemeral_container_statuses,
        };
        list.as_deref().unwrap_or_default()
    }
}

/// The entry of this name. Names are unique in a valid pod; in an invalid one the first counts everywhere.
pub(super) fn by_name<'a>(list: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    list.iter().find(|entry| entry.name == name)
}

/// One entry for each container of the spec. What the spec does not know is not reported.
pub(super) fn lists(facts: &Facts<'_>, api: &PodStatus) -> Lists {
    let mut lists = Lists::default();
    let Some(spec) = &facts.pod.spec else { return lists };
    for slot in slots(spec) {
        let previous = by_name(slot.kind.list().of(api), slot.name);
        let target = match slot.kind.list() {
            List::Regular => &mut lists.regular,
            List::Init => &mut lists.init,
            List::Ephemeral => &mut lists.ephemeral,
        };
        if by_name(target, slot.name).is_none() {
            target.push(entry(facts, spec, &slot, previous));
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
        slot(
            if is_sidecar(container) {
                Kind::Sidecar
            } else {
                Kind::Init
            },
            container,
        )
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

/// One container: from its newest instances, or from what the API knew of it if the runtime has none.
fn entry(facts: &Facts<'_>, spec: &PodSpec, slot: &Slot<'_>, previous: Option<&ContainerStatus>) -> ContainerStatus {
    let mut instances = facts
        .observed
        .containers
        .iter()
        .filter(|instance| instance.name == slot.name);
    let newest = instances
        .next()
        .filter(|newest| !instance::is_of_an_earlier_run(facts, newest, previous));
    let mut entry = match newest {
        Some(newest) => instance::entry(facts, slot, previous, newest, instances.next()),
        None => absent(facts, spec, slot, previous),
    };
    if let Some(previous) = previous {
        carry_over(&mut entry, previous);
        if !transition::is_legal(spec, slot.kind, previous, &entry) {
            // The kubelet drops the whole update here, which can hold up the final delete for ever.
            entry = previous.clone();
        }
    }
    instance::set_readiness(&mut entry, slot, previous);
    entry
}

/// A container that the runtime does not know, or no longer.
fn absent(facts: &Facts<'_>, spec: &PodSpec, slot: &Slot<'_>, previous: Option<&ContainerStatus>) -> ContainerStatus {
    let waiting = ContainerState {
        waiting: Some(default_waiting(spec)),
        ..Default::default()
    };
    let Some(previous) = previous else {
        let mut entry = fresh(slot, waiting);
        infer_success(facts, spec, slot, &mut entry);
        return entry;
    };
    let state = previous.state.clone().unwrap_or_default();
    if state.terminated.is_some() {
        return previous.clone();
    }
    let mut entry = ContainerStatus {
        image: slot.image.to_owned(),
        restart_count: previous.restart_count.max(0),
        last_state: previous.last_state.clone(),
        ..fresh(slot, waiting)
    };
    if previous.container_id.is_some() {
        // The kubelet drops the ids of a lost container; they are all that is left to search the logs by.
        entry.container_id.clone_from(&previous.container_id);
        entry.image.clone_from(&previous.image);
        entry.image_id.clone_from(&previous.image_id);
    }
    if infer_success(facts, spec, slot, &mut entry) {
        return entry;
    }
    if state.running.is_some() {
        vanished(facts, &mut entry);
    } else if facts.pod.metadata.deletion_timestamp.is_none() {
        still_waiting(facts, state, &mut entry);
    }
    entry
}

/// It ran, and the runtime has lost it.
fn vanished(facts: &Facts<'_>, entry: &mut ContainerStatus) {
    let end = lost(
        "The runtime no longer knew the container when the pod was taken down; it was running before",
        entry,
    );
    match facts.stage {
        // As the kubelet: waiting with a past, so that a runtime that was only asked too early can still correct it.
        Stage::Terminating => {
            if entry.last_state.as_ref().is_none_or(|last| last.terminated.is_none()) {
                entry.last_state = Some(end);
            }
        }
        Stage::Stopped | Stage::Terminated => entry.state = Some(end),
    }
}

/// The kubelet keeps the reason of a failed start in memory; after its death the API's entry is the memory. A crash loop
/// that will not go round again ends with its last real exit, unless that was a success, which nobody can vouch for.
fn still_waiting(facts: &Facts<'_>, state: ContainerState, entry: &mut ContainerStatus) {
    let Some(waiting) = state.waiting else { return };
    let crashed = entry.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let crashed = crashed.is_some_and(|end| end.exit_code != 0) && waiting.reason.as_deref() == Some(CRASH_LOOP);
    entry.state = match facts.stage {
        Stage::Stopped | Stage::Terminated if crashed => entry.last_state.take(),
        Stage::Terminating | Stage::Stopped | Stage::Terminated => Some(ContainerState {
            waiting: Some(waiting),
            ..Default::default()
        }),
    };
}

/// An ordinary init container without a trace must have done its work if a regular one was created after it.
fn infer_success(facts: &Facts<'_>, spec: &PodSpec, slot: &Slot<'_>, entry: &mut ContainerStatus) -> bool {
    let was_created = |container: &Container| {
        facts
            .observed
            .newest(&container.name)
            .is_some_and(|instance| instance.state != RuntimeState::Unknown)
    };
    let inferred = slot.kind == Kind::Init && spec.containers.iter().any(was_created);
    if inferred {
        entry.state = Some(ended(ContainerStateTerminated {
            exit_code: 0,
            reason: Some("Completed".into()),
            message: Some(
                "The runtime has no record of it, but the pod was initialized, so it must have succeeded".into(),
            ),
            ..Default::default()
        }));
    }
    inferred
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

/// What others own in an entry, or what the kubelet computes from facts that only it has: as the API shows it.
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

fn default_waiting(spec: &PodSpec) -> ContainerStateWaiting {
    let has_init = spec.init_containers.as_ref().is_some_and(|list| !list.is_empty());
    let reason = if has_init {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    ContainerStateWaiting {
        reason: Some(reason.into()),
        message: None,
    }
}

fn fresh(slot: &Slot<'_>, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: slot.name.to_owned(),
        image: slot.image.to_owned(),
        state: Some(state),
        ..Default::default()
    }
}
