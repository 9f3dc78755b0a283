//! Proofs that a pod was deleted. A timeout, an incomplete list, a restored etcd or another cluster prove nothing.

use std::collections::BTreeSet;

use crate::{
    journal::{AbsenceHoldKind, WatchState},
    model::pod::PodUid,
    words::format_count,
};

/// From this many missing pods on, and if they are the majority, an approval is needed.
const MANY: usize = 10;

/// A complete list compared with the known pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListComparison {
    /// Number of pods in the list.
    pub listed: usize,
    /// Number of known pods that were not terminating.
    pub alive: usize,
    /// Those that the list lacks.
    pub missing: BTreeSet<PodUid>,
    /// Missing pods need no approval: the Node is out of service, or this is the first list of this run, with at least half as many
    /// pods as expected. While no agent ran, a kubelet may have replaced many.
    pub needs_no_approval: bool,
}

/// Pods in the runtime that came from an API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnlistedPods {
    /// Number of such pods that were not terminating.
    pub runtime_pods: usize,
    /// Those that this API server has never shown.
    pub uids: BTreeSet<PodUid>,
}

/// Missing pods, and the approval of them.
#[derive(Debug, Default)]
pub(super) struct MissingPods {
    /// The last observation.
    pub now: BTreeSet<PodUid>,
    /// Those that a user has approved.
    approved: BTreeSet<PodUid>,
}

// === impl ListComparison ===

impl ListComparison {
    /// The reason if so many pods are missing that an approval is needed.
    fn needs_approval(&self) -> Option<(AbsenceHoldKind, String)> {
        let Self {
            listed,
            alive,
            missing,
            needs_no_approval,
        } = self;
        match missing.len() {
            _ if *needs_no_approval => None,
            0 => None,
            _ if *listed == 0 => Some((
                AbsenceHoldKind::EmptyList,
                format!(
                    "a list was empty, but this node had {} when last seen, and no deletion was seen: was etcd emptied?",
                    format_count(*alive as u64, "pod")
                ),
            )),
            many if are_suspiciously_many(many, *alive) => Some((
                AbsenceHoldKind::MissingPods,
                format!(
                    "a list lacks {many} of the {alive} pods that this node had when last seen, and no deletion was seen: has etcd \
                     lost them?"
                ),
            )),
            _ => None,
        }
    }
}

// === impl UnlistedPods ===

impl UnlistedPods {
    /// Of pods with a flag: this API server has never shown the pod.
    pub fn of(sandboxes: impl Iterator<Item = (PodUid, bool)>) -> Self {
        sandboxes.fold(Self::default(), |mut all, (uid, never_shown)| {
            all.runtime_pods += 1;
            all.uids.extend(never_shown.then_some(uid));
            all
        })
    }

    /// The reason if so many pods were never shown that an approval is needed.
    pub(super) fn needs_approval(&self) -> Option<(AbsenceHoldKind, String)> {
        let (many, runtime_pods) = (self.uids.len(), self.runtime_pods);
        are_suspiciously_many(many, runtime_pods).then(|| {
            let why = format!(
                "the runtime holds {runtime_pods} pods that an API server had made, and this one never showed {many} of them: is \
                 this their cluster, and has its etcd lost them?"
            );
            (AbsenceHoldKind::UnlistedPods, why)
        })
    }
}

// === impl MissingPods ===

impl MissingPods {
    /// Records the missing pods, and returns those without an approval.
    pub fn unapproved(&mut self, now: BTreeSet<PodUid>) -> BTreeSet<PodUid> {
        self.approved.retain(|uid| now.contains(uid));
        self.now = now;
        self.now.difference(&self.approved).cloned().collect()
    }

    /// Approves all pods that are missing now.
    pub fn approve(&mut self) {
        self.approved.clone_from(&self.now);
    }
}

fn are_suspiciously_many(missing: usize, of: usize) -> bool {
    missing >= MANY && missing * 2 > of
}

