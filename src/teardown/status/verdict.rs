//! Phase, reason and message of a pod, from its containers and an eviction.

use k8s_openapi::api::core::v1::PodStatus;

use super::containers::Lists;
use super::facts::{Facts, Stage};
use super::phase::Phase;
use super::{deadline, tally};

/// A phase with its reason and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

// === impl Verdict ===

impl Verdict {
    /// The values in the API.
    pub(super) fn of(status: &PodStatus) -> Self {
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

    pub(super) fn known(&self) -> Option<Phase> {
        self.phase.as_deref().and_then(Phase::parse)
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.known().is_some_and(Phase::is_terminal)
    }

    /// A terminal phase waits while a process may run: the pod's exclusive resources are not free (`mergePodStatus`).
    pub(super) fn held_back(self, stage: Stage, api: &PodStatus) -> Self {
        match stage {
            Stage::Terminating if self.is_terminal() => Self::of(api),
            Stage::Terminating | Stage::Stopped | Stage::Terminated => self,
        }
    }
}

/// Phase, reason and message, by precedence: a terminal phase in the API, an eviction, the active deadline, the containers.
pub(super) fn decide(facts: &Facts<'_>, api: &PodStatus, lists: &Lists) -> Verdict {
    if Phase::is_over(api) {
        return Verdict::of(api);
    }
    if let Some(imposed) = facts.imposed {
        return Verdict::failed(&imposed.reason, &imposed.message);
    }
    if deadline::exceeded(facts, api) {
        return Verdict::failed(deadline::REASON, deadline::MESSAGE);
    }
    let phase = facts
        .pod
        .spec
        .as_ref()
        .map_or(Phase::Pending, |spec| tally::phase(facts, spec, lists));
    if Phase::of(api) == Some(phase) {
        Verdict::of(api)
    } else {
        Verdict {
            phase: Some(phase.name().into()),
            reason: None,
            message: None,
        }
    }
}
