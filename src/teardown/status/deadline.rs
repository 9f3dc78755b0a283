//! `spec.activeDeadlineSeconds`: a pod that exceeds it has failed.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PodStatus;

use super::input::StatusInput;
use crate::node::cri::types::{Container, ContainerState};

/// Reason of a pod that has exceeded its active deadline.
pub const REASON: &str = "DeadlineExceeded";
pub(super) const MESSAGE: &str = "The pod was still active when its activeDeadlineSeconds were over";

/// Whether the pod ran past its deadline (the kubelet's `activeDeadlineHandler`).
///
/// A pod whose containers had all exited before the deadline has not exceeded it, even if that was not reported in time.
pub(super) fn exceeded(input: &StatusInput<'_>, api: &PodStatus) -> bool {
    let spec = input.pod.spec.as_ref();
    let Some(seconds) = spec.and_then(|spec| spec.active_deadline_seconds) else {
        return false;
    };
    // A pod without start time gets the current one.
    let start = api.start_time.as_ref().map_or(input.now, |start| start.0);
    let Ok(deadline) = start.checked_add(SignedDuration::from_secs(seconds.max(0))) else {
        return false;
    };
    let ended_in_time = |container: &Container| {
        container.state == ContainerState::Exited && container.finished_at.is_some_and(|end| end < deadline)
    };
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let kept = !regular.is_empty()
        && regular
            .iter()
            .all(|container| input.observed.newest(&container.name).is_some_and(ended_in_time));
    input.now >= deadline && !kept
}