/// The memory after a complete list of this resourceVersion. The list must reach `seen_before`, the highest version when it was
/// requested; later events may have a higher one. A hold stays until a user approves it: the versions of a restored etcd grow, and
/// soon exceed the recorded one.
pub(super) fn memory_after_list(
    memory: WatchState,
    version: u64,
    seen_before: u64,
    comparison: Option<&ListComparison>,
) -> WatchState {
    let older = (version < seen_before).then(|| {
        let why =
            format!("a list is of resourceVersion {version}, but {seen_before} was seen before: was etcd restored?");
        (AbsenceHoldKind::OlderList, why)
    });
    // The pods that an older list lacks are no further reason.
    let reason = older.or_else(|| comparison?.needs_approval());
    WatchState {
        highest: memory.highest.max(version),
        ..memory
    }
    .with_absence_hold(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(highest: u64) -> WatchState {
        WatchState {
            highest,
            ..WatchState::default()
        }
    }

    fn comparison(listed: usize, alive: usize, missing: usize) -> ListComparison {
        ListComparison {
            listed,
            alive,
            missing: (0..missing).map(|n| n.to_string().as_str().into()).collect(),
            needs_no_approval: false,
        }
    }

    #[test]
    fn older_list_blocks_and_newer_lists_do_not_unblock() {
        let after = memory_after_list(fresh(200), 7, 200, Some(&comparison(3, 3, 0)));
        assert!(
            after
                .absence_hold_reason
                .as_ref()
                .unwrap()
                .contains("resourceVersion 7")
        );
        assert_eq!(after.highest, 200);
        let later = memory_after_list(after.clone(), 5_000, 200, Some(&comparison(3, 3, 0)));
        assert_eq!(later.absence_hold_reason, after.absence_hold_reason);
        assert_eq!(later.highest, 5_000);
    }

    #[test]
    fn list_that_is_empty_or_lacks_most_of_many_pods_blocks() {
        for (listed, alive, missing, safety_holds) in [
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
            let after = memory_after_list(fresh(5), 6, 5, Some(&comparison(listed, alive, missing)));
            assert_eq!(
                after.absence_hold_reason.is_some(),
                safety_holds,
                "{listed} {alive} {missing}"
            );
        }
    }

    #[test]
    fn reason_of_a_new_kind_is_added_and_one_of_a_known_kind_changes_nothing() {
        let lacking = |missing| Some(comparison(5, 15, missing));
        let first = memory_after_list(fresh(200), 201, 200, lacking(10).as_ref());
        let same = memory_after_list(first.clone(), 202, 201, lacking(11).as_ref());
        assert_eq!(same.absence_hold_reason, first.absence_hold_reason);
        let older = memory_after_list(same, 7, 202, lacking(11).as_ref());
        let why = older.absence_hold_reason.clone().unwrap();
        assert!(
            why.contains("lacks 10 of the 15 pods") && why.contains("resourceVersion 7"),
            "{why}"
        );
        let empty = memory_after_list(older, 8, 202, Some(&comparison(0, 15, 15)));
        assert_eq!(
            empty.absence_hold_reason.as_deref(),
            Some(&*why),
            "an older list explains it"
        );
        let empty = memory_after_list(empty, 203, 202, Some(&comparison(0, 15, 15)));
        assert!(empty.absence_hold_reason.unwrap().contains("a list was empty"));
    }

    #[test]
    fn list_of_the_same_or_a_newer_version_does_not_block() {
        assert_eq!(memory_after_list(fresh(5), 5, 5, Some(&comparison(3, 3, 0))), fresh(5));
        assert_eq!(memory_after_list(fresh(5), 6, 5, None), fresh(6));
    }

    #[test]
    fn list_older_than_later_events_does_not_block() {
        assert_eq!(memory_after_list(fresh(9), 6, 5, Some(&comparison(3, 3, 0))), fresh(9));
    }
}
