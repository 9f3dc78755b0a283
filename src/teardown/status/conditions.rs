//! The conditions of a pod: foreign ones unchanged, then own ones in the kubelet's order.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    containers::{Lists, entries_by_name, has_started},
    input::{StatusInput, StatusStage},
    phase::{FAILED, SUCCEEDED, has_terminal_phase},
};
use crate::model::pod::is_sidecar;

const READY: &str = "Ready";
const CONTAINERS_READY: &str = "ContainersReady";
/// Type of the condition of a disrupted pod.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
const POD_SCHEDULED: &str = "PodScheduled";
const READY_TO_START: &str = "PodReadyToStartContainers";
const INITIALIZED: &str = "Initialized";
const POD_COMPLETED: &str = "PodCompleted";

/// Reason of a disruption by this node, as opposed to the eviction API or the scheduler.
const BY_KUBELET: &str = "TerminationByKubelet";

/// Conditions of a node agent. Those of a resize and a restart are the kubelet's, too, but only it knows their state.
fn is_ours(kind: &str) -> bool {
    [READY, CONTAINERS_READY, INITIALIZED, POD_SCHEDULED, READY_TO_START].contains(&kind)
}

/// Whether the agent sets this condition, in some situation.
#[cfg(feature = "agent")]
pub fn is_set_by_agent(kind: &str) -> bool {
    is_ours(kind) || kind == DISRUPTION_TARGET
}

/// Status of a condition, with reason and message if it has some.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ConditionStatus {
    is_true: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

// === impl ConditionStatus ===

impl ConditionStatus {
    fn yes() -> Self {
        Self {
            is_true: true,
            ..Self::default()
        }
    }

    fn no(reason: &'static str, message: Option<String>) -> Self {
        Self {
            is_true: false,
            reason: Some(reason),
            message,
        }
    }

    /// Whether this condition is false for the same reason, with the same message.
    fn is_shown_by(&self, old: &PodCondition) -> bool {
        let same =
            |old: &Option<String>, new: Option<&str>| old.as_deref().unwrap_or_default() == new.unwrap_or_default();
        !self.is_true
            && old.status == "False"
            && same(&old.reason, self.reason)
            && same(&old.message, self.message.as_deref())
    }
}

/// All conditions: foreign ones in the API's order, `DisruptionTarget`, own ones.
pub(super) fn build(
    input: &StatusInput<'_>,
    spec: &PodSpec,
    api: &PodStatus,
    lists: &Lists,
    (decision, mut initialized): (&PodStatus, ConditionStatus),
) -> Vec<PodCondition> {
    let phase = decision.phase.as_deref();
    let shown = |kind: &str| api.conditions.iter().flatten().find(|it| it.type_ == kind);
    let foreign = api.conditions.iter().flatten().filter(|it| !is_ours(&it.type_));
    let mut conditions: Vec<PodCondition> = foreign.cloned().collect();
    if let Some(disruption) = disruption(input, api, decision) {
        match conditions.iter_mut().find(|it| it.type_ == DISRUPTION_TARGET) {
            Some(old) => *old = disruption,
            None => conditions.push(disruption),
        }
    }
    if initialized.is_true && phase == Some(SUCCEEDED) {
        initialized.reason = Some(POD_COMPLETED);
    }
    let plain = containers_ready(spec, lists, None);
    let is_kept = has_terminal_phase(api) && shown(CONTAINERS_READY).is_some_and(|old| plain.is_shown_by(old));
    let containers_ready = match is_kept {
        true => plain,
        false => containers_ready(spec, lists, phase),
    };
    // Only a kubelet checks readiness gates.
    let is_gated = shown(READY).is_none() && spec.readiness_gates.as_ref().is_some_and(|it| !it.is_empty());
    let ready = match containers_ready.is_true && is_gated {
        true => ConditionStatus::no("ReadinessGatesNotReady", None),
        false => containers_ready.clone(),
    };
    let ours = [
        (READY_TO_START, ready_to_start(input, api)),
        (INITIALIZED, initialized),
        (READY, ready),
        (CONTAINERS_READY, containers_ready),
        (POD_SCHEDULED, ConditionStatus::yes()),
    ];
    // A node controller or a probe may have made the pod unready. A terminating pod does not return to its endpoints. The `ready`
    // fields of its containers do not show this: a node controller leaves them unchanged.
    let stays = |kind: &str, wanted: &ConditionStatus, old: &PodCondition| {
        [READY, CONTAINERS_READY].contains(&kind) && wanted.is_true && old.status == "False"
    };
    conditions.extend(ours.into_iter().map(|(kind, wanted)| match shown(kind) {
        Some(old) if stays(kind, &wanted, old) => old.clone(),
        _ => condition(input, api, kind, wanted),
    }));
    conditions
}

