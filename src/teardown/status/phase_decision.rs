//! Phase, reason and message of a pod, from its containers and an eviction.

use k8s_openapi::api::core::v1::PodStatus;

use super::containers::Lists;
use super::input::{StatusInput, StatusStage};
use super::phase::Phase;
use super::{deadline, tally};

/// A phase with its reason and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PhaseDecision {
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

// === impl PhaseDecision ===

impl PhaseDecision {
    /// The values in the API.
    pub(super) fn from_status(status: &PodStatus) -> Self {
        Self {
            phase: status.phase.clone(),
            reason: status.reason.clone(),
            message: status.message.clone(),
        }
    }

    pub(super) fn failed(reason: &str, message: &str) -> Self {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Self {
            phase: Some(Phase::Failed.name().into()),
            reason: text(reason),
            message: text(message),
        }
    }

    pub(super) fn parsed_phase(&self) -> Option<Phase> {
        self.phase.as_deref().and_then(Phase::parse)
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.parsed_phase().is_some_and(Phase::is_terminal)
    }

    /// A terminal phase waits while a process may run: the pod's exclusive resources are not free (`mergePodStatus`).
    pub(super) fn without_early_terminal_phase(self, stage: StatusStage, api: &PodStatus) -> Self {
        match stage {
            StatusStage::Terminating if self.is_terminal() => Self::from_status(api),
            StatusStage::Terminating | StatusStage::Stopped | StatusStage::Terminated => self,
        }
    }
}

/// Phase, reason and message, by precedence: a terminal phase in the API, an eviction, the active deadline, the containers.
pub(super) fn decide(input: &StatusInput<'_>, api: &PodStatus, lists: &Lists) -> PhaseDecision {
    if Phase::is_terminal_in(api) {
        return PhaseDecision::from_status(api);
    }
    if let Some(eviction) = input.eviction {
        return PhaseDecision::failed(&eviction.reason, &eviction.message);
    }
    if deadline::exceeded(input, api) {
        return PhaseDecision::failed(deadline::REASON, deadline::MESSAGE);
    }
    let phase = input
        .pod
        .spec
        .as_ref()
        .map_or(Phase::Pending, |spec| tally::phase(input, spec, lists));
    if Phase::from_status(api) == Some(phase) {
        PhaseDecision::from_status(api)
    } else {
        PhaseDecision {
            phase: Some(phase.name().into()),
            reason: None,
            message: None,
        }
    }
}
