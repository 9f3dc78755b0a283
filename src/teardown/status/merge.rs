//! The part of a wanted status that may be applied to the live object (`mergePodStatus`). That may have changed since the status
//! was generated, and must not be reverted.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};

use super::conditions::{BY_KUBELET, CONTAINERS_READY, DISRUPTION_TARGET, READY, is_ours};
use super::index::ByName;
use super::phase::Phase;
use super::phase_decision::PhaseDecision;
use super::slot::Kind;
use super::transition::Rules;

/// The fields owned by a node agent, with their new values. `None` leaves a field unchanged, except where noted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Merged {
    /// `None` removes reason and message.
    pub decision: PhaseDecision,
    /// Only own ones, each at most once.
    pub conditions: Vec<PodCondition>,
    pub regular: Vec<ContainerStatus>,
    pub init: Vec<ContainerStatus>,
    pub ephemeral: Vec<ContainerStatus>,
    pub observed_generation: Option<i64>,
}

pub(super) fn merge(pod: &Pod, wanted: &PodStatus) -> Merged {
    let (no_status, no_spec) = (PodStatus::default(), PodSpec::default());
    let live = pod.status.as_ref().unwrap_or(&no_status);
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let rules = Rules::from_spec(spec);
    let regular = |_: &str| Kind::Regular;
    let ephemeral = |_: &str| Kind::Ephemeral;
    let init = |name: &str| {
        if rules.is_sidecar(name) {
            Kind::Sidecar
        } else {
            Kind::Init
        }
    };
    Merged {
        decision: merged_phase(live, wanted),
        conditions: conditions(live, wanted),
        regular: entries(
            &rules,
            regular,
            live.container_statuses.as_deref(),
            wanted.container_statuses.as_deref(),
        ),
        init: entries(
            &rules,
            init,
            live.init_container_statuses.as_deref(),
            wanted.init_container_statuses.as_deref(),
        ),
        ephemeral: entries(
            &rules,
            ephemeral,
            live.ephemeral_container_statuses.as_deref(),
            wanted.ephemeral_container_statuses.as_deref(),
        ),
        observed_generation: wanted.observed_generation.max(live.observed_generation),
    }
}

/// A terminal phase in the API always wins, with its reason and message.
fn merged_phase(live: &PodStatus, wanted: &PodStatus) -> PhaseDecision {
    if Phase::is_terminal_in(live) || wanted.phase.is_none() {
        PhaseDecision::from_status(live)
    } else {
        PhaseDecision::from_status(wanted)
    }
}

fn conditions(live: &PodStatus, wanted: &PodStatus) -> Vec<PodCondition> {
    let becomes_terminal = !Phase::is_terminal_in(live) && Phase::is_terminal_in(wanted);
    let overtaken = Phase::is_terminal_in(live) && live.phase != wanted.phase;
    let mut merged: Vec<PodCondition> = Vec::new();
    for condition in wanted.conditions.iter().flatten() {
        let belongs = match condition.type_.as_str() {
            // Readiness that was generated with another phase is not sent.
            READY | CONTAINERS_READY => !overtaken && !makes_ready_again(live, condition),
            DISRUPTION_TARGET => becomes_terminal && condition.reason.as_deref() == Some(BY_KUBELET),
            other => is_ours(other),
        };
        if belongs && merged.iter().all(|other| other.type_ != condition.type_) {
            merged.push(with_live_time(live, condition));
        }
    }
    merged
}

/// Whether the condition reverts the unreadiness that a node controller or a probe has set. Without probes there is no newer
/// result, and a terminating pod does not return to its endpoints. The `ready` fields of its containers do not show this: a node
/// controller leaves them unchanged.
fn makes_ready_again(live: &PodStatus, condition: &PodCondition) -> bool {
    let unready = |old: &PodCondition| old.type_ == condition.type_ && old.status == "False";
    condition.status == "True" && live.conditions.iter().flatten().any(unready)
}

/// A condition that already has this status keeps its transition time.
fn with_live_time(live: &PodStatus, condition: &PodCondition) -> PodCondition {
    let same = |old: &&PodCondition| old.type_ == condition.type_ && old.status == condition.status;
    let since = live
        .conditions
        .iter()
        .flatten()
        .find(same)
        .and_then(|old| old.last_transition_time.clone());
    PodCondition {
        last_transition_time: since.or_else(|| condition.last_transition_time.clone()),
        ..condition.clone()
    }
}

/// The wanted entries where they do not revert live ones, then live entries that are new, such as that of an ephemeral container.
fn entries(
    rules: &Rules<'_>,
    kind: impl Fn(&str) -> Kind,
    live: Option<&[ContainerStatus]>,
    wanted: Option<&[ContainerStatus]>,
) -> Vec<ContainerStatus> {
    let (live, wanted) = (live.unwrap_or_default(), wanted.unwrap_or_default());
    let before = ByName::entries(live);
    let mut seen: HashSet<&str> = HashSet::new();
    let mut merged: Vec<ContainerStatus> = Vec::new();
    for entry in wanted {
        if seen.insert(&entry.name) {
            let merge_into = |old| merged_entry(rules, kind(&entry.name), old, entry);
            merged.push(before.get(&entry.name).map_or_else(|| entry.clone(), merge_into));
        }
    }
    for entry in live {
        if !seen.contains(&*entry.name) && rules.has(kind(&entry.name), &entry.name) {
            seen.insert(&entry.name);
            merged.push(entry.clone());
        }
    }
    merged
}

fn merged_entry(rules: &Rules<'_>, kind: Kind, old: &ContainerStatus, entry: &ContainerStatus) -> ContainerStatus {
    let has_ended = |entry: &ContainerStatus| entry.state.as_ref().is_some_and(|state| state.terminated.is_some());
    let revives = has_ended(old) && !has_ended(entry);
    let of_a_later_run = entry.container_id != old.container_id && entry.restart_count >= old.restart_count;
    if revives && !(of_a_later_run && rules.is_legal(kind, old, entry)) {
        return old.clone();
    }
    ContainerStatus {
        restart_count: entry.restart_count.max(old.restart_count),
        resources: old.resources.clone(),
        allocated_resources: old.allocated_resources.clone(),
        allocated_resources_status: old.allocated_resources_status.clone(),
        volume_mounts: old.volume_mounts.clone(),
        user: old.user.clone(),
        stop_signal: old.stop_signal.clone(),
        ..entry.clone()
    }
}
