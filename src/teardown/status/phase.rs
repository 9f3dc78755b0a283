//! The phase of a pod, and the states of containers that it follows from.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have been started.
    Pending,
    /// At least one container runs or will run again.
    Running,
    /// Every container exited with 0, and none will run again.
    Succeeded,
    /// Every container exited, at least one not with 0, or the pod was evicted.
    Failed,
}

/// State of a container in a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerLife<'a> {
    /// No status, or a status without state.
    Unknown,
    /// It has never started.
    Waiting,
    /// It waits to be restarted after this exit.
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
    /// The phase of this name in the API.
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

    /// Whether a pod never leaves this phase.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running => false,
        }
    }

    /// The phase in a status; `None` if it is unknown.
    pub fn from_status(status: &PodStatus) -> Option<Self> {
        status.phase.as_deref().and_then(Self::parse)
    }

    /// Whether a status has a terminal phase.
    pub fn is_terminal_in(status: &PodStatus) -> bool {
        Self::from_status(status).is_some_and(Self::is_terminal)
    }
}

// === impl ContainerLife ===

impl<'a> ContainerLife<'a> {
    pub(super) fn from_status(status: &'a ContainerStatus) -> Self {
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
