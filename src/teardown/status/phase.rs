//! The phase of a pod, with reason and message: from the states of its containers, an eviction or its active deadline.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus};

use super::{
    containers::{Lists, entries_by_name},
    input::{StatusInput, StatusStage},
};
use crate::{
    model::pod::{is_sidecar, is_terminal_phase},
    node::cri::types::{Container as Instance, ContainerState as InstanceState},
};

/// Reason of a pod that has exceeded its active deadline.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
const DEADLINE_MESSAGE: &str = "The pod was still active when its activeDeadlineSeconds were over";

/// Phase of a pod whose containers have all exited with 0, and do not run again.
pub(super) const SUCCEEDED: &str = "Succeeded";
/// Phase of a pod of which a container has not exited with 0, or which was evicted.
pub(super) const FAILED: &str = "Failed";
/// Phase of a pod of which not all containers have been started.
const PENDING: &str = "Pending";

/// Whether a status has a terminal phase, which a pod never leaves.
pub fn has_terminal_phase(status: &PodStatus) -> bool {
    status.phase.as_deref().is_some_and(is_terminal_phase)
}

/// The phase of this status, with its reason and message.
pub(super) fn of_status(status: &PodStatus) -> PodStatus {
    PodStatus {
        phase: status.phase.clone(),
        reason: status.reason.clone(),
        message: status.message.clone(),
        ..PodStatus::default()
    }
}

/// A phase with its reason and message, which may be empty.
pub(super) fn new(phase: &str, reason: &str, message: &str) -> PodStatus {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    PodStatus {
        phase: Some(phase.to_owned()),
        reason: text(reason),
        message: text(message),
        ..PodStatus::default()
    }
}

/// Phase, reason and message, by precedence: a terminal phase in the API, an eviction, the active deadline, the containers. The
/// phase of the containers follows after their stop.
pub(super) fn decide(input: &StatusInput<'_>, spec: &PodSpec, api: &PodStatus, lists: &Lists) -> PodStatus {
    if has_terminal_phase(api) {
        return of_status(api);
    }
    if let Some(eviction) = input.eviction {
        return new(FAILED, &eviction.reason, &eviction.message);
    }
    if exceeds_deadline(input, spec, api) {
        return new(FAILED, DEADLINE_EXCEEDED, DEADLINE_MESSAGE);
    }
    match input.stage {
        StatusStage::Terminating => of_status(api),
        StatusStage::Stopped | StatusStage::Terminated => match phase_of_containers(spec, lists) {
            phase if api.phase.as_deref() == Some(phase) => of_status(api),
            phase => new(phase, "", ""),
        },
    }
}

/// Whether the pod ran past its deadline (the kubelet's `activeDeadlineHandler`).
///
/// A pod whose containers had all exited before the deadline has not exceeded it, even if that was not reported in time.
fn exceeds_deadline(input: &StatusInput<'_>, spec: &PodSpec, api: &PodStatus) -> bool {
    let Some(seconds) = spec.active_deadline_seconds else {
        return false;
    };
    // A pod without start time gets the current one.
    let start = api.start_time.as_ref().map_or(input.now, |start| start.0);
    let Ok(deadline) = start.checked_add(SignedDuration::from_secs(seconds.max(0))) else {
        return false;
    };
    let exited_in_time = |container: &Instance| {
        container.state == InstanceState::Exited && container.finished_at.is_some_and(|end| end < deadline)
    };
    let newest = |name: &str| input.observed.newest(name);
    let mut regular = spec.containers.iter();
    let is_kept = !spec.containers.is_empty() && regular.all(|it| newest(&it.name).is_some_and(exited_in_time));
    input.now >= deadline && !is_kept
}

/// `getPhase`, for a pod in which nothing runs or restarts. Ephemeral containers never count, and an exited sidecar does not
/// affect the result.
fn phase_of_containers(spec: &PodSpec, lists: &Lists) -> &'static str {
    let (init, regular) = (entries_by_name(&lists.init), entries_by_name(&lists.regular));
    let (mut has_failed, mut is_unstarted) = (false, spec.containers.is_empty());
    let never_restarts = |container: &Container| {
        let policy = container.restart_policy.as_ref().or(spec.restart_policy.as_ref());
        policy.is_some_and(|policy| policy == "Never")
    };
    for container in spec.init_containers.iter().flatten() {
        match last_exit_code(init.get(&*container.name)) {
            Some(0) => {}
            // Else it was to run again.
            Some(_) if !is_sidecar(container) && never_restarts(container) => return FAILED,
            Some(_) => {}
            None => is_unstarted = true,
        }
    }
    for container in &spec.containers {
        let entry = regular.get(&*container.name);
        let waits = entry.is_some_and(|entry| entry.state.as_ref().is_some_and(|state| state.terminated.is_none()));
        match last_exit_code(entry) {
            // One that was meant to run again is not a success.
            Some(code) => has_failed |= code != 0 || waits,
            None => is_unstarted = true,
        }
    }
    match (is_unstarted, has_failed) {
        (true, _) => PENDING,
        (false, true) => FAILED,
        (false, false) => SUCCEEDED,
    }
}

/// The exit code of the container, or of its last run if it waits for the next one.
fn last_exit_code(entry: Option<&&ContainerStatus>) -> Option<i32> {
    let states = [&entry?.state, &entry?.last_state].into_iter().flatten();
    let mut exits = states.filter_map(|state| state.terminated.as_ref());
    exits.next().map(|exit| exit.exit_code)
}
