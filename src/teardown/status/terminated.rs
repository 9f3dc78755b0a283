//! The last word on a pod of which nothing is left: no container stays undecided, and the phase is terminal
//! (the status manager's `TerminatePod`).

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::containers::Lists;
use super::phase::{Life, Phase};
use super::readiness::INITIALIZED;
use super::restart::is_sidecar;
use super::slot::lost;
use super::verdict::Verdict;

const MESSAGE: &str = "Nothing was left of the container when the pod was taken down";

/// Ends what has not ended. Ephemeral containers stay as they are.
pub(super) fn settle(pod: &Pod, api: &PodStatus, lists: &mut Lists, verdict: &mut Verdict) {
    let entries = |list: &Option<Vec<ContainerStatus>>| list.clone().unwrap_or_default();
    let known = Lists {
        regular: entries(&api.container_statuses),
        init: entries(&api.init_container_statuses),
        ephemeral: Vec::new(),
    };
    let before = Before {
        end: beginning_of_the_end(pod),
        api,
    };
    let was_initialized =
        |spec| shows_initialization(spec, &known, &before) || shows_initialization(spec, lists, &before);
    if pod.spec.as_ref().is_none_or(was_initialized) {
        lists.regular.iter_mut().for_each(end);
    }
    let tried = reached(&lists.init);
    lists.init.iter_mut().take(tried).for_each(end);
    if !verdict.is_terminal() {
        *verdict = Verdict {
            phase: Some(Phase::Failed.name().into()),
            reason: None,
            message: None,
        };
    }
}

fn end(entry: &mut ContainerStatus) {
    if !has_ended(entry) {
        entry.state = Some(lost(MESSAGE, entry));
        entry.ready = false;
        entry.started = Some(false);
    }
}

/// Whether the regular containers had their turn: from then on a missing end is a failure (`hasPodInitialized`).
/// The kubelet asks the API's status only; asking ours as well saves a second round to the same answer.
///
/// What init containers came to in the end counts only if they did before the pod's end began: one that obeyed its signal
/// and succeeded did not make way for the regular ones. The kubelet looks at the status from before the end for that.
fn shows_initialization(spec: &PodSpec, lists: &Lists, before: &Before<'_>) -> bool {
    let Some(last) = spec.init_containers.as_ref().and_then(|list| list.last()) else {
        return true;
    };
    if lists.regular.iter().any(shows_a_start) {
        return true;
    }
    let Some(status) = lists.init.iter().find(|entry| entry.name == last.name) else {
        return false;
    };
    match Life::of(status) {
        Life::Running { started } => is_sidecar(last) && started,
        Life::Ended { .. } | Life::WaitingAgain { .. } if is_sidecar(last) => before.was_initialized(),
        Life::Ended { exit_code, .. } | Life::WaitingAgain { exit_code, .. } => {
            (exit_code == 0 && before.has_ended(status)) || succeeded_before(status)
        }
        Life::Unknown | Life::Waiting => false,
    }
}

/// What was so before the pod's end began.
struct Before<'a> {
    end: Option<Timestamp>,
    api: &'a PodStatus,
}

impl Before<'_> {
    /// Times are written to the second.
    fn is_earlier(&self, time: &Time) -> bool {
        self.end.is_none_or(|end| time.0 < end)
    }

    /// An end without a time was inferred from what came after it.
    fn has_ended(&self, entry: &ContainerStatus) -> bool {
        let end = entry.state.as_ref().and_then(|state| state.terminated.as_ref());
        end.and_then(|end| end.finished_at.as_ref())
            .is_none_or(|time| self.is_earlier(time))
    }

    /// A sidecar that has ended does not tell any more whether it had started.
    fn was_initialized(&self) -> bool {
        self.api.conditions.iter().flatten().any(|condition| {
            let since = condition.last_transition_time.as_ref();
            condition.type_ == INITIALIZED
                && condition.status == "True"
                && since.is_some_and(|time| self.is_earlier(time))
        })
    }
}

/// When the deletion was asked for.
fn beginning_of_the_end(pod: &Pod) -> Option<Timestamp> {
    let over = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    over.checked_sub(SignedDuration::from_secs(grace)).ok()
}

/// How many init containers come up to the last one that shows a start; the first one always had its turn
/// (`initializedContainers`).
fn reached(init: &[ContainerStatus]) -> usize {
    init.iter().rposition(shows_a_start).map_or(1, |last| last + 1)
}

fn shows_a_start(entry: &ContainerStatus) -> bool {
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
