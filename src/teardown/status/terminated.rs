//! The final status of a cleaned pod: all containers are terminated, and the phase is terminal (the status manager's
//! `TerminatePod`).

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::containers::Lists;
use super::phase::{ContainerLife, Phase};
use super::phase_decision::PhaseDecision;
use super::readiness::INITIALIZED;
use super::restart::is_sidecar;
use super::slot::unknown_exit_state;

const MESSAGE: &str = "Nothing was left of the container when the pod was taken down";

/// Terminates all entries that are not. Ephemeral containers stay unchanged.
pub(super) fn terminate_remaining(pod: &Pod, api: &PodStatus, lists: &mut Lists, decision: &mut PhaseDecision) {
    let entries = |list: &Option<Vec<ContainerStatus>>| list.clone().unwrap_or_default();
    let known = Lists {
        regular: entries(&api.container_statuses),
        init: entries(&api.init_container_statuses),
        ephemeral: Vec::new(),
    };
    let before = Before {
        deleted_at: deletion_request_time(pod),
        api,
    };
    let was_initialized =
        |spec| shows_initialization(spec, &known, &before) || shows_initialization(spec, lists, &before);
    if pod.spec.as_ref().is_none_or(was_initialized) {
        lists.regular.iter_mut().for_each(set_terminated);
    }
    let tried = initialized_count(&lists.init);
    lists.init.iter_mut().take(tried).for_each(set_terminated);
    if !decision.is_terminal() {
        *decision = PhaseDecision {
            phase: Some(Phase::Failed.name().into()),
            reason: None,
            message: None,
        };
    }
}

fn set_terminated(entry: &mut ContainerStatus) {
    if !has_ended(entry) {
        entry.state = Some(unknown_exit_state(MESSAGE, entry));
        entry.ready = false;
        entry.started = Some(false);
    }
}

/// Whether the regular containers were due to run: then a missing exit is a failure (`hasPodInitialized`). The kubelet uses only
/// the status in the API. This agent also uses its own status, which saves a second round with the same result.
///
/// Exits of init containers count only if they were before the termination: one that succeeded after its stop signal did not
/// start the regular ones. The kubelet uses the status from before the termination.
fn shows_initialization(spec: &PodSpec, lists: &Lists, before: &Before<'_>) -> bool {
    let Some(last) = spec.init_containers.as_ref().and_then(|list| list.last()) else {
        return true;
    };
    if lists.regular.iter().any(has_started) {
        return true;
    }
    let Some(status) = lists.init.iter().find(|entry| entry.name == last.name) else {
        return false;
    };
    match ContainerLife::from_status(status) {
        ContainerLife::Running { started } => is_sidecar(last) && started,
        ContainerLife::Ended { .. } | ContainerLife::WaitingAgain { .. } if is_sidecar(last) => {
            before.was_initialized()
        }
        ContainerLife::Ended { exit_code, .. } | ContainerLife::WaitingAgain { exit_code, .. } => {
            (exit_code == 0 && before.has_ended(status)) || succeeded_before(status)
        }
        ContainerLife::Unknown | ContainerLife::Waiting => false,
    }
}

/// The state before the termination, which begins with the delete request.
struct Before<'a> {
    deleted_at: Option<Timestamp>,
    api: &'a PodStatus,
}

impl Before<'_> {
    /// Times are in whole seconds.
    fn is_earlier(&self, time: &Time) -> bool {
        self.deleted_at.is_none_or(|deleted_at| time.0 < deleted_at)
    }

    /// An exit without a time was inferred from later containers.
    fn has_ended(&self, entry: &ContainerStatus) -> bool {
        let end = entry.state.as_ref().and_then(|state| state.terminated.as_ref());
        end.and_then(|end| end.finished_at.as_ref())
            .is_none_or(|time| self.is_earlier(time))
    }

    /// An exited sidecar no longer shows whether it had started.
    fn was_initialized(&self) -> bool {
        self.api.conditions.iter().flatten().any(|condition| {
            let since = condition.last_transition_time.as_ref();
            condition.type_ == INITIALIZED
                && condition.status == "True"
                && since.is_some_and(|time| self.is_earlier(time))
        })
    }
}

/// The time of the delete request.
fn deletion_request_time(pod: &Pod) -> Option<Timestamp> {
    let over = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    over.checked_sub(SignedDuration::from_secs(grace)).ok()
}

/// Number of init containers up to the last one that has started, at least one (`initializedContainers`).
fn initialized_count(init: &[ContainerStatus]) -> usize {
    init.iter().rposition(has_started).map_or(1, |last| last + 1)
}

fn has_started(entry: &ContainerStatus) -> bool {
    let waits = entry.state.as_ref().is_some_and(|state| state.waiting.is_some());
    !waits || entry.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}

fn has_ended(entry: &ContainerStatus) -> bool {
    entry.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

fn succeeded_before(entry: &ContainerStatus) -> bool {
    let last = entry.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    last.is_some_and(|end| end.exit_code == 0)
}
