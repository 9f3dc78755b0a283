//! Facts about one pod that do not match, so that a user has to decide. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::clock::Mark;

/// Facts that do not match. They block one pod until a user approves them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mismatch {
    /// Which facts do not match.
    pub kind: MismatchKind,
    /// What it rests on: containers, sandboxes, cgroups, volumes.
    pub facts: BTreeSet<String>,
}

/// Which facts do not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MismatchKind {
    /// The pod runs, and has no cgroup.
    NoCgroup,
    /// The pod is or was here, and has no directory.
    NoDirectory,
    /// Its cgroup holds processes of which the runtime knows no container.
    UnknownProcesses,
    /// A driver does not take a volume away of which nothing is mounted.
    VolumeNotTakenAway,
}

/// A mismatch that a user has approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// As it was shown to the user.
    #[serde(rename = "doubt")]
    pub mismatch: Mismatch,
    /// When. Of what was there before a reboot nothing is there any more.
    pub at: Mark,
}

// === impl Mismatch ===

impl Mismatch {
    /// A mismatch of these facts.
    pub fn new(kind: MismatchKind, facts: impl IntoIterator<Item = String>) -> Self {
        Self {
            kind,
            facts: facts.into_iter().collect(),
        }
    }

    /// Whether one of these releases covers it: the user has seen all its facts. Some of them may be gone since then; a new
    /// fact makes another mismatch.
    pub fn is_approved_by(&self, releases: &[Release], boot_id: &str) -> bool {
        let settles = |Release { mismatch, at }: &Release| {
            at.boot_id == boot_id && mismatch.kind == self.kind && self.facts.is_subset(&mismatch.facts)
        };
        releases.iter().any(settles)
    }
}

// === impl MismatchKind ===

impl MismatchKind {
    /// What follows from a release.
    pub fn released(self) -> &'static str {
        match self {
            Self::NoCgroup => "the pod is ended by the runtime alone, and no cgroup of it is looked for",
            Self::NoDirectory => {
                "the pod is ended although its directory is not here; what the mount table shows of its volumes keeps it all the same"
            }
            Self::VolumeNotTakenAway => {
                "the volume counts as taken off this node without its driver, as long as the mount table shows nothing of it"
            }
            Self::UnknownProcesses => "the pod is ended, and these processes are killed with its cgroup",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_settles_what_was_shown_or_less_of_it_and_nothing_else() {
        use MismatchKind::{NoCgroup, UnknownProcesses};
        let mismatch = |kind, facts: &[&str]| Mismatch::new(kind, facts.iter().map(|&fact| fact.to_owned()));
        let releases = [Release {
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
            let now = mismatch(kind, facts).is_approved_by(&releases, boot_id);
            assert_eq!(now, settled, "{kind:?} {facts:?} {boot_id}");
        }
    }
}
