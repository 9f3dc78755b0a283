//! Whether a pod's end begins, and why. Once begun it is never taken back.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::pod::PodView;

/// Why a pod is taken down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// It has a deletionTimestamp.
    Deleted,
    /// Its phase is Failed or Succeeded.
    PhaseTerminal,
    /// Its object is proven to be gone while it may still run here.
    Removed,
    /// Somebody who runs this node asked for it.
    Requested,
    /// An earlier run of this agent began, for whichever reason.
    Begun,
}

/// An end that somebody decided on. It is always Failed, and stays so whatever the exit codes say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imposed {
    /// Pod-level reason, such as `Evicted`.
    pub reason: String,
    /// Pod-level message for people.
    pub message: String,
    /// Message of the `DisruptionTarget` condition that goes with it, if one does.
    pub disruption: Option<String>,
}

/// Why this pod must end; `None` if it goes on living or is not ours to end. `removed`: its object is proven to be gone;
/// `begun`: an earlier run of this agent has begun.
pub fn cause(view: &PodView, removed: bool, begun: bool) -> Option<Cause> {
    if view.mirror {
        // A mirror's deletion says nothing of the static pod behind it.
        return None;
    }
    match (view.deletion.is_some(), removed, view.terminal_phase, begun) {
        (true, ..) => Some(Cause::Deleted),
        (false, true, ..) => Some(Cause::Removed),
        (false, false, true, _) => Some(Cause::PhaseTerminal),
        (false, false, false, true) => Some(Cause::Begun),
        (false, false, false, false) => None,
    }
}

/// What the API takes for a reason, as of a condition.
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
            Self::PhaseTerminal => "its phase says that it is over",
            Self::Removed => "its object is gone",
            Self::Requested => "on request",
            Self::Begun => "it was begun before",
        })
    }
}

impl Cause {
    /// Grace imposed by the cause itself. An object that is gone leaves nobody to wait for: what replaces the pod may
    /// run elsewhere already.
    pub fn imposed_grace(self) -> Option<i64> {
        match self {
            Self::Removed => Some(1),
            Self::Deleted | Self::PhaseTerminal | Self::Requested | Self::Begun => None,
        }
    }
}
