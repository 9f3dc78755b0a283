//! The three lists of container statuses (`convertToAPIContainerStatuses`). An entry is made from the newest instances of its
//! container in the runtime, or from its status in the API if the runtime has none.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::input::{StatusInput, StatusStage};
use crate::{
    model::pod::{Role, STATUS_UNKNOWN, UNKNOWN_EXIT_CODE, is_running, is_sidecar},
    node::cri::types::{Container as Instance, ContainerState as RuntimeState},
};

const CRASH_LOOP: &str = "CrashLoopBackOff";

/// A container of the spec with its role.
type Slot<'a> = (Role, &'a Container);

/// All container statuses of a pod: regular and ephemeral ones by name, init containers in the order of the spec.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lists {
    pub regular: Vec<ContainerStatus>,
    pub init: Vec<ContainerStatus>,
    pub ephemeral: Vec<ContainerStatus>,
}

/// What the entries are made from.
struct Known<'a> {
    input: &'a StatusInput<'a>,
    spec: &'a PodSpec,
    /// Instances of each container in the runtime, newest first.
    instances: HashMap<&'a str, Vec<&'a Instance>>,
    /// A regular container was created, so initialization is complete.
    any_regular: bool,
}

/// The entries of a status by name. A pod may have thousands: linear searches of one list for each entry of another would take
/// seconds. In an invalid pod, whose names are not unique, the first one counts.
pub(super) fn entries_by_name(list: &[ContainerStatus]) -> HashMap<&str, &ContainerStatus> {
    list.iter().rev().map(|it| (&*it.name, it)).collect()
}

/// Whether the container runs, or has run before.
pub(super) fn has_started(entry: &ContainerStatus) -> bool {
    let mut states = [&entry.state, &entry.last_state].into_iter().flatten();
    states.any(|state| state.running.is_some() || state.terminated.is_some())
}

pub(super) fn has_exited(entry: &ContainerStatus) -> bool {
    entry.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// One entry for each container of the spec. Other containers are not reported.
pub(super) fn lists(input: &StatusInput<'_>, spec: &PodSpec, api: &PodStatus) -> Lists {
    let known = Known::new(input, spec);
    let init = spec.init_containers.iter().flatten().map(|it| match is_sidecar(it) {
        true => (Role::Sidecar, it),
        false => (Role::Init, it),
    });
    let regular = spec.containers.iter().map(|it| (Role::Regular, it));
    // They have no probes.
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|it| Container {
        name: it.name.clone(),
        image: it.image.clone(),
        ..Container::default()
    });
    let ephemeral: Vec<_> = ephemeral.collect();
    let ephemeral = ephemeral.iter().map(|it| (Role::Ephemeral, it));
    let mut lists = Lists {
        init: known.entries(init, api.init_container_statuses.as_deref()),
        regular: known.entries(regular, api.container_statuses.as_deref()),
        ephemeral: known.entries(ephemeral, api.ephemeral_container_statuses.as_deref()),
    };
    lists.regular.sort_by(|a, b| a.name.cmp(&b.name));
    lists.ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
    lists
}

// === impl Lists ===

impl Lists {
    /// Terminates all entries that are not, after the cleanup (the status manager's `TerminatePod`): init containers up to the last
    /// one that has started, at least one (`initializedContainers`), and regular ones if the pod was initialized. Ephemeral
    /// containers stay unchanged.
    pub fn terminate_remaining(&mut self, is_initialized: bool) {
        let terminate = |entry: &mut ContainerStatus| {
            if !has_exited(entry) {
                let message = "Nothing was left of the container when the pod was taken down";
                entry.state = Some(unknown_exit_state(message, entry.container_id.clone()));
                (entry.ready, entry.started) = (false, Some(false));
            }
        };
        if is_initialized {
            self.regular.iter_mut().for_each(terminate);
        }
        let tried = self.init.iter().rposition(has_started).map_or(1, |last| last + 1);
        self.init.iter_mut().take(tried).for_each(terminate);
    }
}

