//! The form in which a status is compared and sent: whole seconds and limited messages (`normalizeStatus`).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::message::{share, truncate};

pub(super) fn normalize(pod: &Pod, status: &mut PodStatus) {
    let limit = share(containers_of(pod));
    whole_seconds(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        whole_seconds(&mut condition.last_probe_time);
        whole_seconds(&mut condition.last_transition_time);
    }
    for entry in entries(status) {
        normalize_entry(entry, limit);
    }
}

/// Keeps one member of each container state. The API server also accepts several. A terminated container stays terminated, and a
/// running one may run.
pub(super) fn keep_one_member_per_state(status: &mut PodStatus) {
    for entry in entries(status) {
        for state in [&mut entry.state, &mut entry.last_state].into_iter().flatten() {
            if state.terminated.is_some() {
                state.running = None;
            }
            if state.terminated.is_some() || state.running.is_some() {
                state.waiting = None;
            }
        }
    }
}

/// The entries of all containers.
fn entries(status: &mut PodStatus) -> impl Iterator<Item = &mut ContainerStatus> {
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}

fn normalize_entry(entry: &mut ContainerStatus, limit: usize) {
    // The server has an empty last state where this agent has none.
    entry.last_state = entry
        .last_state
        .take()
        .filter(|last| *last != ContainerState::default());
    for state in [&mut entry.state, &mut entry.last_state].into_iter().flatten() {
        if let Some(running) = &mut state.running {
            whole_seconds(&mut running.started_at);
        }
        if let Some(end) = &mut state.terminated {
            whole_seconds(&mut end.started_at);
            whole_seconds(&mut end.finished_at);
            if let Some(message) = &mut end.message {
                truncate(message, limit);
            }
        }
    }
}

/// Number of containers of all kinds: they share the bytes for messages.
fn containers_of(pod: &Pod) -> usize {
    pod.spec.as_ref().map_or(0, |spec| {
        spec.containers.len()
            + spec.init_containers.as_ref().map_or(0, Vec::len)
            + spec.ephemeral_containers.as_ref().map_or(0, Vec::len)
    })
}

fn whole_seconds(time: &mut Option<Time>) {
    if let Some(Time(time)) = time {
        *time = Timestamp::from_second(time.as_second()).unwrap_or(*time);
    }
}
