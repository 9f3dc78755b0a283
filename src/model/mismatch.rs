//! What runtime, cgroups and directories tell of one pod, and what only a person can make of it. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::clock::Mark;

/// A contradiction that holds one pod until somebody releases it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Doubt {
    /// What contradicts what.
    pub kind: DoubtKind,
    /// What it rests on: containers, sandboxes, cgroups, volumes.
    pub facts: BTreeSet<String>,
}

/// What contradicts what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DoubtKind {
    /// The pod runs, and has no cgroup.
    NoCgroup,
    /// The pod is or was here, and has no directory.
    NoDirectory,
    /// Its cgroup holds processes of which the runtime knows no container.
    UnknownProcesses,
    /// A driver does not take a volume away of which nothing is mounted.
    VolumeNotTakenAway,
}

/// A doubt that somebody has settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// As it was shown to them.
    pub doubt: Doubt,
    /// When. Of what was there before a reboot nothing is there any more.
    pub at: Mark,
}

// === impl Doubt ===

impl Doubt {
    /// A doubt that rests on these facts.
    pub fn new(kind: DoubtKind, facts: impl IntoIterator<Item = String>) -> Self {
        Self {
            kind,
            facts: facts.into_iter().collect(),
        }
    }

    /// Whether one of these releases settles it: whoever gave it has seen all that it rests on. Some of that may have gone
    /// since then; anything new is another doubt.
    pub fn is_settled_by(&self, releases: &[Release], boot_id: &str) -> bool {
        let settles = |Release { doubt, at }: &Release| {
            at.boot_id == boot_id && doubt.kind == self.kind && self.facts.is_subset(&doubt.facts)
        };
        releases.iter().any(settles)
    }
}

// === impl DoubtKind ===

impl DoubtKind {
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
        use DoubtKind::{NoCgroup, UnknownProcesses};
        let doubt = |kind, facts: &[&str]| Doubt::new(kind, facts.iter().map(|&fact| fact.to_owned()));
        let releases = [Release {
            doubt: doubt(UnknownProcesses, &["a", "b"]),
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
            let now = doubt(kind, facts).is_settled_by(&releases, boot_id);
            assert_eq!(now, settled, "{kind:?} {facts:?} {boot_id}");
        }
    }
}
