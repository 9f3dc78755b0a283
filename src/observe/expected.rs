//! The last status that the agent would have written, by the function that the teardown uses. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::{
    model::{pod::PodObject, termination::Eviction},
    node::cri::types::RuntimePod,
    teardown::status::{self, DEADLINE_EXCEEDED, DISRUPTION_TARGET, Messages, StatusInput, StatusStage},
};

/// What the agent would have known at the end of the termination.
pub(super) struct Known<'a> {
    /// The object before the kubelet wrote its last status.
    pub before: &'a PodObject,
    /// All containers and sandboxes that were seen.
    pub runtime: &'a RuntimePod,
    /// Name of the runtime.
    pub runtime_name: &'a str,
    /// Termination messages.
    pub messages: &'a Messages,
    /// The eviction by the kubelet.
    pub eviction: Option<&'a Eviction>,
    /// When the kubelet was done.
    pub now: Timestamp,
}

/// The status after the last step of a teardown. As a teardown, it is built on the status that was sent when the containers were
/// stopped, unless that one waits for attached volumes.
pub(super) fn last_status(known: &Known<'_>, has_attachable_volumes: bool) -> PodStatus {
    let generate = |pod: &Pod, stage| {
        status::generate(&StatusInput {
            pod,
            observed: known.runtime,
            runtime_name: known.runtime_name,
            now: known.now,
            stage,
            eviction: known.eviction,
            messages: known.messages,
        })
    };
    let before = &known.before.pod;
    if has_attachable_volumes {
        return generate(before, StatusStage::Terminated);
    }
    let mut pod = before.clone();
    pod.status = Some(generate(before, StatusStage::Stopped));
    generate(&pod, StatusStage::Terminated)
}

/// The eviction that the kubelet's last status shows. The agent evicts a pod only on request, with this reason and message.
pub(super) fn eviction_of(before: &PodObject, last: &PodStatus) -> Option<Eviction> {
    let reason = last.reason.as_ref().filter(|it| !it.is_empty())?;
    let before = before.pod.status.as_ref().and_then(|status| status.reason.as_ref());
    if last.phase.as_deref() != Some("Failed") || reason == DEADLINE_EXCEEDED || before == Some(reason) {
        return None;
    }
    let disruption = last
        .conditions
        .iter()
        .flatten()
        .find(|it| it.type_ == DISRUPTION_TARGET);
    Some(Eviction {
        reason: reason.clone(),
        message: last.message.clone().unwrap_or_default(),
        disruption: disruption.and_then(|it| it.message.clone()),
    })
}
