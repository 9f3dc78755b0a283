//! What is said of a pod as a whole, from its containers and what was decided about it.

use k8s_openapi::api::core::v1::PodStatus;

use super::containers::Lists;
use super::phase::Phase;
use super::{Facts, Stage, deadline, tally};

/// A phase with the reason and message that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

// === impl Verdict ===

impl Verdict {
    /// What the API shows now.
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

    /// While a process may run, what the pod holds exclusively is not free: a terminal phase waits (`mergePodStatus`).
    pub(super) fn held_back(self, stage: Stage, api: &PodStatus) -> Self {
        match stage {
            Stage::Terminating if self.is_terminal() => Self::of(api),
            Stage::Terminating | Stage::Stopped | Stage::Terminated => self,
        }
    }
}

/// Phase, reason and message, in the order of who may overrule whom: the API's terminal phase, an end that was imposed,
/// the active deadline, and last the containers.
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
