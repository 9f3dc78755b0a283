//! Proofs that a pod was deleted. A timeout, an incomplete list, a restored etcd or another cluster prove nothing.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::holds::{ABSENCE, SafetyHold};
use crate::{
    journal::{AbsenceHoldKind, Journal, JournalError, WatchState},
    model::pod::PodUid,
    words::format_count,
};

/// How often the highest resourceVersion is recorded. It changes with every pod; this is enough to detect a restored etcd.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// From this many missing pods on, and if they are the majority, an approval is needed.
const MANY: usize = 10;

/// Whether absence proves a deletion.
pub struct Absence {
    journal: Journal,
    state: Mutex<AbsenceState>,
    /// A user has approved an item, and the pods have to be listed again.
    approved: Notify,
}

#[derive(Default)]
struct AbsenceState {
    watch: WatchState,
    recorded_at: Option<Instant>,
    /// The Node has the taint of a Node that is lost. All its pods are then force-deleted at once.
    is_out_of_service: bool,
    /// resourceVersion of the last complete list.
    listed: Option<u64>,
    /// Known pods that the last complete list lacks.
    missing: MissingPods,
    /// Absence was approved before the first list, so the user has seen no number of missing pods. The first list is then not
    /// excused.
    approved_before_list: bool,
    /// Pods of the API server in the runtime that this API server has never shown.
    unlisted: MissingPods,
}

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
struct MissingPods {
    /// The last observation.
    now: BTreeSet<PodUid>,
    /// Those that a user has approved.
    approved: BTreeSet<PodUid>,
}

// === impl Absence ===

impl Absence {
    /// With the state of the last run.
    pub fn new(journal: Journal) -> Self {
        let state = AbsenceState {
            watch: journal.node(|node| node.watch.clone()),
            ..AbsenceState::default()
        };
        Self {
            journal,
            state: Mutex::new(state),
            approved: Notify::new(),
        }
    }

    /// The highest resourceVersion seen so far. A list requested from now on must reach it.
    pub fn highest(&self) -> u64 {
        self.state.lock().watch.highest
    }

    /// Records a complete list of this resourceVersion. It was requested when `seen_before` was the highest. Returns the reason
    /// if pods that it lacks must not be treated as deleted.
    pub fn record_list(
        &self,
        version: Option<u64>,
        seen_before: u64,
        comparison: Option<ListComparison>,
    ) -> Option<String> {
        let Some(version) = version else {
            return Some("the list has no resourceVersion that can be compared".to_owned());
        };
        let mut state = self.state.lock();
        state.listed = Some(version);
        let comparison = comparison.map(|comparison| ListComparison {
            missing: state.missing.unapproved(comparison.missing),
            needs_no_approval: state.is_out_of_service || comparison.needs_no_approval && !state.approved_before_list,
            ..comparison
        });
        // A user may have approved an older list in between.
        let seen_before = seen_before.min(state.watch.highest);
        let watch = memory_after_list(state.watch.clone(), version, seen_before, comparison.as_ref());
        self.set_watch(&mut state, watch)
    }

    /// Records the pods of the runtime that no list shows. Returns the reason if they must not be treated as deleted.
    pub fn record_unlisted(&self, mut unlisted: UnlistedPods) -> Option<String> {
        let mut state = self.state.lock();
        unlisted.uids = state.unlisted.unapproved(unlisted.uids);
        if state.is_out_of_service {
            unlisted.uids.clear();
        }
        let watch = state.watch.clone().with_absence_hold(unlisted.needs_approval());
        self.set_watch(&mut state, watch)
    }

    /// Records the resourceVersion of a watch event.
    pub fn record_version(&self, version: u64) {
        let mut state = self.state.lock();
        let highest = state.watch.highest.max(version);
        let watch = WatchState {
            highest,
            ..state.watch.clone()
        };
        self.set_watch(&mut state, watch);
    }

    /// Records whether the Node has the taint of a Node that is lost.
    pub(in crate::handover) fn set_out_of_service(&self, is_out_of_service: bool) {
        self.state.lock().is_out_of_service = is_out_of_service;
    }

    /// Why a pod that a list lacks must not be treated as deleted now.
    pub fn hold_reason(&self) -> Option<String> {
        self.state.lock().watch.absence_hold_reason.clone()
    }

    /// Waits for an approval after which the pods have to be listed again.
    pub async fn wait_for_approval(&self) {
        self.approved.notified().await;
    }

