//! The status of a container from its newest instances in the runtime.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::input::{StatusInput, StatusStage};
use super::message::joined;
use super::slot::{Kind, Slot, terminated_state, unknown_exit_state};
use crate::{
    model::pod::STATUS_UNKNOWN,
    node::cri::types::{Container, ContainerState as RuntimeState},
};

/// The newest instance is the state, the one before it the last state.
pub(super) fn entry(
    input: &StatusInput<'_>,
    slot: &Slot<'_>,
    previous: Option<&ContainerStatus>,
    newest: &Container,
    older: Option<&Container>,
) -> ContainerStatus {
    let image = if newest.image.is_empty() {
        slot.image
    } else {
        &newest.image
    };
    ContainerStatus {
        container_id: Some(api_id(input, newest)),
        image: image.to_owned(),
        image_id: newest.image_ref.clone(),
        last_state: last_state(input, previous, newest, older),
        name: slot.name.to_owned(),
        restart_count: newest.restart_count.max(0),
        state: Some(state(input, previous, newest)),
        ..Default::default()
    }
}

/// Whether the API had a later run of this container, which the runtime has lost. The exit code of an earlier run must not be
/// used for it.
pub(super) fn is_of_an_earlier_run(
    input: &StatusInput<'_>,
    instance: &Container,
    previous: Option<&ContainerStatus>,
) -> bool {
    previous.is_some_and(|previous| {
        instance.state == RuntimeState::Exited
            && instance.restart_count < previous.restart_count
            && previous
                .container_id
                .as_deref()
                .is_some_and(|id| !id.is_empty() && id != api_id(input, instance))
    })
}

/// `started` and `ready`. Without own probes a running container keeps its values in the API: the teardown does not make it
/// unready.
pub(super) fn set_readiness(entry: &mut ContainerStatus, slot: &Slot<'_>, previous: Option<&ContainerStatus>) {
    let state = entry.state.as_ref();
    let runs = state.is_some_and(|state| state.running.is_some());
    let done = state
        .and_then(|state| state.terminated.as_ref())
        .is_some_and(|end| end.exit_code == 0);
    let same_run = previous.filter(|previous| {
        previous.container_id == entry.container_id
            && previous.state.as_ref().is_some_and(|state| state.running.is_some())
    });
    let started = runs
        && same_run
            .and_then(|same| same.started)
            .unwrap_or(!slot.has_startup_probe);
    match slot.kind {
        // They have no probes. The kubelet leaves both fields unchanged.
        Kind::Ephemeral => {
            entry.started = same_run.filter(|_| runs).and_then(|same| same.started);
            entry.ready = same_run.is_some_and(|same| runs && same.ready);
        }
        Kind::Init => {
            entry.started = Some(started);
            entry.ready = done;
        }
        Kind::Regular | Kind::Sidecar => {
            entry.started = Some(started);
            entry.ready = started && same_run.map_or(!slot.has_readiness_probe, |same| same.ready);
        }
    }
}

fn state(input: &StatusInput<'_>, previous: Option<&ContainerStatus>, instance: &Container) -> ContainerState {
    // A terminated container stays terminated, even if the runtime has lost its exit code.
    let same = previous.filter(|previous| previous.container_id.as_deref() == Some(&api_id(input, instance)));
    let known = same.and_then(|same| same.state.as_ref());
    let known_end = known.filter(|state| state.terminated.is_some());
    match instance.state {
        RuntimeState::Running if instance.is_unread => known
            .filter(|state| state.running.is_some())
            .cloned()
            .unwrap_or_else(|| running(None)),
        RuntimeState::Created => known_end.cloned().unwrap_or_else(waiting_for_nothing),
        RuntimeState::Running => running(instance.started_at),
        RuntimeState::Exited if !instance.is_unread => terminated_state(end(input, instance)),
        RuntimeState::Exited | RuntimeState::Unknown => known_end.cloned().unwrap_or_else(|| match input.stage {
            // It may run: no exit is reported before its stop. The kubelet reports 137 at once.
            StatusStage::Terminating => known
                .filter(|state| state.running.is_some())
                .cloned()
                .unwrap_or_else(waiting_for_nothing),
            StatusStage::Stopped | StatusStage::Terminated => unknown_exit(input, instance),
        }),
    }
}

/// The instance before the newest, else the last state in the API.
fn last_state(
    input: &StatusInput<'_>,
    previous: Option<&ContainerStatus>,
    newest: &Container,
    older: Option<&Container>,
) -> Option<ContainerState> {
    if let Some(older) = older.filter(|older| older.state == RuntimeState::Exited) {
        if !older.is_unread {
            return Some(terminated_state(end(input, older)));
        }
        let shown = exit_in_api(input, previous, older);
        if shown.is_some() || input.stage != StatusStage::Terminating {
            return Some(shown.unwrap_or_else(|| unknown_exit(input, older)));
        }
    }
    let previous = previous?;
    let ended_before = previous.state.as_ref().filter(|state| state.terminated.is_some());
    match ended_before {
        Some(ended) if previous.container_id.as_deref() != Some(&api_id(input, newest)) => Some(ended.clone()),
        Some(_) | None => previous.last_state.clone(),
    }
}

/// The exit of an earlier instance in the API, if the runtime's cannot be read.
fn exit_in_api(
    input: &StatusInput<'_>,
    previous: Option<&ContainerStatus>,
    instance: &Container,
) -> Option<ContainerState> {
    let previous = previous?;
    let of_this = |state: &&ContainerState| {
        let end = state.terminated.as_ref();
        end.is_some_and(|end| end.container_id.as_deref() == Some(&api_id(input, instance)))
    };
    let states = [&previous.state, &previous.last_state].into_iter().flatten();
    states.into_iter().find(of_this).cloned()
}

fn unknown_exit(input: &StatusInput<'_>, instance: &Container) -> ContainerState {
    let id = ContainerStatus {
        container_id: Some(api_id(input, instance)),
        ..Default::default()
    };
    unknown_exit_state("The runtime did not report how the container terminated", &id)
}

fn running(started_at: Option<Timestamp>) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: started_at.map(Time),
        }),
        ..Default::default()
    }
}

fn end(input: &StatusInput<'_>, instance: &Container) -> ContainerStateTerminated {
    // Like the kubelet: 1970 if the runtime has no time, as for a container that never started, and no times for an unknown exit.
    let is_unknown = instance.reason == STATUS_UNKNOWN;
    let time = |time: Option<Timestamp>| time.or((!is_unknown).then_some(Timestamp::UNIX_EPOCH)).map(Time);
    ContainerStateTerminated {
        container_id: Some(api_id(input, instance)),
        exit_code: instance.exit_code,
        finished_at: time(instance.finished_at),
        message: joined(&instance.message, input.messages.get(&instance.id)),
        reason: Some(instance.reason.clone()).filter(|reason| !reason.is_empty()),
        signal: None,
        started_at: time(instance.started_at),
    }
}

fn waiting_for_nothing() -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting::default()),
        ..Default::default()
    }
}

fn api_id(input: &StatusInput<'_>, instance: &Container) -> String {
    format!("{}://{}", input.runtime_name, instance.id)
}
