//! An approval of a safety hold: who gave it, when and why.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::row::{APPROVALS, Row};

/// An approval of a safety hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Approval {
    /// The item, such as `absence` or `pod/NAMESPACE/NAME`.
    pub item: String,
    /// UID of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// When it was given.
    pub at: Timestamp,
    /// Name of the user.
    pub by: String,
    /// Reason of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the item was on hold.
    pub why: String,
}

/// The row in the journal.
pub(super) fn row(approvals: &[Approval]) -> Row {
    Row::Node(APPROVALS, serde_json::to_string(approvals).unwrap_or_default())
}
