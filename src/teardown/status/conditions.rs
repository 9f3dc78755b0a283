//! The conditions of a pod: foreign ones unchanged, then own ones in the kubelet's order.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::addresses::uses_host_network;
use super::containers::Lists;
use super::input::{StatusInput, StatusStage};
use super::phase::Phase;
use super::phase_decision::PhaseDecision;
use super::readiness::{
    ConditionStatus, INITIALIZED, containers_ready, gates_ready, initialized_condition, terminal_reason,
};
use super::restart::all_could_restart;
use crate::node::cri::types::SandboxState;

pub(super) const READY: &str = "Ready";
pub(super) const CONTAINERS_READY: &str = "ContainersReady";
/// Type of the condition of a disrupted pod.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
const POD_SCHEDULED: &str = "PodScheduled";
const READY_TO_START: &str = "PodReadyToStartContainers";
const SANDBOX_NOT_READY: &str = "PodSandboxNotReady";
const ALL_RESTARTING: &str = "AllContainersRestarting";

/// Reason of a disruption by this node, as opposed to the eviction API or the scheduler.
pub(super) const BY_KUBELET: &str = "TerminationByKubelet";

/// Conditions of a node agent. Those of a resize are the kubelet's, too, but only it knows their state.
pub(super) fn is_ours(kind: &str) -> bool {
    [
        READY,
        CONTAINERS_READY,
        INITIALIZED,
        POD_SCHEDULED,
        READY_TO_START,
        ALL_RESTARTING,
    ]
    .contains(&kind)
}

/// Whether the agent sets this condition, in some situation.
#[cfg(feature = "agent")]
pub fn is_set_by_agent(kind: &str) -> bool {
    is_ours(kind) || kind == DISRUPTION_TARGET
}

/// All conditions: foreign ones in the API's order, `DisruptionTarget`, own ones.
pub(super) fn build(
    input: &StatusInput<'_>,
    api: &PodStatus,
    lists: &Lists,
    decision: &PhaseDecision,
) -> Vec<PodCondition> {
    let none = PodSpec::default();
    let spec = input.pod.spec.as_ref().unwrap_or(&none);
    let phase = decision.parsed_phase();
    let of_api = api.conditions.as_deref().unwrap_or_default();
    let mut conditions: Vec<PodCondition> = of_api.iter().filter(|old| !is_ours(&old.type_)).cloned().collect();

    if let Some(disruption) = disruption(input, api, decision) {
        match conditions.iter_mut().find(|old| old.type_ == DISRUPTION_TARGET) {
            Some(old) => *old = disruption,
            None => conditions.push(disruption),
        }
    }

    let wanted = containers_ready(spec, lists, None);
    let containers_ready = if keeps_condition(api, CONTAINERS_READY, &wanted) {
        wanted
    } else {
        containers_ready(spec, lists, phase)
    };
    let ready = if containers_ready.is_true {
        gates_ready(spec, of_api)
    } else {
        containers_ready.clone()
    };
    let mut ours = vec![
        (READY_TO_START, ready_to_start(input, api)),
        (INITIALIZED, initialized_condition(spec, api, lists, phase)),
        (READY, ready),
        (CONTAINERS_READY, containers_ready),
        (POD_SCHEDULED, ConditionStatus::yes()),
    ];
    if all_could_restart(spec) {
        // Nothing restarts during a teardown.
        let none = ConditionStatus::bare(false);
        let wanted = match terminal_reason(phase) {
            Some(reason) if !keeps_condition(api, ALL_RESTARTING, &none) => ConditionStatus::no(reason, None),
            Some(_) | None => none,
        };
        ours.push((ALL_RESTARTING, wanted));
    }
    conditions.extend(
        ours.into_iter()
            .map(|(kind, wanted)| condition(input, api, kind, wanted)),
    );
    conditions
}

/// The message of a pod that fails because exit codes are unknown does not change.
fn keeps_condition(api: &PodStatus, kind: &str, wanted: &ConditionStatus) -> bool {
    Phase::is_terminal_in(api) && !wanted.is_true && has_false_condition(api, kind, wanted)
}

