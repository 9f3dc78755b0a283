//! Safety holds for all pods of the node, and their approval.

use super::{
    Guard, GuardState, ONLY_OBSERVES,
    holds::{ABSENCE, NODE_UID, SafetyHold},
};
use crate::{
    journal::{AbsenceHoldKind, JournalError, WatchState},
    model::pod::PodUid,
    words::format_count,
};

impl Guard {
    /// Safety holds of the whole node that a user can approve.
    pub fn safety_holds(&self) -> Vec<SafetyHold> {
        let state = self.lock();
        state.node_uid_hold().into_iter().chain(state.absence_hold()).collect()
    }

    /// Whether all effects are blocked because the Node has another UID. A user can approve that.
    pub fn has_node_uid_mismatch(&self) -> bool {
        let state = self.lock();
        state
            .identity
            .as_ref()
            .is_err_and(|mismatch| mismatch.other_uid.is_some())
    }

    /// Why all effects are blocked, if no approval can change that.
    pub fn why_blocked_for_good(&self) -> Option<String> {
        let state = self.lock();
        let mismatch = state
            .identity
            .as_ref()
            .err()
            .filter(|mismatch| mismatch.other_uid.is_none());
        mismatch
            .map(|mismatch| mismatch.why.clone())
            .or_else(|| self.only_observes.then(|| ONLY_OBSERVES.to_owned()))
            .or_else(|| state.why_kubelet_blocks())
    }

    /// Approves the UID of the Node that was read last. Pods of the former Node that are missing need an approval of their own.
    /// `None` if there is no such safety hold with this digest. The inner error: the approval is lost at a restart.
    pub async fn approve_node_uid(&self, digest: &str) -> Option<Result<(), JournalError>> {
        let uid = {
            let mut state = self.lock();
            state.node_uid_hold().filter(|hold| hold.digest == digest)?;
            let uid = state.identity.as_ref().err()?.other_uid.clone()?;
            // The Node may belong to another cluster, which never had these pods.
            let before = self
                .journal
                .all_seen()
                .iter()
                .filter(|(_, seen)| !seen.terminates)
                .count() as u64;
            let reason = (before > 0).then(|| {
                let why = format!(
                    "the Node is another one than before, under which this node had {} when last seen: does this cluster \
                     know of them?",
                    format_count(before, "pod")
                );
                (AbsenceHoldKind::OtherNode, why)
            });
            let watch_state = state.watch_state.clone().with_absence_hold(reason);
            // Recorded with the Node's UID, or before it.
            self.update_watch_state(&mut state, watch_state);
            (state.listed, state.missing, state.unlisted) = Default::default();
            uid
        };
        let recorded = self.journal.set_node_uid(&uid).await;
        // A third Node may have been read in between; it is not approved.
        {
            let mut state = self.lock();
            let mismatch = state.identity.as_ref().err();
            if mismatch.and_then(|mismatch| mismatch.other_uid.as_ref()) == Some(&uid) {
                state.set_identity(Ok(()));
            }
        }
        self.approved.notify_one();
        Some(recorded)
    }

    /// Approves the last list: its age, and the pods that it lacks. `None` if there is no such safety hold with this digest. The
    /// inner error: the approval is lost at a restart.
    pub async fn approve_absence(&self, digest: &str) -> Option<Result<(), JournalError>> {
        {
            let mut state = self.lock();
            state.absence_hold().filter(|hold| hold.digest == digest)?;
            state.approved_before_list = state.listed.is_none();
            state.missing.approve();
            state.unlisted.approve();
            state.watch_state = WatchState {
                // 0 before the first list of this run: any version of the next one is accepted.
                highest: state.listed.unwrap_or_default(),
                ..WatchState::default()
            };
            self.journal.set_watch_state(state.watch_state.clone());
        }
        self.approved.notify_one();
        Some(self.journal.durable().await)
    }

    /// Waits for an approval after which the pods have to be listed again.
    pub async fn wait_for_absence_approval(&self) {
        self.approved.notified().await;
    }
}

// === impl GuardState ===

