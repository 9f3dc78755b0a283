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

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    model::termination::Eviction,
    node::cri::types::{Container, ContainerState, RuntimePod},
};

pub use deadline::REASON as DEADLINE_EXCEEDED;
pub use message::Messages;
pub use patch::patch;
pub use phase::Phase;

/// Stage of the teardown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before and while containers are stopped: processes may run, and no terminal phase is reported.
    Terminating,
    /// All containers are stopped and devices unprepared (the kubelet's `podIsTerminal`).
    Stopped,
    /// Volumes are unmounted and the cgroup is removed (the kubelet's `TerminatePod`).
    Terminated,
}

/// Input of a status.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The pod in the API, with its status.
    pub pod: &'a Pod,
    /// The pod in the runtime.
    pub observed: &'a RuntimePod,
    /// Name of the runtime: container IDs in the API are `<runtime>://<id>`.
    pub runtime_name: &'a str,
    /// Wall clock, for start and transition times.
    pub now: Timestamp,
    /// Stage of the teardown.
    pub stage: Stage,
    /// The eviction that a user requested.
    pub imposed: Option<&'a Eviction>,
    /// Termination messages read from disk.
    pub messages: &'a Messages,
}

// === impl Facts ===

impl Facts<'_> {
    /// The stage to report. If a container runs, the pod is not stopped, regardless of the caller (invariant 1).
    fn stage(&self) -> Stage {
        let runs = |container: &Container| container.state == ContainerState::Running;
        if self.observed.containers.iter().any(runs) {
            Stage::Terminating
        } else {
            self.stage
        }
    }
}

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

/// `CalculatePodStatusObservedGeneration`, never less than in the API.
fn observed_generation(pod: &Pod, api: &PodStatus) -> Option<i64> {
    pod.metadata
        .generation
        .filter(|generation| *generation > 0)
        .max(api.observed_generation)
}

/// The API server omits empty lists. Without this, each comparison would find a difference.
fn some_unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}
