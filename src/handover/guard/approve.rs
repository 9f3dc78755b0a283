//! Safety holds for all pods of the node, and their approval.

use super::{
    Guard, State,
    holds::{ABSENCE, NODE_UID, SafetyHold},
};
use crate::{
    journal::{JournalError, WatchState},
    model::pod::PodUid,
    words::format_count,
};

impl Guard {
    /// Safety holds of the whole node that a user can approve.
    pub fn safety_holds(&self) -> Vec<SafetyHold> {
        let state = self.lock();
        let node = state.identity.as_ref().err().and_then(|mismatch| {
            let uid = mismatch.other_uid.as_ref()?;
            Some(SafetyHold {
                item: NODE_UID.to_owned(),
                uid: None,
                since: Some(state.since),
                why: mismatch.why.clone(),
                approval_effect: format!(
                    "the UID {uid} of this Node is recorded; pods of this node that its lists lack get the safety hold {ABSENCE}"
                ),
                facts: Vec::new(),
                digest: String::new(),
            })
        });
        let absence = state.watch_state.absence_hold_reason.as_ref().map(|why| SafetyHold {
            item: ABSENCE.to_owned(),
            uid: None,
            since: state.watch_state.since,
            why: why.clone(),
            approval_effect: match state.missing().count() {
                0 => "the pods are listed again; each pod that the list lacks is requested by name, and terminated if it is \
                      deleted"
                    .to_owned(),
                many => format!(
                    "the pods are listed again; each missing pod ({many}) is requested by name, and terminated if it is deleted"
                ),
            },
            facts: state.missing().map(ToString::to_string).collect(),
            digest: String::new(),
        });
        node.into_iter().chain(absence).map(SafetyHold::sealed).collect()
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
            .or_else(|| state.why_kubelet_blocks())
    }

    /// Approves the UID of the Node that was read last. Pods of the former Node that are missing need an approval of their own.
    /// `None` if there is no such safety hold. The inner error: the approval is lost at a restart.
    pub async fn approve_node_uid(&self) -> Option<Result<(), JournalError>> {
        let uid = {
            let mut state = self.lock();
            let uid = state.identity.as_ref().err()?.other_uid.clone()?;
            // The Node may belong to another cluster, which never had these pods.
            let before = self
                .journal
                .all_seen()
                .iter()
                .filter(|(_, seen)| !seen.terminates)
                .count() as u64;
            let reason = (before > 0).then(|| {
                format!(
                    "the Node is another one than before, under which this node had {} when last seen: does this cluster \
                     know of them?",
                    format_count(before, "pod")
                )
            });
            let watch_state = WatchState {
                absence_hold_reason: state.watch_state.absence_hold_reason.clone().or(reason),
                ..state.watch_state.clone()
            };
            // Recorded with the Node's UID, or before it.
            self.update_watch_state(&mut state, watch_state);
            (state.listed, state.missing, state.unlisted) = Default::default();
            uid
        };
        let recorded = self.journal.set_node_uid(&uid).await;
        // A third Node may have been read in between; it is not approved.
        let is_still_that = self
            .lock()
            .identity
            .as_ref()
            .is_err_and(|mismatch| mismatch.other_uid.as_ref() == Some(&uid));
        if is_still_that {
            self.set_identity(Ok(()));
        }
        self.approved.notify_one();
        Some(recorded)
    }

    /// Approves the last list: its age, and the pods that it lacks. `None` if there is no such safety hold. The inner error: the
    /// approval is lost at a restart.
    pub async fn approve_absence(&self) -> Option<Result<(), JournalError>> {
        {
            let mut state = self.lock();
            state.watch_state.absence_hold_reason.as_ref()?;
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

// === impl State ===

impl State {
    /// Missing pods: of the list, and in the runtime only.
    fn missing(&self) -> impl Iterator<Item = &PodUid> {
        self.missing.now.union(&self.unlisted.now)
    }
}