impl GuardState {
    fn node_uid_hold(&self) -> Option<SafetyHold> {
        self.identity.as_ref().err().and_then(|mismatch| {
            let uid = mismatch.other_uid.as_ref()?;
            let hold = SafetyHold {
                item: NODE_UID.to_owned(),
                uid: None,
                since: Some(self.since),
                why: mismatch.why.clone(),
                approval_effect: format!(
                    "the UID {uid} of this Node is recorded; pods of this node that its lists lack get the safety hold {ABSENCE}"
                ),
                facts: Vec::new(),
                digest: String::new(),
            };
            Some(hold.sealed_with_why())
        })
    }

    fn absence_hold(&self) -> Option<SafetyHold> {
        self.watch_state.absence_hold_reason.as_ref().map(|why| {
            let hold = SafetyHold {
            item: ABSENCE.to_owned(),
            uid: None,
            since: self.watch_state.since,
            why: why.clone(),
            approval_effect: match self.missing().count() {
                0 => "the pods are listed again; each pod that the list lacks is requested by name, and terminated if it is \
                      deleted"
                    .to_owned(),
                many => format!(
                    "the pods are listed again; each missing pod ({many}) is requested by name, and terminated if it is deleted"
                ),
            },
            facts: self.missing().map(ToString::to_string).collect(),
            digest: String::new(),
        };
            hold.sealed_with_why()
        })
    }

    /// Missing pods: of the list, and in the runtime only.
    fn missing(&self) -> impl Iterator<Item = &PodUid> {
        self.missing.now.union(&self.unlisted.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        handover::guard::{IdentityMismatch, ListComparison},
        journal::Journal,
        node::identity::Identity,
    };

    fn guard() -> Guard {
        Guard::new(Identity::default(), Journal::in_memory(), "/proc".into())
    }

    /// Records a list that lacks all pods.
    fn list_without(guard: &Guard, version: u64, missing: &[&str]) {
        let comparison = ListComparison {
            listed: 0,
            alive: missing.len(),
            missing: missing.iter().map(|&uid| uid.into()).collect(),
            needs_no_approval: false,
        };
        guard.record_list(Some(version), guard.highest(), Some(comparison));
    }

    fn digest(guard: &Guard) -> String {
        let holds = guard.safety_holds();
        assert_eq!(holds.len(), 1, "{holds:?}");
        holds[0].digest.clone()
    }

    #[tokio::test]
    async fn approval_does_not_cover_pods_that_a_later_list_lacks() {
        let guard = guard();
        guard.lock().set_identity(Ok(()));
        list_without(&guard, 5, &["1"]);
        let shown = digest(&guard);
        list_without(&guard, 6, &["1", "2"]);
        assert!(guard.approve_absence(&shown).await.is_none());
        assert!(guard.absence_hold().is_some());
        assert!(guard.approve_absence(&digest(&guard)).await.is_some());
        assert_eq!(guard.absence_hold(), None);
    }

    #[tokio::test]
    async fn approval_does_not_cover_a_reason_of_another_kind() {
        let guard = guard();
        guard.lock().set_identity(Ok(()));
        list_without(&guard, 200, &["1"]);
        let shown = digest(&guard);
        list_without(&guard, 7, &["1"]);
        assert!(guard.safety_holds()[0].why.contains("was etcd restored?"));
        assert!(guard.approve_absence(&shown).await.is_none());
        assert_eq!(guard.highest(), 200);
    }

    #[tokio::test]
    async fn approval_does_not_cover_a_node_that_was_read_later() {
        let guard = guard();
        let read = |uid: &str| {
            guard.lock().set_identity(Err(IdentityMismatch {
                why: format!("the Node has UID {uid}"),
                other_uid: Some(uid.to_owned()),
            }));
        };
        read("a");
        let shown = digest(&guard);
        read("b");
        assert!(guard.approve_node_uid(&shown).await.is_none());
        assert!(guard.has_node_uid_mismatch());
        assert!(guard.approve_node_uid(&digest(&guard)).await.is_some());
        assert!(!guard.has_node_uid_mismatch());
    }
}
