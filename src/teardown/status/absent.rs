//! The status of a container that the runtime does not have, from its status in the API.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, PodSpec,
};

use super::index::Instances;
use super::input::{StatusInput, StatusStage};
use super::slot::{Kind, Slot, terminated_state, unknown_exit_state};

const CRASH_LOOP: &str = "CrashLoopBackOff";

/// The entry of a container that the runtime does not have.
pub(super) fn entry(
    input: &StatusInput<'_>,
    spec: &PodSpec,
    instances: &Instances<'_>,
    slot: &Slot<'_>,
    previous: Option<&ContainerStatus>,
) -> ContainerStatus {
    let waiting = ContainerState {
        waiting: Some(default_waiting(spec)),
        ..Default::default()
    };
    let Some(previous) = previous else {
        let mut entry = new_entry(slot, waiting);
        infer_success(instances, slot, &mut entry);
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
        ..new_entry(slot, waiting)
    };
    if previous.container_id.is_some() {
        // The kubelet drops the IDs of a lost container. They are needed to search the logs.
        entry.container_id.clone_from(&previous.container_id);
        entry.image.clone_from(&previous.image);
        entry.image_id.clone_from(&previous.image_id);
    }
    if infer_success(instances, slot, &mut entry) {
        return entry;
    }
    if state.running.is_some() {
        set_lost_state(input, &mut entry);
    } else if input.pod.metadata.deletion_timestamp.is_none() {
        set_waiting_state(input, state, &mut entry);
    }
    entry
}

/// A running container that the runtime has lost.
fn set_lost_state(input: &StatusInput<'_>, entry: &mut ContainerStatus) {
    let end = unknown_exit_state(
        "The runtime no longer knew the container when the pod was taken down; it was running before",
        entry,
    );
    match input.stage {
        // Like the kubelet: waiting with a last state, so that a runtime that was queried too early can still correct it.
        StatusStage::Terminating => {
            if entry.last_state.as_ref().is_none_or(|last| last.terminated.is_none()) {
                entry.last_state = Some(end);
            }
        }
        StatusStage::Stopped | StatusStage::Terminated => entry.state = Some(end),
    }
}

/// The kubelet keeps the reason of a failed start in memory. This agent takes it from the entry in the API. A crash loop ends
/// with its last exit, unless that was a success, which is not certain.
fn set_waiting_state(input: &StatusInput<'_>, state: ContainerState, entry: &mut ContainerStatus) {
    let Some(waiting) = state.waiting else { return };
    let crashed = entry.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let crashed = crashed.is_some_and(|end| end.exit_code != 0) && waiting.reason.as_deref() == Some(CRASH_LOOP);
    entry.state = match input.stage {
        StatusStage::Stopped | StatusStage::Terminated if crashed => entry.last_state.take(),
        StatusStage::Terminating | StatusStage::Stopped | StatusStage::Terminated => Some(ContainerState {
            waiting: Some(waiting),
            ..Default::default()
        }),
    };
}

/// An init container without a record has succeeded if a regular container was created after it.
fn infer_success(instances: &Instances<'_>, slot: &Slot<'_>, entry: &mut ContainerStatus) -> bool {
    let inferred = slot.kind == Kind::Init && instances.any_regular;
    if inferred {
        entry.state = Some(terminated_state(ContainerStateTerminated {
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

fn new_entry(slot: &Slot<'_>, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: slot.name.to_owned(),
        image: slot.image.to_owned(),
        state: Some(state),
        ..Default::default()
    }
}
