//! Whether a pod is initialized and ready, and which containers are not.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodSpec, PodStatus};

use super::containers::Lists;
use super::index::ByName;
use super::phase::Phase;
use super::restart::is_sidecar;

pub(super) const INITIALIZED: &str = "Initialized";
const POD_COMPLETED: &str = "PodCompleted";
const POD_FAILED: &str = "PodFailed";
const UNKNOWN_STATUSES: &str = "UnknownContainerStatuses";

/// Status of a condition, with reason and message if it is not true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ConditionStatus {
    pub is_true: bool,
    pub reason: Option<&'static str>,
    pub message: Option<String>,
}

// === impl ConditionStatus ===

impl ConditionStatus {
    pub(super) fn yes() -> Self {
        Self {
            is_true: true,
            ..Self::default()
        }
    }

    pub(super) fn no(reason: &'static str, message: Option<String>) -> Self {
        Self {
            is_true: false,
            reason: Some(reason),
            message,
        }
    }

    pub(super) fn bare(is_true: bool) -> Self {
        Self {
            is_true,
            ..Self::default()
        }
    }
}

/// Containers that prevent a condition, by cause.
#[derive(Debug, Default)]
struct Unready<'a> {
    unknown: Vec<&'a str>,
    unready: Vec<&'a str>,
}

// === impl Unready ===

impl<'a> Unready<'a> {
    fn check(&mut self, name: &'a str, status: Option<&ContainerStatus>, is_fine: impl Fn(&ContainerStatus) -> bool) {
        match status {
            None => self.unknown.push(name),
            Some(status) if !is_fine(status) => self.unready.push(name),
            Some(_) => {}
        }
    }

    /// The kubelet's short message; `None` if there are no such containers.
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

/// Reason of all conditions that are false in a terminal phase.
pub(super) fn terminal_reason(phase: Option<Phase>) -> Option<&'static str> {
    match phase {
        Some(Phase::Succeeded) => Some(POD_COMPLETED),
        Some(Phase::Failed) => Some(POD_FAILED),
        Some(Phase::Pending | Phase::Running) | None => None,
    }
}

/// `GenerateContainersReadyCondition`.
pub(super) fn containers_ready(spec: &PodSpec, lists: &Lists, phase: Option<Phase>) -> ConditionStatus {
    let mut unready = Unready::default();
    let (init, regular) = (ByName::entries(&lists.init), ByName::entries(&lists.regular));
    for sidecar in spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| is_sidecar(container))
    {
        unready.check(&sidecar.name, init.get(&sidecar.name), |status| status.ready);
    }
    for container in &spec.containers {
        unready.check(&container.name, regular.get(&container.name), |status| status.ready);
    }
    if let Some(reason) = terminal_reason(phase) {
        return ConditionStatus::no(reason, None);
    }
    if spec.containers.is_empty() {
        return ConditionStatus::no(UNKNOWN_STATUSES, None);
    }
    unready.message("unready").map_or_else(ConditionStatus::yes, |message| {
        ConditionStatus::no("ContainersNotReady", Some(message))
    })
}

/// The readiness gates, when the containers are ready (`GeneratePodReadyCondition`).
pub(super) fn gates_ready(spec: &PodSpec, of_api: &[PodCondition]) -> ConditionStatus {
    let unready: Vec<String> = spec
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
    if unready.is_empty() {
        ConditionStatus::yes()
    } else {
        ConditionStatus::no("ReadinessGatesNotReady", Some(unready.join(", ")))
    }
}

/// `GeneratePodInitializedCondition`.
pub(super) fn initialized_condition(
    spec: &PodSpec,
    api: &PodStatus,
    lists: &Lists,
    phase: Option<Phase>,
) -> ConditionStatus {
    let mut unready = Unready::default();
    let init = ByName::entries(&lists.init);
    for container in spec.init_containers.iter().flatten() {
        let sidecar = is_sidecar(container);
        unready.check(&container.name, init.get(&container.name), |status| {
            if sidecar {
                status.started == Some(true)
            } else {
                status.ready
            }
        });
    }
    if phase == Some(Phase::Succeeded) && unready.unknown.is_empty() {
        return ConditionStatus {
            reason: Some(POD_COMPLETED),
            ..ConditionStatus::yes()
        };
    }
    let has_started = |entry: &ContainerStatus| {
        entry
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    // A pod stays initialized.
    let was_true = |old: &PodCondition| old.type_ == INITIALIZED && old.status == "True";
    if lists.regular.iter().any(has_started) || api.conditions.iter().flatten().any(was_true) {
        return ConditionStatus::yes();
    }
    unready
        .message("incomplete")
        .map_or_else(ConditionStatus::yes, |message| {
            ConditionStatus::no("ContainersNotInitialized", Some(message))
        })
}