// === impl Known ===

impl<'a> Known<'a> {
    fn new(input: &'a StatusInput<'a>, spec: &'a PodSpec) -> Self {
        let mut instances = HashMap::<&str, Vec<&Instance>>::new();
        for instance in &input.observed.containers {
            instances.entry(&instance.name).or_default().push(instance);
        }
        let was_created = |container: &Container| {
            let newest = instances.get(&*container.name).and_then(|named| named.first());
            newest.is_some_and(|instance| instance.state != RuntimeState::Unknown)
        };
        Self {
            input,
            spec,
            any_regular: spec.containers.iter().any(was_created),
            instances,
        }
    }

    /// One entry for each name.
    fn entries<'s>(
        &self,
        slots: impl Iterator<Item = Slot<'s>>,
        before: Option<&[ContainerStatus]>,
    ) -> Vec<ContainerStatus> {
        let before = entries_by_name(before.unwrap_or_default());
        let mut seen = HashSet::new();
        let slots = slots.filter(|slot| seen.insert(&slot.1.name));
        let entries = slots.map(|slot| self.entry(slot, before.get(&*slot.1.name).copied()));
        entries.collect()
    }

    /// The entry of a container: from its newest instances, or from the API if the runtime has none.
    fn entry(&self, slot: Slot<'_>, previous: Option<&ContainerStatus>) -> ContainerStatus {
        let named = self.instances.get(&*slot.1.name).map(Vec::as_slice).unwrap_or_default();
        let mut entry = match named.first() {
            Some(newest) if !self.is_of_an_earlier_run(newest, previous) => {
                self.present_entry(slot, previous, newest, named.get(1).copied())
            }
            _ => self.absent_entry(slot, previous),
        };
        if let Some(previous) = previous {
            entry.restart_count = entry.restart_count.max(previous.restart_count);
            let is_later_run = entry.container_id != previous.container_id && self.may_run_again(slot, previous);
            if has_exited(previous) && !has_exited(&entry) && !is_later_run {
                entry = previous.clone();
            }
        }
        set_readiness(&mut entry, slot, previous);
        entry
    }

    /// Whether a container that the API shows as terminated may run. The API server rejects the whole status if its restart policy
    /// forbids that (`ValidateContainerStateTransition`). If it runs, that must be shown: a controller detaches the volumes of a pod
    /// in which nothing runs.
    fn may_run_again(&self, (role, _): Slot<'_>, previous: &ContainerStatus) -> bool {
        let end = previous.state.as_ref().and_then(|state| state.terminated.as_ref());
        match (role, self.spec.restart_policy.as_deref()) {
            (Role::Ephemeral, _) => false,
            (Role::Sidecar, _) | (_, None | Some("Always")) => true,
            (_, Some("OnFailure")) => end.is_some_and(|end| end.exit_code != 0),
            (_, Some(_)) => false,
        }
    }

    /// The newest instance is the state, the one before it the last state.
    fn present_entry(
        &self,
        (_, container): Slot<'_>,
        previous: Option<&ContainerStatus>,
        newest: &Instance,
        older: Option<&Instance>,
    ) -> ContainerStatus {
        let image = Some(&newest.image).filter(|image| !image.is_empty());
        ContainerStatus {
            container_id: Some(self.api_id(newest)),
            image: image.or(container.image.as_ref()).cloned().unwrap_or_default(),
            image_id: newest.image_ref.clone(),
            last_state: self.last_state(previous, newest, older),
            name: container.name.clone(),
            restart_count: newest.restart_count.max(0),
            state: Some(self.state(previous, newest)),
            ..Default::default()
        }
    }

    /// Whether the API had a later run of this container, which the runtime has lost. The exit code of an earlier run must not be
    /// used for it.
    fn is_of_an_earlier_run(&self, instance: &Instance, previous: Option<&ContainerStatus>) -> bool {
        previous.is_some_and(|previous| {
            let id = previous.container_id.as_deref().filter(|id| !id.is_empty());
            instance.state == RuntimeState::Exited
                && instance.restart_count < previous.restart_count
                && id.is_some_and(|id| id != self.api_id(instance))
        })
    }

    fn state(&self, previous: Option<&ContainerStatus>, instance: &Instance) -> ContainerState {
        // A terminated container stays terminated, even if the runtime has lost its exit code.
        let same = previous.filter(|previous| previous.container_id.as_deref() == Some(&self.api_id(instance)));
        let known = same.and_then(|same| same.state.as_ref());
        let known_end = known.filter(|state| state.terminated.is_some());
        let known_running = known.filter(|state| state.running.is_some()).cloned();
        match instance.state {
            RuntimeState::Running if instance.is_unread => known_running.unwrap_or_else(|| running(None)),
            RuntimeState::Created => known_end.cloned().unwrap_or_else(|| waiting(None)),
            RuntimeState::Running => running(instance.started_at),
            RuntimeState::Exited if !instance.is_unread => terminated_state(self.end(instance)),
            RuntimeState::Exited | RuntimeState::Unknown => {
                known_end.cloned().unwrap_or_else(|| match self.input.stage {
                    // It may run: no exit is reported before its stop. The kubelet reports 137 at once.
                    StatusStage::Terminating => known_running.unwrap_or_else(|| waiting(None)),
                    StatusStage::Stopped | StatusStage::Terminated => {
                        let message = "The runtime did not report how the container terminated";
                        unknown_exit_state(message, Some(self.api_id(instance)))
                    }
                })
            }
        }
    }

    /// The instance before the newest, else the last state in the API.
    fn last_state(
        &self,
        previous: Option<&ContainerStatus>,
        newest: &Instance,
        older: Option<&Instance>,
    ) -> Option<ContainerState> {
        if let Some(older) = older.filter(|older| older.state == RuntimeState::Exited && !older.is_unread) {
            return Some(terminated_state(self.end(older)));
        }
        let previous = previous?;
        match has_exited(previous) && previous.container_id.as_deref() != Some(&self.api_id(newest)) {
            true => previous.state.clone(),
            false => previous.last_state.clone(),
        }
    }

    fn end(&self, instance: &Instance) -> ContainerStateTerminated {
        // Like the kubelet: 1970 if the runtime has no time, as for a container that never started, and no times for an unknown exit.
        let is_unknown = instance.reason == STATUS_UNKNOWN;
        let time = |time: Option<Timestamp>| time.or((!is_unknown).then_some(Timestamp::UNIX_EPOCH)).map(Time);
        ContainerStateTerminated {
            container_id: Some(self.api_id(instance)),
            exit_code: instance.exit_code,
            finished_at: time(instance.finished_at),
            message: joined(&instance.message, self.input.messages.get(&instance.id)),
            reason: Some(instance.reason.clone()).filter(|reason| !reason.is_empty()),
            signal: None,
            started_at: time(instance.started_at),
        }
    }

    fn api_id(&self, instance: &Instance) -> String {
        format!("{}://{}", self.input.runtime_name, instance.id)
    }

    /// The entry of a container that the runtime does not have.
    fn absent_entry(&self, (role, container): Slot<'_>, previous: Option<&ContainerStatus>) -> ContainerStatus {
        let is_stopped = self.input.stage != StatusStage::Terminating;
        let (shown, last) = previous.map_or((None, None), |it| (it.state.clone(), it.last_state.clone()));
        let shown = shown.unwrap_or_default();
        let (is_running, is_exited) = (shown.running.is_some(), shown.terminated.is_some());
        let crashed = last.as_ref().and_then(|last| last.terminated.as_ref());
        // A crash loop ends with its last exit, unless that was a success, which is not certain.
        let is_crash = shown.waiting.as_ref().and_then(|it| it.reason.as_deref()) == Some(CRASH_LOOP)
            && crashed.is_some_and(|exit| exit.exit_code != 0);
        // The kubelet drops the IDs of a lost container. They are needed to search the logs.
        let mut entry = match previous.filter(|previous| previous.container_id.is_some()) {
            Some(previous) => previous.clone(),
            None => ContainerStatus {
                name: container.name.clone(),
                image: container.image.clone().unwrap_or_default(),
                ..Default::default()
            },
        };
        (entry.state, entry.last_state) = match () {
            // A runtime that was queried too early can still correct it.
            () if is_exited || is_running && !is_stopped => (Some(shown), last),
            // An init container without a record has succeeded if a regular container was created after it.
            () if role == Role::Init && self.any_regular => (Some(inferred_success()), last),
            () if is_running => {
                let message =
                    "The runtime no longer knew the container when the pod was taken down; it was running before";
                (Some(unknown_exit_state(message, entry.container_id.clone())), last)
            }
            () if is_crash && is_stopped => (last, None),
            // The kubelet keeps the reason of a failed start in memory. This agent takes it from the API.
            () if shown.waiting.is_some() => (Some(shown), last),
            () => (Some(waiting(Some(default_reason(self.spec)))), last),
        };
        entry
    }
}