/// Whether the API shows this condition as false, with this reason and message.
fn has_false_condition(api: &PodStatus, kind: &str, wanted: &ConditionStatus) -> bool {
    let is_same = |old: &PodCondition| {
        old.type_ == kind
            && old.status == "False"
            // An empty message equals none, as in the patch.
            && old.reason.as_deref().unwrap_or_default() == wanted.reason.unwrap_or_default()
            && old.message.as_deref().unwrap_or_default() == wanted.message.as_deref().unwrap_or_default()
    };
    api.conditions.iter().flatten().any(is_same)
}

/// `DisruptionTarget` is set together with the terminal phase, when nothing can run (`mergePodStatus`).
fn disruption(input: &StatusInput<'_>, api: &PodStatus, decision: &PhaseDecision) -> Option<PodCondition> {
    let message = input.eviction?.disruption.as_ref()?;
    let was_terminal = Phase::is_terminal_in(api);
    match input.stage {
        StatusStage::Stopped | StatusStage::Terminated if decision.is_terminal() && !was_terminal => {
            let wanted = ConditionStatus {
                is_true: true,
                reason: Some(BY_KUBELET),
                message: Some(message.clone()),
            };
            Some(condition(input, api, DISRUPTION_TARGET, wanted))
        }
        StatusStage::Terminating | StatusStage::Stopped | StatusStage::Terminated => None,
    }
}

/// The transition time changes only with the status, not with reason or message (`updateLastTransitionTime`).
fn condition(input: &StatusInput<'_>, api: &PodStatus, kind: &str, wanted: ConditionStatus) -> PodCondition {
    let status = if wanted.is_true { "True" } else { "False" };
    let old = api
        .conditions
        .iter()
        .flatten()
        .find(|old| old.type_ == kind && old.status == status);
    PodCondition {
        last_probe_time: None,
        last_transition_time: old
            .and_then(|old| old.last_transition_time.clone())
            .or(Some(Time(input.now))),
        message: wanted.message,
        observed_generation: if kind == ALL_RESTARTING {
            None
        } else {
            observed_generation(input.pod, api)
        },
        reason: wanted.reason.map(str::to_owned),
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}

/// The message has the cause since 1.37. A condition of an older kubelet without message stays so.
fn ready_to_start(input: &StatusInput<'_>, api: &PodStatus) -> ConditionStatus {
    let bare = ConditionStatus::bare(false);
    match why_sandbox_is_not_ready(input, api) {
        None => ConditionStatus::yes(),
        Some(_) if has_false_condition(api, READY_TO_START, &bare) => bare,
        Some(why) => ConditionStatus::no(SANDBOX_NOT_READY, Some(why.to_owned())),
    }
}

/// The newest sandbox must be the only ready one, with an address unless the pod has host network. An address in the API
/// suffices, since not every query of the runtime reads addresses. kubelet: `pkg/kubelet/kuberuntime/util/util.go`
/// `PodSandboxChanged`, except for a changed network mode.
fn why_sandbox_is_not_ready(input: &StatusInput<'_>, api: &PodStatus) -> Option<&'static str> {
    let sandboxes = &input.observed.sandboxes;
    let ready = |state: SandboxState| state == SandboxState::Ready;
    let Some(newest) = sandboxes.first() else {
        return Some("no pod sandbox exists");
    };
    let has_address =
        uses_host_network(input) || !newest.ips.is_empty() || api.pod_ip.as_deref().is_some_and(|ip| !ip.is_empty());
    match sandboxes.iter().filter(|sandbox| ready(sandbox.state)).count() {
        2.. => Some("multiple pod sandboxes are ready and need to be reconciled"),
        _ if !ready(newest.state) => Some("pod sandbox is not ready"),
        _ if !has_address => Some("pod sandbox has no IP address"),
        _ => None,
    }
}

/// `CalculatePodStatusObservedGeneration`, never less than in the API.
pub(super) fn observed_generation(pod: &Pod, api: &PodStatus) -> Option<i64> {
    pod.metadata
        .generation
        .filter(|generation| *generation > 0)
        .max(api.observed_generation)
}
