//! Why a pod still exists, as typed causes. Messages and remedies are rendered from the type.

use serde::{Deserialize, Serialize};

use crate::{model::termination::Terminator, words::escape_control_chars};

mod kind;
mod remedy;
mod words;

pub use kind::{CauseKind, ProcessName, SigtermDisposition};

/// One cause, most urgent first in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "WhyCause"))]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// How urgent it is.
    pub severity: Severity,
    /// What it is.
    #[serde(flatten)]
    pub kind: CauseKind,
    /// Message for the user.
    pub message: String,
    /// What the user can do; empty if there is nothing to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

/// How urgent a cause is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// It blocks the termination until it is resolved.
    Blocking,
    /// It resolves without an action.
    Waiting,
    /// It could not be read: no conclusion is drawn.
    Unknown,
    /// It will block a later step.
    Later,
    /// For information.
    Info,
}

// === impl Cause ===

impl Cause {
    /// A cause with its message and remedy.
    pub fn new(severity: Severity, kind: CauseKind, terminator: Terminator) -> Self {
        Self {
            severity,
            message: escape_control_chars(&words::message(&kind)),
            remedy: escape_control_chars(&remedy::remedy(&kind, terminator)),
            kind,
        }
    }
}

// === impl Severity ===

impl Severity {
    /// The word in the text.
    pub fn label(self) -> &'static str {
        match self {
            Self::Blocking => "BLOCKED",
            Self::Waiting => "WAITS",
            Self::Unknown => "UNKNOWN",
            Self::Later => "LATER",
            Self::Info => "INFO",
        }
    }
}