/// `DisruptionTarget` is set together with the terminal phase, when nothing can run (`mergePodStatus`).
fn disruption(input: &StatusInput<'_>, api: &PodStatus, decision: &PodStatus) -> Option<PodCondition> {
    let message = input.eviction?.disruption.clone()?;
    let ends_now = input.stage != StatusStage::Terminating && has_terminal_phase(decision) && !has_terminal_phase(api);
    let wanted = ConditionStatus {
        is_true: true,
        reason: Some(BY_KUBELET),
        message: Some(message),
    };
    ends_now.then(|| condition(input, api, DISRUPTION_TARGET, wanted))
}

/// The transition time changes only with the status, not with reason or message (`updateLastTransitionTime`).
fn condition(input: &StatusInput<'_>, api: &PodStatus, kind: &str, wanted: ConditionStatus) -> PodCondition {
    let status = if wanted.is_true { "True" } else { "False" };
    let mut shown = api.conditions.iter().flatten();
    let old = shown.find(|old| old.type_ == kind && old.status == status);
    let since = old.and_then(|old| old.last_transition_time.clone());
    PodCondition {
        last_probe_time: None,
        last_transition_time: since.or(Some(Time(input.now))),
        message: wanted.message,
        observed_generation: observed_generation(input.pod, api),
        reason: wanted.reason.map(str::to_owned),
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}

/// The newest sandbox must be the only ready one, with an address unless the pod has host network. An address in the API
/// suffices, since not every query of the runtime reads addresses. kubelet: `pkg/kubelet/kuberuntime/util/util.go`
/// `PodSandboxChanged`, except for a changed network mode.
fn ready_to_start(input: &StatusInput<'_>, api: &PodStatus) -> ConditionStatus {
    let sandboxes = &input.observed.sandboxes;
    let has_address = |ips: &[String]| {
        input.uses_host_network() || !ips.is_empty() || api.pod_ip.as_deref().is_some_and(|ip| !ip.is_empty())
    };
    let why = match (sandboxes.first(), sandboxes.iter().filter(|it| it.is_ready).count()) {
        (None, _) => "no pod sandbox exists",
        (Some(_), 2..) => "multiple pod sandboxes are ready and need to be reconciled",
        (Some(newest), _) if !newest.is_ready => "pod sandbox is not ready",
        (Some(newest), _) if !has_address(&newest.ips) => "pod sandbox has no IP address",
        (Some(_), _) => return ConditionStatus::yes(),
    };
    ConditionStatus::no("PodSandboxNotReady", Some(why.to_owned()))
}

/// `CalculatePodStatusObservedGeneration`, never less than in the API.
pub(super) fn observed_generation(pod: &Pod, api: &PodStatus) -> Option<i64> {
    let generation = pod.metadata.generation.filter(|generation| *generation > 0);
    generation.max(api.observed_generation)
}

/// The kubelet's short message about the containers that prevent a condition; `None` if there are none. `what` is their state,
/// such as `unready`.
fn message_about<'a>(what: &str, containers: impl Iterator<Item = (&'a str, Option<bool>)>) -> Option<String> {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (name, is_fine) in containers {
        match is_fine {
            None => unknown.push(name),
            Some(false) => unready.push(name),
            Some(true) => {}
        }
    }
    let parts = [("unknown", unknown), (what, unready)].into_iter();
    let parts = parts.filter(|(_, names)| !names.is_empty());
    let parts = parts.map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")));
    let parts: Vec<_> = parts.collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `GenerateContainersReadyCondition`.
fn containers_ready(spec: &PodSpec, lists: &Lists, phase: Option<&str>) -> ConditionStatus {
    match phase {
        Some(SUCCEEDED) => return ConditionStatus::no(POD_COMPLETED, None),
        Some(FAILED) => return ConditionStatus::no("PodFailed", None),
        _ => {}
    }
    if spec.containers.is_empty() {
        return ConditionStatus::no("UnknownContainerStatuses", None);
    }
    let (init, regular) = (entries_by_name(&lists.init), entries_by_name(&lists.regular));
    let ready = |entry: Option<&&ContainerStatus>| entry.map(|entry| entry.ready);
    let sidecars = spec.init_containers.iter().flatten().filter(|it| is_sidecar(it));
    let sidecars = sidecars.map(|it| (&*it.name, ready(init.get(&*it.name))));
    let containers = spec.containers.iter();
    let regular = containers.map(|it| (&*it.name, ready(regular.get(&*it.name))));
    match message_about("unready", sidecars.chain(regular)) {
        None => ConditionStatus::yes(),
        message => ConditionStatus::no("ContainersNotReady", message),
    }
}

/// Whether the regular containers were due to run before the deletion was requested: then a missing exit is a failure
/// (`hasPodInitialized`). An init container that succeeded after its stop signal did not start them.
pub(super) fn was_initialized(pod: &Pod, spec: &PodSpec, api: &PodStatus, lists: &Lists) -> bool {
    let over = pod.metadata.deletion_timestamp.as_ref();
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    let deleted_at = over.and_then(|over| over.0.checked_sub(grace).ok());
    // Times are in whole seconds.
    let is_earlier = |time: &Time| deleted_at.is_none_or(|deleted_at| time.0 < deleted_at);
    let was_true = |old: &PodCondition| {
        let since = old.last_transition_time.as_ref();
        old.type_ == INITIALIZED && old.status == "True" && since.is_some_and(is_earlier)
    };
    let Some(last) = spec.init_containers.as_ref().and_then(|list| list.last()) else {
        return true;
    };
    let entry = lists.init.iter().find(|entry| entry.name == last.name);
    let states = entry.into_iter().flat_map(|entry| [&entry.state, &entry.last_state]);
    let mut ends = states.flatten().filter_map(|state| state.terminated.as_ref());
    // An exit without a time was inferred from later containers.
    let succeeded = ends.any(|end| end.exit_code == 0 && end.finished_at.as_ref().is_none_or(is_earlier));
    succeeded && !is_sidecar(last)
        || lists.regular.iter().any(has_started)
        || api.conditions.iter().flatten().any(was_true)
}

/// `GeneratePodInitializedCondition`. A pod stays initialized.
pub(super) fn initialized(spec: &PodSpec, api: &PodStatus, lists: &Lists) -> ConditionStatus {
    let was_true = |old: &PodCondition| old.type_ == INITIALIZED && old.status == "True";
    if lists.regular.iter().any(has_started) || api.conditions.iter().flatten().any(was_true) {
        return ConditionStatus::yes();
    }
    let init = entries_by_name(&lists.init);
    let is_fine = |entry: &&ContainerStatus, is_sidecar: bool| match is_sidecar {
        true => entry.started == Some(true),
        false => entry.ready,
    };
    let containers = spec.init_containers.iter().flatten();
    let containers = containers.map(|it| {
        let entry = init.get(&*it.name);
        (&*it.name, entry.map(|entry| is_fine(entry, is_sidecar(it))))
    });
    match message_about("incomplete", containers) {
        None => ConditionStatus::yes(),
        message => ConditionStatus::no("ContainersNotInitialized", message),
    }
}