    /// The hold of all pods that a list lacks.
    pub(super) fn hold(&self) -> Option<SafetyHold> {
        self.state.lock().hold()
    }

    /// The Node is another one than before. It may belong to another cluster, which never had the pods that this node had.
    pub(super) fn begin_with_other_node(&self) {
        let seen = self.journal.all_seen();
        let before = seen.iter().filter(|(_, seen)| !seen.terminates).count() as u64;
        let reason = (before > 0).then(|| {
            let why = format!(
                "the Node is another one than before, under which this node had {} when last seen: does this cluster know of \
                 them?",
                format_count(before, "pod")
            );
            (AbsenceHoldKind::OtherNode, why)
        });
        let mut state = self.state.lock();
        let watch = state.watch.clone().with_absence_hold(reason);
        self.set_watch(&mut state, watch);
        (state.listed, state.missing, state.unlisted) = Default::default();
    }

    /// Another approval needs the pods to be listed again.
    pub(super) fn request_list(&self) {
        self.approved.notify_one();
    }

    /// Approves the last list: its age, and the pods that it lacks. `None` if there is no hold with this digest. The inner error: the
    /// approval is lost at a restart.
    pub async fn approve(&self, digest: &str) -> Option<Result<(), JournalError>> {
        {
            let mut state = self.state.lock();
            state.hold().filter(|hold| hold.digest == digest)?;
            state.approved_before_list = state.listed.is_none();
            state.missing.approve();
            state.unlisted.approve();
            state.watch = WatchState {
                // 0 before the first list of this run: any version of the next one is accepted.
                highest: state.listed.unwrap_or_default(),
                ..WatchState::default()
            };
            self.journal.change_node(|node| node.watch = state.watch.clone());
        }
        self.request_list();
        Some(self.journal.durable().await)
    }

    fn set_watch(&self, state: &mut AbsenceState, mut watch: WatchState) -> Option<String> {
        let is_new_hold = state.watch.absence_hold_reason != watch.absence_hold_reason;
        if is_new_hold {
            watch.since.get_or_insert_with(Timestamp::now);
            tracing::error!(
                why = watch.absence_hold_reason,
                "Pods that a list lacks are not treated as deleted until an operator approves it"
            );
        }
        let due = state.recorded_at.is_none_or(|at| at.elapsed() >= RECORD_INTERVAL);
        if watch != state.watch && (due || is_new_hold) {
            self.journal.change_node(|node| node.watch = watch.clone());
            state.recorded_at = Some(Instant::now());
        }
        state.watch = watch;
        state.watch.absence_hold_reason.clone()
    }
}

// === impl AbsenceState ===

impl AbsenceState {
    fn hold(&self) -> Option<SafetyHold> {
        let why = self.watch.absence_hold_reason.clone()?;
        // Of the list, and in the runtime only.
        let missing = self.missing.now.union(&self.unlisted.now);
        let facts: Vec<_> = missing.map(ToString::to_string).collect();
        let each = match facts.len() {
            0 => "each pod that the list lacks".to_owned(),
            many => format!("each missing pod ({many})"),
        };
        let hold = SafetyHold {
            item: ABSENCE.to_owned(),
            uid: None,
            since: self.watch.since,
            why,
            approval_effect: format!(
                "the pods are listed again; {each} is requested by name, and terminated if it is deleted"
            ),
            facts,
            digest: String::new(),
        };
        Some(hold.sealed())
    }
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
    /// The reason if so many pods were never shown that an approval is needed.
    fn needs_approval(&self) -> Option<(AbsenceHoldKind, String)> {
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
    fn unapproved(&mut self, now: BTreeSet<PodUid>) -> BTreeSet<PodUid> {
        self.approved.retain(|uid| now.contains(uid));
        self.now = now;
        self.now.difference(&self.approved).cloned().collect()
    }

    /// Approves all pods that are missing now.
    fn approve(&mut self) {
        self.approved.clone_from(&self.now);
    }
}

fn are_suspiciously_many(missing: usize, of: usize) -> bool {
    missing >= MANY && missing * 2 > of
}

/// The memory after a complete list of this resourceVersion. The list must reach `seen_before`, the highest version when it was
/// requested; later events may have a higher one. A hold stays until a user approves it: the versions of a restored etcd grow, and
/// soon exceed the recorded one.
fn memory_after_list(
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
        for (listed, alive, missing, blocks) in [
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
                blocks,
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
