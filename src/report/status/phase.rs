//! The phase of a pod, from the statuses of its containers and what was decided about it.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::containers::Lists;
use super::{Facts, Stage, deadline, tally};

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have been started.
    Pending,
    /// At least one container runs or will run again.
    Running,
    /// Every container ended with 0 and none will run again.
    Succeeded,
    /// Every container ended, at least one not with 0, or somebody decided so.
    Failed,
}

/// A phase with the reason and message that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// What a container's status says about its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life<'a> {
    /// No status at all, or one without a state.
    Unknown,
    /// Never started as far as the status tells.
    Waiting,
    /// Waits to be started again after this end.
    WaitingAgain {
        exit_code: i32,
        reason: Option<&'a str>,
    },
    Running {
        started: bool,
    },
    Ended {
        exit_code: i32,
        reason: Option<&'a str>,
    },
}

// === impl Phase ===

impl Phase {
    /// The phase by its name in the API.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Pending" => Some(Self::Pending),
            "Running" => Some(Self::Running),
            "Succeeded" => Some(Self::Succeeded),
            "Failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether a pod can never leave it.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running => false,
        }
    }

    /// The phase that a status shows, if it is one we know.
    pub fn of(status: &PodStatus) -> Option<Self> {
        status.phase.as_deref().and_then(Self::parse)
    }
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

// === impl Life ===

impl<'a> Life<'a> {
    pub(super) fn of(status: &'a ContainerStatus) -> Self {
        let Some(state) = &status.state else {
            return Self::Unknown;
        };
        if state.running.is_some() {
            Self::Running {
                started: status.started == Some(true),
            }
        } else if let Some(end) = &state.terminated {
            Self::Ended {
                exit_code: end.exit_code,
                reason: end.reason.as_deref(),
            }
        } else if state.waiting.is_none() {
            Self::Unknown
        } else if let Some(end) = status.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
            Self::WaitingAgain {
                exit_code: end.exit_code,
                reason: end.reason.as_deref(),
            }
        } else {
            Self::Waiting
        }
    }
}

/// Phase, reason and message, in the order of who may overrule whom: the API's terminal phase, an end that was imposed,
/// the active deadline, and last the containers.
pub(super) fn decide(facts: &Facts<'_>, api: &PodStatus, lists: &Lists) -> Verdict {
    if Phase::of(api).is_some_and(Phase::is_terminal) {
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
