//! Mismatch of evidence about one pod. A user has to decide. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::clock::Mark;

/// Evidence that does not match. It blocks one pod until a user approves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Mismatch {
    /// Which evidence does not match.
    pub kind: MismatchKind,
    /// The evidence: containers, sandboxes, cgroups, volumes.
    pub facts: BTreeSet<String>,
}

/// Which evidence does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum MismatchKind {
    /// The pod runs and has no cgroup.
    NoCgroup,
    /// The pod was on this node and has no directory.
    NoDirectory,
    /// Its cgroup has processes that belong to no container of the runtime.
    UnknownProcesses,
    /// The CSI driver fails to unpublish or unstage a volume that has no mount, or cannot be called.
    VolumeNotUnpublished,
    /// Nothing runs and no volume is left, and the runtime cannot take the network of a sandbox down.
    NetworkNotRemoved,
}

/// A mismatch that a user has approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MismatchApproval {
    /// The mismatch that the user has seen.
    pub mismatch: Mismatch,
    /// When. It is void after a reboot.
    pub at: Mark,
}

// === impl Mismatch ===

impl Mismatch {
    /// A mismatch with this evidence.
    pub fn new(kind: MismatchKind, facts: impl IntoIterator<Item = String>) -> Self {
        Self {
            kind,
            facts: facts.into_iter().collect(),
        }
    }

    /// Whether one of these approvals of this boot covers it: the user has seen all its evidence. Some of that may have disappeared
    /// since; new evidence needs a new approval.
    pub fn is_approved_by(&self, approvals: &[MismatchApproval], boot_id: &str) -> bool {
        let covers = |MismatchApproval { mismatch, at }: &MismatchApproval| {
            at.boot_id == boot_id && mismatch.kind == self.kind && self.facts.is_subset(&mismatch.facts)
        };
        approvals.iter().any(covers)
    }
}

// === impl MismatchKind ===

impl MismatchKind {
    /// What the agent does after an approval.
    pub fn approval_effect(self) -> &'static str {
        match self {
            Self::NoCgroup => "the agent stops the pod through the runtime alone, and looks for no cgroup of it",
            Self::NoDirectory => {
                "the agent tears the pod down without its directory; volumes that the mount table shows still block it"
            }
            Self::VolumeNotUnpublished => {
                "the volume counts as unpublished and unstaged without its driver, as long as the mount table does not show it"
            }
            Self::NetworkNotRemoved => {
                "the pod's object is deleted although its network is not taken down; its addresses may stay in use on this node \
                 until the network plugin works again, and the agent removes the sandbox then"
            }
            Self::UnknownProcesses => "the agent tears the pod down, and kills these processes with its cgroup",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approval_covers_the_evidence_that_was_shown_and_no_more() {
        use MismatchKind::{NoCgroup, UnknownProcesses};
        let mismatch = |kind, facts: &[&str]| Mismatch::new(kind, facts.iter().map(|&fact| fact.to_owned()));
        let approvals = [MismatchApproval {
            mismatch: mismatch(UnknownProcesses, &["a", "b"]),
            at: Mark {
                boot_id: "boot-1".to_owned(),
                since_boot: std::time::Duration::from_secs(9),
                wall: jiff::Timestamp::UNIX_EPOCH,
            },
        }];
        for (kind, facts, boot_id, settled) in [
            (UnknownProcesses, &["a", "b"][..], "boot-1", true),
            (UnknownProcesses, &["b"], "boot-1", true),
            (UnknownProcesses, &["a", "c"], "boot-1", false),
            (UnknownProcesses, &["a"], "boot-2", false),
            (NoCgroup, &["a"], "boot-1", false),
        ] {
            let now = mismatch(kind, facts).is_approved_by(&approvals, boot_id);
            assert_eq!(now, settled, "{kind:?} {facts:?} {boot_id}");
        }
    }
}
