//! What an agent that only observes found about one termination by the kubelet.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::{Display, VariantArray};

/// The termination of one pod by the kubelet, compared with what the agent would have done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// When the deletion was seen; `None` if the pod terminated by itself or by its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// When the kubelet was done with the pod.
    pub finished_at: Timestamp,
    /// Grace period in seconds, as the agent would count it.
    pub grace_seconds: u64,
    /// Milliseconds from the beginning of the termination until the kubelet was done.
    pub elapsed_ms: u64,
    /// The result of the comparison.
    pub verdict: Verdict,
    /// Fields of the last status that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// What the kubelet has left on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// Why something is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "agent", derive(clap::ValueEnum))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[derive(Display, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Verdict {
    /// The agent would have written the same status, and nothing is left on the node.
    Same,
    /// The agent would have written another status, and nothing is left on the node.
    Different,
    /// The kubelet was done with the pod, and has left something of it on the node.
    Leftovers,
    /// Not all of it was seen.
    #[default]
    Unknown,
}

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Path of the field in the status.
    pub field: String,
    /// The kubelet's value, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<String>,
    /// The agent's value, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The situation in docs/explanation/kubelet-differences.md, if this difference is intended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documented: Option<String>,
}

/// Something that the kubelet has left on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// Its kind.
    pub kind: LeftoverKind,
    /// Its path or ID.
    pub object: String,
    /// What the agent would do about it.
    pub detail: String,
}

impl Leftover {
    /// An object of this kind, with what the agent would do about it.
    pub fn new(kind: LeftoverKind, object: &str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            object: object.to_owned(),
            detail: detail.into(),
        }
    }
}

/// Kind of a leftover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum LeftoverKind {
    /// A container in the runtime.
    Container,
    /// A sandbox in the runtime.
    Sandbox,
    /// A mounted file system.
    Mount,
    /// A volume that its driver has not unpublished or unstaged.
    Volume,
    /// A prepared claim.
    Claim,
    /// A cgroup.
    Cgroup,
    /// A directory.
    Directory,
}

// === impl Observation ===

impl Observation {
    /// Whether it differs only as the documentation says.
    pub fn differs_as_documented(&self) -> bool {
        self.verdict == Verdict::Different && self.differences.iter().all(|it| it.documented.is_some())
    }
}