/// `started` and `ready`. Without own probes a running container keeps its values in the API: the teardown does not make it
/// unready.
fn set_readiness(entry: &mut ContainerStatus, (role, container): Slot<'_>, previous: Option<&ContainerStatus>) {
    let runs = is_running(entry);
    let end = entry.state.as_ref().and_then(|state| state.terminated.as_ref());
    let same_run = previous.filter(|previous| previous.container_id == entry.container_id && is_running(previous));
    let was_started = same_run.and_then(|same| same.started);
    let started = runs && was_started.unwrap_or(container.startup_probe.is_none());
    match role {
        // They have no probes. The kubelet leaves both fields unchanged.
        Role::Ephemeral => {
            entry.started = same_run.filter(|_| runs).and_then(|same| same.started);
            entry.ready = same_run.is_some_and(|same| runs && same.ready);
        }
        Role::Init => {
            entry.ready = end.is_some_and(|end| end.exit_code == 0);
            entry.started = Some(started);
        }
        Role::Regular | Role::Sidecar => {
            entry.started = Some(started);
            entry.ready = started && same_run.map_or(container.readiness_probe.is_none(), |same| same.ready);
        }
    }
}

fn running(started_at: Option<Timestamp>) -> ContainerState {
    let started_at = started_at.map(Time);
    ContainerState {
        running: Some(ContainerStateRunning { started_at }),
        ..Default::default()
    }
}

