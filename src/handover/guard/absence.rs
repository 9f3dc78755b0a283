//! What proves that a pod's object is gone: never silence, half a list, another store, or another cluster.

use std::collections::BTreeSet;

use super::Guard;
use crate::{
    api::{ApiClient, ApiError},
    journal::WatchMemory,
    model::pod::{PodRef, PodUid},
    words::counted,
};

/// Fewer pods may vanish together without anybody's word.
const MANY: usize = 10;

impl Guard {
    /// Whether a complete, consistent list of the pods of this name on this node lacks this UID. The Node is looked at
    /// before and after, so that the answer came from the cluster to which this agent belongs.
    pub async fn is_gone(&self, api: &ApiClient, pod: &PodRef) -> Result<bool, ApiError> {
        self.verify(api).await?;
        let seen_before = self.highest();
        let list = api.named(pod).await?;
        if list.shows_it {
            return Ok(false);
        }
        self.verify(api).await?;
        match self.listed(list.version, seen_before, None) {
            None => Ok(true),
            Some(cause) => Err(ApiError::Held {
                verb: "LIST",
                path: "/api/v1/pods".to_owned(),
                cause,
            }),
        }
    }
}

/// What a complete list shows, and what it lacks of the pods that were known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// How many are in the list.
    pub listed: usize,
    /// How many were known, with no reason to vanish.
    pub living: usize,
    /// Those of them that the list lacks.
    pub vanished: BTreeSet<PodUid>,
    /// Nothing was seen in this run yet, and a kubelet may have ended many and begun as many others while no agent ran.
    pub is_excused: bool,
}

/// Pods that the runtime holds, made by the word of an API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unshown {
    /// How many there are, with no reason to vanish.
    pub held: usize,
    /// Those of them that were never shown.
    pub uids: BTreeSet<PodUid>,
}

/// Pods that are missing somewhere.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// As it was last seen.
    pub now: BTreeSet<PodUid>,
    /// What of that somebody has said to be right.
    accepted: BTreeSet<PodUid>,
}

// === impl Census ===

impl Census {
    /// Whether more has vanished at once than is believed without a word from somebody, and how that looks.
    fn is_not_believed(&self) -> Option<String> {
        let Self {
            listed,
            living,
            vanished,
            is_excused,
        } = self;
        match vanished.len() {
            _ if *is_excused => None,
            0 => None,
            _ if *listed == 0 => Some(format!(
                "a list was empty, but {} lived here when last seen, and no deletion was seen: was the cluster's store emptied?",
                counted(*living as u64, "pod")
            )),
            many if are_too_many(many, *living) => Some(format!(
                "a list lacks {many} of the {living} pods that lived here when last seen, and no deletion was seen: has the cluster's store lost them?"
            )),
            _ => None,
        }
    }
}

// === impl Unshown ===

impl Unshown {
    /// Those of `sandboxes`, each with whether it was never shown.
    pub fn of(sandboxes: impl Iterator<Item = (PodUid, bool)>) -> Self {
        sandboxes.fold(Self::default(), |mut all, (uid, never_shown)| {
            all.held += 1;
            all.uids.extend(never_shown.then_some(uid));
            all
        })
    }

    /// Whether these are more than are believed to be gone without a word from somebody, and how that looks.
    pub(super) fn is_not_believed(&self) -> Option<String> {
        let (many, held) = (self.uids.len(), self.held);
        are_too_many(many, held).then(|| {
            format!(
                "the runtime holds {held} pods that an API server had made, and this one never showed {many} of them: is \
                 this their cluster, and has its store lost them?"
            )
        })
    }
}

// === impl Missing ===

impl Missing {
    /// These are missing now. What somebody has said to be right is doubted no more.
    pub fn doubted(&mut self, now: BTreeSet<PodUid>) -> BTreeSet<PodUid> {
        self.accepted.retain(|uid| now.contains(uid));
        self.now = now;
        self.now.difference(&self.accepted).cloned().collect()
    }

    /// Somebody says that they are rightly missing.
    pub fn accept(&mut self) {
        self.accepted.clone_from(&self.now);
    }
}

fn are_too_many(missing: usize, of: usize) -> bool {
    missing >= MANY && missing * 2 > of
}

/// What is remembered after a complete list of this version, which was asked for when `seen_before` was the highest seen:
/// events and other lists may have overtaken its answer. A hold stays until the operator releases it: what was restored
/// grows on, and soon looks like any other list.
pub(super) fn after_list(memory: WatchMemory, version: u64, seen_before: u64, census: Option<&Census>) -> WatchMemory {
    let older = (version < seen_before).then(|| {
        format!(
            "a list is of resourceVersion {version}, but {seen_before} was seen before: was the cluster's store restored?"
        )
    });
    let held = memory.held.or(older).or_else(|| census?.is_not_believed());
    WatchMemory {
        highest: memory.highest.max(version),
        held,
        since: memory.since,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(highest: u64) -> WatchMemory {
        WatchMemory {
            highest,
            ..WatchMemory::default()
        }
    }

    fn census(listed: usize, living: usize, vanished: usize) -> Census {
        Census {
            listed,
            living,
            vanished: (0..vanished).map(|n| n.to_string().as_str().into()).collect(),
            is_excused: false,
        }
    }

    #[test]
    fn an_older_list_holds_and_newer_ones_do_not_release_it() {
        let after = after_list(fresh(200), 7, 200, Some(&census(3, 3, 0)));
        assert!(after.held.as_ref().unwrap().contains("resourceVersion 7"));
        assert_eq!(after.highest, 200);
        let later = after_list(after.clone(), 5_000, 200, Some(&census(3, 3, 0)));
        assert_eq!(later.held, after.held);
        assert_eq!(later.highest, 5_000);
    }

    #[test]
    fn a_list_holds_that_is_suddenly_empty_or_lacks_most_of_many() {
        for (listed, living, vanished, holds) in [
            (0, 0, 0, false),
            (0, 1, 1, true),
            (0, 2, 2, true),
            (1, 9, 9, false),
            (5, 15, 10, true),
            (1, 19, 9, false),
            (10, 20, 10, false),
            (9, 20, 11, true),
            (100, 30, 20, true),
            (90, 110, 20, false),
        ] {
            let after = after_list(fresh(5), 6, 5, Some(&census(listed, living, vanished)));
            assert_eq!(after.held.is_some(), holds, "{listed} {living} {vanished}");
        }
    }

    #[test]
    fn a_list_of_the_same_or_a_newer_version_holds_nothing() {
        assert_eq!(after_list(fresh(5), 5, 5, Some(&census(3, 3, 0))), fresh(5));
        assert_eq!(after_list(fresh(5), 6, 5, None), fresh(6));
    }

    #[test]
    fn a_list_that_events_have_overtaken_holds_nothing() {
        assert_eq!(after_list(fresh(9), 6, 5, Some(&census(3, 3, 0))), fresh(9));
    }
}
