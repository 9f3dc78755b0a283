//! The conditions of a pod: those of others as they are, then ours in the kubelet's order.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::addresses::uses_host_network;
use super::containers::{Lists, by_name};
use super::phase::{Phase, Verdict};
use super::restart::{all_could_restart, is_sidecar};
use super::{Facts, Stage, observed_generation};
use crate::node::cri::types::SandboxState;

pub(super) const READY: &str = "Ready";
pub(super) const CONTAINERS_READY: &str = "ContainersReady";
pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";
const INITIALIZED: &str = "Initialized";
const POD_SCHEDULED: &str = "PodScheduled";
const READY_TO_START: &str = "PodReadyToStartContainers";
const ALL_RESTARTING: &str = "AllContainersRestarting";

const POD_COMPLETED: &str = "PodCompleted";
const POD_FAILED: &str = "PodFailed";
const UNKNOWN_STATUSES: &str = "UnknownContainerStatuses";
/// Reason of a disruption that came from this node, as opposed to the eviction API or the scheduler.
pub(super) const BY_KUBELET: &str = "TerminationByKubelet";

/// Conditions that a node agent owns. The two of a resize are the kubelet's as well, but it alone knows how that stands.
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

/// Truth of a condition, with why it is not true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answer {
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

// === impl Answer ===

impl Answer {
    fn yes() -> Self {
        Self {
            holds: true,
            ..Self::default()
        }
    }

    fn no(reason: &'static str, message: Option<String>) -> Self {
        Self {
            holds: false,
            reason: Some(reason),
            message,
        }
    }

    fn bare(holds: bool) -> Self {
        Self {
            holds,
            ..Self::default()
        }
    }
}

/// Containers that keep a condition from being true, by what is wrong with them.
#[derive(Debug, Default)]
struct Wanting<'a> {
    unknown: Vec<&'a str>,
    unready: Vec<&'a str>,
}

// === impl Wanting ===

impl<'a> Wanting<'a> {
    fn look(&mut self, name: &'a str, status: Option<&ContainerStatus>, is_fine: impl Fn(&ContainerStatus) -> bool) {
        match status {
            None => self.unknown.push(name),
            Some(status) if !is_fine(status) => self.unready.push(name),
            Some(_) => {}
        }
    }

