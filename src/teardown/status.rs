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
mod facts;
mod index;
mod instance;
mod merge;
mod message;
mod normalize;
mod patch;
mod phase;
mod readiness;
mod restart;
mod slot;
mod tally;
mod terminated;
mod transition;
mod verdict;

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use conditions::observed_generation;

pub use deadline::REASON as DEADLINE_EXCEEDED;
pub use facts::{Facts, Stage};
pub use message::Messages;
pub use patch::patch;
pub use phase::Phase;

/// The wanted status. Fields that this agent does not own are those of the API.
pub fn generate(facts: &Facts<'_>) -> PodStatus {
    let facts = &Facts {
        stage: facts.stage(),
        ..*facts
    };
    let api = facts.pod.status.clone().unwrap_or_default();
    let mut lists = containers::lists(facts, &api);
    let mut verdict = verdict::decide(facts, &api, &lists);
    let decided = verdict.clone();
    if facts.stage == Stage::Terminated {
        terminated::settle(facts.pod, &api, &mut lists, &mut verdict);
    }
    // Conditions follow the decided phase, even while the phase itself is held back: an evicted pod leaves its endpoints before
    // its containers are stopped. If a pod fails only because exit codes are unknown, conditions keep their messages, as with the
    // kubelet.
    let conditions = conditions::build(facts, &api, &lists, &decided);
    let verdict = verdict.held_back(facts.stage, &api);
    let (pod_ip, pod_ips) = addresses::pod_addresses(facts, &api);

    let mut status = PodStatus {
        conditions: some_unless_empty(conditions),
        container_statuses: some_unless_empty(lists.regular),
        init_container_statuses: some_unless_empty(lists.init),
        ephemeral_container_statuses: some_unless_empty(lists.ephemeral),
        observed_generation: observed_generation(facts.pod, &api),
        phase: verdict.phase,
        reason: verdict.reason,
        message: verdict.message,
        pod_ip,
        pod_ips,
        start_time: api.start_time.clone().or(Some(Time(facts.now))),
        ..api
    };
    normalize::normalize(facts.pod, &mut status);
    status
}

/// The API server omits empty lists. Without this, each comparison would find a difference.
fn some_unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}
