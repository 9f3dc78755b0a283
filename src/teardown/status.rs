//! The pod status that the API should show, as a pure function of the pod, the runtime and the time.
//!
//! `observed → container lists → phase → (after cleanup: unknown exits) → conditions → wanted → patch`
//!
//! [`generate`] returns the wanted status, and [`patch()`] the smallest patch of the same object. Neither waits, reads or sends
//! anything. Reasons and short forms of condition messages are the kubelet's, so that a handover changes no object.

mod conditions;
mod containers;
mod input;
mod normalize;
mod patch;
mod phase;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use conditions::observed_generation;
use normalize::normalize;
use phase::FAILED;

#[cfg(feature = "agent")]
pub use conditions::{DISRUPTION_TARGET, is_set_by_agent};
pub use input::{Messages, StatusInput, StatusStage};
pub use patch::patch;
pub use phase::{DEADLINE_EXCEEDED, has_terminal_phase};

/// The wanted status. Fields that this agent does not own are those of the API.
pub fn generate(input: &StatusInput<'_>) -> PodStatus {
    let input = &StatusInput {
        stage: input.stage(),
        ..*input
    };
    let no_spec = PodSpec::default();
    let spec = input.pod.spec.as_ref().unwrap_or(&no_spec);
    let api = input.pod.status.clone().unwrap_or_default();
    let mut lists = containers::lists(input, spec, &api);
    let mut decision = phase::decide(input, spec, &api, &lists);
    let initialized = conditions::initialized(spec, &api, &lists);
    let decided = decision.clone();
    if input.stage == StatusStage::Terminated {
        lists.terminate_remaining(conditions::was_initialized(input.pod, spec, &api, &lists));
        if !has_terminal_phase(&decision) {
            decision = phase::new(FAILED, "", "");
        }
    }
    // Conditions follow the decided phase, even while the phase itself is held back: an evicted pod leaves its endpoints before
    // its containers are stopped. If a pod fails only because exit codes are unknown, conditions keep their messages, as with the
    // kubelet.
    let conditions = conditions::build(input, spec, &api, &lists, (&decided, initialized));
    // A terminal phase waits while a process may run: the pod's exclusive resources are not free (`mergePodStatus`).
    if input.stage == StatusStage::Terminating && has_terminal_phase(&decision) {
        decision = phase::of_status(&api);
    }
    let (pod_ip, pod_ips) = addresses(input, &api);

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
    normalize(spec, &mut status);
    status
}

/// The API server omits empty lists. Without this, each comparison would find a difference.
fn some_unless_empty<T>(mut list: Vec<T>) -> Option<Vec<T>> {
    // A list of one container reserves kilobytes for three more.
    list.shrink_to_fit();
    if list.is_empty() { None } else { Some(list) }
}

/// `podIP` and `podIPs`: those of the API, else of the newest sandbox, at most one of each family (`sortPodIPs`), or the node's.
///
/// The kubelet removes them if it restarts after the sandbox was removed. Here they stay: no other pod may have them while this
/// one is found by them.
fn addresses(input: &StatusInput<'_>, api: &PodStatus) -> (Option<String>, Option<Vec<PodIP>>) {
    if api.pod_ip.as_ref().is_some_and(|ip| !ip.is_empty()) {
        return (api.pod_ip.clone(), api.pod_ips.clone());
    }
    let newest = input.observed.sandboxes.first();
    let ready = newest.filter(|sandbox| sandbox.is_ready);
    let mut ips: Vec<String> = Vec::new();
    match input.uses_host_network() {
        true => ips.extend(api.host_ip.clone().filter(|ip| !ip.is_empty())),
        false => {
            let parse = |ip: &String| ip.parse::<IpAddr>().ok();
            let known: Vec<_> = ready.iter().flat_map(|it| &it.ips).filter_map(parse).collect();
            let node_is_v6 = api.host_ip.as_ref().and_then(parse).is_some_and(|ip| ip.is_ipv6());
            let first_of = |v6: bool| known.iter().find(|ip| ip.is_ipv6() == v6).map(ToString::to_string);
            ips.extend([first_of(node_is_v6), first_of(!node_is_v6)].into_iter().flatten());
        }
    }
    let all: Vec<_> = ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect();
    (ips.into_iter().next(), some_unless_empty(all))
}
