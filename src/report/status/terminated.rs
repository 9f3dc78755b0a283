//! The last word on a pod of which nothing is left: no container stays undecided, and the phase is terminal
//! (the status manager's `TerminatePod`).

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus};

use super::containers::{Lists, by_name};
use super::phase::{Life, Phase};
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
    let was_initialized = |spec| shows_initialization(spec, &known) || shows_initialization(spec, lists);
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
fn shows_initialization(spec: &PodSpec, lists: &Lists) -> bool {
    let Some(last) = spec.init_containers.as_ref().and_then(|list| list.last()) else {
        return true;
    };
    if lists.regular.iter().any(shows_a_start) {
        return true;
    }
    let Some(status) = by_name(&lists.init, &last.name) else {
        return false;
    };
    match Life::of(status) {
        Life::Running { started } => is_sidecar(last) && started,
        Life::Ended { exit_code, .. } | Life::WaitingAgain { exit_code, .. } => {
            !is_sidecar(last) && (exit_code == 0 || succeeded_before(status))
        }
        Life::Unknown | Life::Waiting => false,
    }
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
