//! The pod status that the API should show, as a pure function of the pod, the runtime and the time.
//!
//! `observed → container lists → phase → (after cleanup: unknown exits) → conditions → wanted → patch`
//!
//! [`generate`] returns the wanted status, and [`patch`] the smallest patch of the live object. Neither waits, reads or sends
//! anything. Reasons and short forms of condition messages are the kubelet's, so that a handover changes no object.

mod absent;
mod addresses;
mod conditions;
mod containers;
mod deadline;
mod index;
mod input;
mod instance;
mod merge;
mod message;
mod normalize;
mod patch;
mod phase;
mod phase_decision;
mod readiness;
mod restart;
mod slot;
mod tally;
mod terminated;
mod transition;

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use conditions::observed_generation;

#[cfg(feature = "agent")]
pub use conditions::{DISRUPTION_TARGET, is_set_by_agent};

pub use deadline::REASON as DEADLINE_EXCEEDED;
pub use input::{StatusInput, StatusStage};
pub use message::Messages;
pub use patch::patch;
pub use phase::Phase;

/// The wanted status. Fields that this agent does not own are those of the API.
pub fn generate(input: &StatusInput<'_>) -> PodStatus {
    let input = &StatusInput {
        stage: input.stage(),
        ..*input
    };
    let mut api = input.pod.status.clone().unwrap_or_default();
    normalize::keep_one_member_per_state(&mut api);
    let mut lists = containers::lists(input, &api);
    let mut decision = phase_decision::decide(input, &api, &lists);
    let decided = decision.clone();
    if input.stage == StatusStage::Terminated {
        terminated::terminate_remaining(input.pod, &api, &mut lists, &mut decision);
    }
    // Conditions follow the decided phase, even while the phase itself is held back: an evicted pod leaves its endpoints before
    // its containers are stopped. If a pod fails only because exit codes are unknown, conditions keep their messages, as with the
    // kubelet.
    let conditions = conditions::build(input, &api, &lists, &decided);
    let decision = decision.without_early_terminal_phase(input.stage, &api);
    let (pod_ip, pod_ips) = addresses::pod_addresses(input, &api);

    let mut status = PodStatus {
        conditions: some_unless_empty(conditions),
        container_statuses: some_unless_empty(lists.regular),
        init_container_statuses: some_unless_empty(lists.init),
        ephemeral_container_statuses: some_unless_empty(lists.ephemeral),
        observed_generation: observed_generation(input.pod, &api),
        phase: decision.phase,
        reason: decision.reason,
        message: decision.message,
        pod_ip,
        pod_ips,
        start_time: api.start_time.clone().or(Some(Time(input.now))),
        ..api
    };
    normalize::normalize(input.pod, &mut status);
    status
}

/// The API server omits empty lists. Without this, each comparison would find a difference.
fn some_unless_empty<T>(mut list: Vec<T>) -> Option<Vec<T>> {
    // A list of one container reserves kilobytes for three more.
    list.shrink_to_fit();
    if list.is_empty() { None } else { Some(list) }
}