fn inferred_success() -> ContainerState {
    let message = "The runtime has no record of it, but the pod was initialized, so it must have succeeded";
    terminated_state(ContainerStateTerminated {
        exit_code: 0,
        reason: Some("Completed".into()),
        message: Some(message.into()),
        ..Default::default()
    })
}

fn default_reason(spec: &PodSpec) -> &'static str {
    match spec.init_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        true => "PodInitializing",
        false => "ContainerCreating",
    }
}

fn waiting(reason: Option<&str>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: reason.map(Into::into),
            message: None,
        }),
        ..Default::default()
    }
}

/// The runtime's message, then the container's (`convertToKubeContainerStatus`).
fn joined(runtime: &str, own: Option<&String>) -> Option<String> {
    match (runtime, own.map_or("", String::as_str)) {
        ("", "") => None,
        ("", own) => Some(own.to_owned()),
        (runtime, "") => Some(runtime.to_owned()),
        (runtime, own) => Some(format!("{runtime}: {own}")),
    }
}

/// The state of a container whose exit is unknown: no times.
fn unknown_exit_state(message: &str, container_id: Option<String>) -> ContainerState {
    terminated_state(ContainerStateTerminated {
        container_id,
        exit_code: UNKNOWN_EXIT_CODE,
        message: Some(message.into()),
        reason: Some(STATUS_UNKNOWN.into()),
        ..Default::default()
    })
}

fn terminated_state(end: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(end),
        ..Default::default()
    }
}