    /// The kubelet's short form; `None` if nothing is wanting.
    fn message(&self, what: &str) -> Option<String> {
        let part = |what: &str, names: &[&str]| {
            (!names.is_empty()).then(|| format!("containers with {what} status: [{}]", names.join(" ")))
        };
        let parts: Vec<String> = [part("unknown", &self.unknown), part(what, &self.unready)]
            .into_iter()
            .flatten()
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// All conditions: those of others in the API's order, `DisruptionTarget`, ours.
pub(super) fn build(facts: &Facts<'_>, api: &PodStatus, lists: &Lists, verdict: &Verdict) -> Vec<PodCondition> {
    let spec = facts.pod.spec.clone().unwrap_or_default();
    let phase = verdict.known();
    let of_api = api.conditions.as_deref().unwrap_or_default();
    let mut conditions: Vec<PodCondition> = of_api.iter().filter(|old| !is_ours(&old.type_)).cloned().collect();

    if let Some(disruption) = disruption(facts, api, verdict) {
        match conditions.iter_mut().find(|old| old.type_ == DISRUPTION_TARGET) {
            Some(old) => *old = disruption,
            None => conditions.push(disruption),
        }
    }

    let containers_ready = containers_ready(&spec, lists, phase);
    let ready = if containers_ready.holds {
        gates_ready(&spec, of_api)
    } else {
        containers_ready.clone()
    };
    let mut ours = vec![
        (READY_TO_START, Answer::bare(sandbox_is_ready(facts, api))),
        (INITIALIZED, initialized(&spec, api, lists, phase)),
        (READY, ready),
        (CONTAINERS_READY, containers_ready),
        (POD_SCHEDULED, Answer::yes()),
    ];
    if all_could_restart(&spec) {
        // Nothing restarts during a teardown.
        ours.push((
            ALL_RESTARTING,
            end_of(phase).map_or(Answer::bare(false), |reason| Answer::no(reason, None)),
        ));
    }
    conditions.extend(
        ours.into_iter()
            .map(|(kind, answer)| condition(facts, api, kind, answer)),
    );
    conditions
}

/// `DisruptionTarget` goes out together with the terminal phase, once nothing can run any more (`mergePodStatus`).
fn disruption(facts: &Facts<'_>, api: &PodStatus, verdict: &Verdict) -> Option<PodCondition> {
    let message = facts.imposed?.disruption.as_ref()?;
    let already_over = Phase::of(api).is_some_and(Phase::is_terminal);
    match facts.stage {
        Stage::Stopped | Stage::Terminated if verdict.is_terminal() && !already_over => {
            let answer = Answer {
                holds: true,
                reason: Some(BY_KUBELET),
                message: Some(message.clone()),
            };
            Some(condition(facts, api, DISRUPTION_TARGET, answer))
        }
        Stage::Terminating | Stage::Stopped | Stage::Terminated => None,
    }
}

/// The transition time moves only with the truth, not with its reason or message (`updateLastTransitionTime`).
fn condition(facts: &Facts<'_>, api: &PodStatus, kind: &str, answer: Answer) -> PodCondition {
    let status = if answer.holds { "True" } else { "False" };
    let old = api
        .conditions
        .iter()
        .flatten()
        .find(|old| old.type_ == kind && old.status == status);
    PodCondition {
        last_probe_time: None,
        last_transition_time: old
            .and_then(|old| old.last_transition_time.clone())
            .or(Some(Time(facts.now))),
        message: answer.message,
        observed_generation: if kind == ALL_RESTARTING {
            None
        } else {
            observed_generation(facts.pod, api)
        },
        reason: answer.reason.map(str::to_owned),
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}

/// Reason for everything that is not true any more once the pod is over.
fn end_of(phase: Option<Phase>) -> Option<&'static str> {
    match phase {
        Some(Phase::Succeeded) => Some(POD_COMPLETED),
        Some(Phase::Failed) => Some(POD_FAILED),
        Some(Phase::Pending | Phase::Running) | None => None,
    }
}

/// `GenerateContainersReadyCondition`.
fn containers_ready(spec: &PodSpec, lists: &Lists, phase: Option<Phase>) -> Answer {
    let mut wanting = Wanting::default();
    for sidecar in spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| is_sidecar(container))
    {
        wanting.look(&sidecar.name, by_name(&lists.init, &sidecar.name), |status| {
            status.ready
        });
    }
    for container in &spec.containers {
        wanting.look(&container.name, by_name(&lists.regular, &container.name), |status| {
            status.ready
        });
    }
    if let Some(reason) = end_of(phase) {
        return Answer::no(reason, None);
    }
    if spec.containers.is_empty() {
        return Answer::no(UNKNOWN_STATUSES, None);
    }
    wanting
        .message("unready")
        .map_or_else(Answer::yes, |message| Answer::no("ContainersNotReady", Some(message)))
}

/// The readiness gates, once the containers are ready (`GeneratePodReadyCondition`).
fn gates_ready(spec: &PodSpec, of_api: &[PodCondition]) -> Answer {
    let wanting: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match of_api.iter().find(|condition| condition.type_ == *kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {kind:?} does not exist."
                )),
                Some(found) if found.status != "True" => Some(format!(
                    "the status of pod readiness gate {kind:?} is not \"True\", but {}",
                    found.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if wanting.is_empty() {
        Answer::yes()
    } else {
        Answer::no("ReadinessGatesNotReady", Some(wanting.join(", ")))
    }
}

/// `GeneratePodInitializedCondition`.
fn initialized(spec: &PodSpec, api: &PodStatus, lists: &Lists, phase: Option<Phase>) -> Answer {
    let mut wanting = Wanting::default();
    for container in spec.init_containers.iter().flatten() {
        let sidecar = is_sidecar(container);
        wanting.look(&container.name, by_name(&lists.init, &container.name), |status| {
            if sidecar {
                status.started == Some(true)
            } else {
                status.ready
            }
        });
    }
    if phase == Some(Phase::Succeeded) && wanting.unknown.is_empty() {
        return Answer {
            reason: Some(POD_COMPLETED),
            ..Answer::yes()
        };
    }
    let has_started = |entry: &ContainerStatus| {
        entry
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    // Once initialized, a pod stays so.
    let was_true = |old: &PodCondition| old.type_ == INITIALIZED && old.status == "True";
    if lists.regular.iter().any(has_started) || api.conditions.iter().flatten().any(was_true) {
        return Answer::yes();
    }
    wanting.message("incomplete").map_or_else(Answer::yes, |message| {
        Answer::no("ContainersNotInitialized", Some(message))
    })
}

/// One ready sandbox, the newest, with an address of its own unless it is on the host's network (`PodSandboxChanged`).
/// An address that the API knows will do, since not every look at the runtime asks for addresses.
fn sandbox_is_ready(facts: &Facts<'_>, api: &PodStatus) -> bool {
    let sandboxes = &facts.observed.sandboxes;
    let ready = |state: SandboxState| state == SandboxState::Ready;
    let Some(newest) = sandboxes.first() else { return false };
    let has_address =
        uses_host_network(facts) || !newest.ips.is_empty() || api.pod_ip.as_deref().is_some_and(|ip| !ip.is_empty());
    ready(newest.state) && sandboxes.iter().filter(|sandbox| ready(sandbox.state)).count() == 1 && has_address
}
