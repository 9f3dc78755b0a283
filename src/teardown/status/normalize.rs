//! The form in which a status is compared and sent: whole seconds and limited messages (`normalizeStatus`).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::model::pod::container_statuses_mut;

/// Bytes for the termination messages of one pod (`MaxPodTerminationMessageLogLength`), shared by its containers.
const MESSAGES: usize = 12 * 1024;

/// Brings a status into that form.
pub(super) fn normalize(spec: &PodSpec, status: &mut PodStatus) {
    let others = [
        spec.init_containers.as_ref().map_or(0, Vec::len),
        spec.ephemeral_containers.as_ref().map_or(0, Vec::len),
    ];
    let limit = MESSAGES / (spec.containers.len() + others.iter().sum::<usize>()).max(1);
    whole_seconds(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        whole_seconds(&mut condition.last_probe_time);
        whole_seconds(&mut condition.last_transition_time);
    }
    for entry in container_statuses_mut(status) {
        // The server has an empty last state where this agent has none.
        entry.last_state.take_if(|last| *last == ContainerState::default());
        for state in [&mut entry.state, &mut entry.last_state].into_iter().flatten() {
            if let Some(running) = &mut state.running {
                whole_seconds(&mut running.started_at);
            }
            if let Some(end) = &mut state.terminated {
                whole_seconds(&mut end.started_at);
                whole_seconds(&mut end.finished_at);
                if let Some(message) = &mut end.message {
                    // Without splitting a character, unlike the kubelet.
                    message.truncate(message.floor_char_boundary(limit));
                }
            }
        }
    }
}

fn whole_seconds(time: &mut Option<Time>) {
    if let Some(Time(time)) = time {
        *time = Timestamp::from_second(time.as_second()).unwrap_or(*time);
    }
}
