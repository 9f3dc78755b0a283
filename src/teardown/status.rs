//! The pod status that the API should show, as a pure function of the pod, the runtime and the time.
//!
//! `observed → container lists → phase → (after clean-up: what nobody can tell any more) → conditions → wanted → patch`
//!
//! [`generate`] says what the status should be, [`patch`] turns that into the smallest request against the live object.
//! Neither waits, reads or sends anything.
//! Reasons and the short forms of condition messages are those of the kubelet, so that a hand-over changes no object.

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

/// How far the teardown of the pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before and while containers are stopped: processes may still run, so no terminal phase is reported yet.
    Terminating,
    /// All containers are stopped and devices released (the kubelet's `podIsTerminal`).
    Stopped,
    /// Volumes and cgroup are gone too: nothing is left to learn (the kubelet's `TerminatePod`).
    Terminated,
}

/// All that a status is made of.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The pod as the API last showed it, with its status.
    pub pod: &'a Pod,
    /// What the runtime knows of it.
    pub observed: &'a RuntimePod,
    /// The CRI's runtime name; container ids read `<runtime>://<id>`.
    pub runtime_name: &'a str,
    /// Wall clock, for new start and transition times.
    pub now: Timestamp,
    /// How far the teardown has come.
    pub stage: Stage,
    /// The end somebody decided on.
    pub imposed: Option<&'a Eviction>,
    /// Termination messages already read from disk.
    pub messages: &'a Messages,
}

// === impl Facts ===

impl Facts<'_> {
    /// The stage to report by. A container that is seen running refutes the caller: invariant 1 weighs more than his word.
    fn stage(&self) -> Stage {
        let runs = |container: &Container| container.state == ContainerState::Running;
        if self.observed.containers.iter().any(runs) {
            Stage::Terminating
        } else {
            self.stage
        }
    }
}

/// The status that the API should show for this pod. Everything that is not ours is taken over from the API's status.
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
    // Conditions follow the end that is decided, even while the phase itself is held back: an evicted pod leaves its
    // endpoints before its containers are stopped. They do not follow an end for want of knowledge: as with the kubelet,
    // they go on telling what was wanting.
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

/// `CalculatePodStatusObservedGeneration`, and never less than the API shows.
fn observed_generation(pod: &Pod, api: &PodStatus) -> Option<i64> {
    pod.metadata
        .generation
        .filter(|generation| *generation > 0)
        .max(api.observed_generation)
}

/// The API server leaves out empty lists; so do we, or every comparison would find a difference.
fn some_unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}
