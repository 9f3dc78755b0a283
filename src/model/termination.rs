//! Whether a pod terminates, and why. A termination that has begun is never reverted.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::pod::PodView;

/// Why a pod terminates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// It has a deletionTimestamp.
    #[default]
    Deleted,
    /// Its phase is Failed or Succeeded.
    PhaseTerminal,
    /// Its object is proven to be deleted while it may still run here.
    Removed,
    /// A user of this node has stopped it.
    Requested,
    /// An earlier run of this agent has begun it.
    Begun,
}

/// The process that terminates the pod now. Remedies depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminator {
    /// This agent.
    Agent,
    /// A kubelet.
    Kubelet,
    /// No kubelet, and this agent may not.
    NoProcess,
}

/// What the grace period of a pod is counted from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum GraceStart {
    /// The delete request, by the API server's clock. When a kubelet began to terminate the pod is not known.
    DeleteRequest,
    /// The moment when this agent began to terminate the pod.
    Termination,
    /// It has not begun: this agent has not begun to terminate the pod.
    #[default]
    NotBegun,
}

/// An eviction. The pod's phase is Failed, regardless of its exit codes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Eviction {
    /// Pod-level reason, such as `Evicted`.
    pub reason: String,
    /// Pod-level message.
    pub message: String,
    /// Message of the `DisruptionTarget` condition, if there is one.
    pub disruption: Option<String>,
}

/// Why this pod must terminate; `None` if it must not, as for a mirror pod. `begun`: an earlier run of this agent has begun.
pub fn cause(view: &PodView, begun: bool) -> Option<Cause> {
    if view.mirror {
        // The deletion of a mirror pod does not terminate its static pod.
        return None;
    }
    match (
        view.deletion.is_some(),
        view.object.is_absent(),
        view.terminal_phase,
        begun,
    ) {
        (true, ..) => Some(Cause::Deleted),
        (false, true, ..) => Some(Cause::Removed),
        (false, false, true, _) => Some(Cause::PhaseTerminal),
        (false, false, false, true) => Some(Cause::Begun),
        (false, false, false, false) => None,
    }
}

/// Whether the API accepts the text as the reason of a condition
/// (API: `metav1.Condition` pattern `[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?`).
pub fn is_reason(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "_,:".contains(it))
        && !text.ends_with([',', ':'])
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deleted => "it was deleted",
            Self::PhaseTerminal => "its phase is terminal",
            Self::Removed => "its object no longer exists",
            Self::Requested => "a user requested it",
            Self::Begun => "it had begun before the agent started",
        })
    }
}

impl Cause {
    /// Grace period in seconds that the cause demands. A pod whose object is deleted may already run elsewhere.
    pub fn required_grace(self) -> Option<i64> {
        match self {
            Self::Removed => Some(1),
            Self::Deleted | Self::PhaseTerminal | Self::Requested | Self::Begun => None,
        }
    }
}
