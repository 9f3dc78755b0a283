//! What the guard holds back for all pods, and how the operator releases it.

use super::{
    Guard, State,
    held::{ABSENCE, HeldItem, NODE_UID},
};
use crate::{
    journal::{JournalError, WatchMemory},
    model::pod::PodUid,
    words::counted,
};

impl Guard {
    /// What is held back and may be released.
    pub fn holds(&self) -> Vec<HeldItem> {
        let state = self.lock();
        let node = state.world.as_ref().err().and_then(|wrong| {
            let uid = wrong.other_uid.as_ref()?;
            Some(HeldItem {
                item: NODE_UID.to_owned(),
                uid: None,
                since: Some(state.since),
                why: wrong.why.clone(),
                release: format!(
                    "this is the right Node from then on: its UID {uid} is recorded, and what it shows is believed; what it \
                     lacks of the pods that lived here is held as {ABSENCE}"
                ),
                facts: Vec::new(),
                digest: String::new(),
            })
        });
        let absence = state.store.held.as_ref().map(|why| HeldItem {
            item: ABSENCE.to_owned(),
            uid: None,
            since: state.store.since,
            why: why.clone(),
            release: match state.missing().count() {
                0 => "the pods are listed once more, and what that list lacks is asked for by name and taken down where it \
                      is gone"
                    .to_owned(),
                many => format!(
                    "the pods are listed once more; of those that are missing ({many}) each is asked for by name and taken \
                     down if it is gone"
                ),
            },
            facts: state.missing().map(ToString::to_string).collect(),
            digest: String::new(),
        });
        node.into_iter().chain(absence).map(HeldItem::sealed).collect()
    }

    /// Whether nothing may be touched because the Node has another UID, which can be released.
    pub fn is_another_node(&self) -> bool {
        let state = self.lock();
        state.world.as_ref().is_err_and(|wrong| wrong.other_uid.is_some())
    }

    /// Why nothing may be touched, but for what can be released.
    pub fn why_held_for_good(&self) -> Option<String> {
        let state = self.lock();
        let wrong = state.world.as_ref().err().filter(|wrong| wrong.other_uid.is_none());
        wrong.map(|wrong| wrong.why.clone()).or_else(|| state.why_a_kubelet())
    }

    /// The Node that was last seen is the right one; that pods from before are gone takes another word. `None` if that
    /// is not what holds everything; an error says that a restart would not know it.
    pub async fn release_node_uid(&self) -> Option<Result<(), JournalError>> {
        let uid = {
            let mut state = self.lock();
            let uid = state.world.as_ref().err()?.other_uid.clone()?;
            // The right Node may still be one of another cluster, which never had these pods.
            let before = self.journal.all_seen().iter().filter(|(_, seen)| !seen.ends).count() as u64;
            let held = (before > 0).then(|| {
                format!(
                    "the Node is another one than before, under which {} lived here when last seen: does this cluster know \
                     of them?",
                    counted(before, "pod")
                )
            });
            let store = WatchMemory {
                held: state.store.held.clone().or(held),
                ..state.store.clone()
            };
            // On the disk together with the Node, or before it.
            self.remember(&mut state, store);
            (state.listed, state.vanished, state.unshown) = Default::default();
            uid
        };
        let recorded = self.journal.set_node_uid(&uid).await;
        // Another look may have shown yet another Node meanwhile, of which nobody has said anything.
        let is_still_that = self
            .lock()
            .world
            .as_ref()
            .is_err_and(|wrong| wrong.other_uid.as_ref() == Some(&uid));
        if is_still_that {
            self.set_world(Ok(()));
        }
        self.released.notify_one();
        Some(recorded)
    }

    /// What the last list shows is right, however old it is and whatever it lacks. `None` if nothing was held.
    pub async fn release_absence(&self) -> Option<Result<(), JournalError>> {
        {
            let mut state = self.lock();
            state.store.held.as_ref()?;
            state.unnumbered = state.listed.is_none();
            state.vanished.accept();
            state.unshown.accept();
            state.store = WatchMemory {
                // Before the first list of this run nothing is known of the store: the next one is taken as it is.
                highest: state.listed.unwrap_or_default(),
                ..WatchMemory::default()
            };
            self.journal.remember_watch(state.store.clone());
        }
        self.released.notify_one();
        Some(self.journal.durable().await)
    }

    /// Returns when somebody has released what another list may settle.
    pub async fn absence_is_released(&self) {
        self.released.notified().await;
    }
}

// === impl State ===

impl State {
    /// Pods that are missing, in whatever way.
    fn missing(&self) -> impl Iterator<Item = &PodUid> {
        self.vanished.now.union(&self.unshown.now)
    }
}
