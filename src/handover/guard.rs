//! Whether this agent may act at all: the one gate of all effects.
//!
//! Four parts answer it: the identity of the Node, the watch for kubelets with the role that follows from it, the work in progress
//! with a handover, and the proof of absence. As long as a fact is unknown, the answer is no.

use std::{sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt as _};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::{
    journal::{Journal, JournalError},
    model::blocked::Blocked,
    node::{
        effects::{Effects, Gate},
        identity::Identity,
    },
    teardown::work::Work,
};

pub mod absence;
pub mod holds;
pub mod identity;
pub mod kubelet;
mod kubelet_watch;
mod pause;

use absence::Absence;
use holds::SafetyHold;
use identity::NodeIdentity;
use kubelet::{KubeletSearch, KubeletWatch};

/// Cheap to clone; all clones share their state.
#[derive(Clone)]
pub struct Guard {
    /// Whether the Node is the recorded one.
    pub identity: Arc<NodeIdentity>,
    /// The kubelet of this node, and the role of the agent.
    pub kubelet: Arc<KubeletWatch>,
    /// Work in progress.
    pub work: Work,
    /// Whether absence proves a deletion.
    pub absence: Arc<Absence>,
    /// The journal of this node.
    pub journal: Journal,
    /// The agent only observes: no effect is ever allowed.
    pub only_observes: bool,
    /// An answer of the gate may have changed.
    changed: Arc<Notify>,
}

/// The result of a handover.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HandoverResult {
    /// Work that had not reached a safe point at the timeout. The kubelet may repeat hooks and grace period of these pods.
    pub in_progress: Vec<String>,
}

impl Gate for Guard {
    fn check(&self) -> Result<(), Blocked> {
        self.identity.check()?;
        if self.only_observes {
            return Err(Blocked::OnlyObserves);
        }
        self.kubelet.check()
    }

    fn check_new(&self) -> Result<(), Blocked> {
        self.check()?;
        if self.work.is_handed_over() {
            return Err(Blocked::Handover);
        }
        self.check_not_paused()
    }

    fn check_retry(&self) -> Result<(), Blocked> {
        self.check()?;
        self.check_not_paused()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        self.changed.notified().boxed()
    }
}

// === impl Guard ===

impl Guard {
    /// A guard that blocks everything until the Node has been read and kubelets were searched for.
    pub fn new(machine: Identity, journal: Journal, search: KubeletSearch, only_observes: bool) -> Self {
        let (work, changed) = (Work::default(), Arc::<Notify>::default());
        Self {
            identity: Arc::new(NodeIdentity::new(machine, journal.clone())),
            kubelet: Arc::new(KubeletWatch::new(
                search,
                journal.clone(),
                work.clone(),
                Arc::clone(&changed),
            )),
            work,
            absence: Arc::new(Absence::new(journal.clone())),
            journal,
            only_observes,
            changed,
        }
    }

    /// The effects of reports about the Node, which touch no pod: they are also allowed beside a kubelet, once the Node's identity
    /// is proven.
    pub fn node_effects(&self) -> Effects {
        let identity = Arc::clone(&self.identity);
        Effects::new(Arc::new(move || identity.check()))
    }

    /// Safety holds of the whole node that a user can approve.
    pub fn safety_holds(&self) -> Vec<SafetyHold> {
        self.identity.hold().into_iter().chain(self.absence.hold()).collect()
    }

    /// Why all effects are blocked, if no approval can change that.
    pub fn why_blocked_for_good(&self) -> Option<Blocked> {
        let is_approvable = |blocked: &Blocked| matches!(blocked, Blocked::Identity(it) if it.other_uid.is_some());
        match self.check().err()? {
            // What blocks after an approval.
            blocked if is_approvable(&blocked) && self.only_observes => Some(Blocked::OnlyObserves),
            blocked if is_approvable(&blocked) => self.kubelet.check().err(),
            blocked => Some(blocked),
        }
    }

    /// Approves the UID of the Node that was read last. Pods of the former Node that are missing need an approval of their own.
    /// `None` if there is no such safety hold with this digest. The inner error: the approval is lost at a restart.
    pub async fn approve_node_uid(&self, digest: &str) -> Option<Result<(), JournalError>> {
        let uid = self.identity.uid_to_approve(digest)?;
        // Recorded with the Node's UID, or before it.
        self.absence.begin_with_other_node();
        let recorded = self.identity.approve(&uid).await;
        self.absence.request_list();
        Some(recorded)
    }

    /// Whether a handover is in progress, or has ended and its kubelet has not been seen yet.
    pub fn is_handing_over(&self) -> bool {
        self.work.is_handed_over() || self.kubelet.is_reserved()
    }

    /// Hands the node over to a kubelet that is about to start. No work begins from now on, and work in progress has `max_wait` to
    /// reach a safe point. Work that waits to retry makes one more attempt at once. Then all effects are blocked for `reserve_for`, or
    /// until a kubelet is seen.
    pub async fn hand_over(&self, max_wait: Duration, reserve_for: Duration) -> HandoverResult {
        let _ongoing = self.work.begin_handover();
        let asked = Instant::now();
        // After the timeout, too: the caller starts a kubelet now.
        timeout(max_wait, self.work.wait_until_idle()).await.ok();
        // Also pods that an earlier run has not brought to a safe point, and those that a kubelet process interrupted.
        let mut in_progress = self.journal.in_progress();
        // A restarted agent must not become active again.
        self.journal.change_node(|node| node.last_active = None);
        self.kubelet.reserve(asked, reserve_for);
        in_progress.extend(self.work.names());
        in_progress.sort_unstable();
        in_progress.dedup();
        HandoverResult { in_progress }
    }
}

#[cfg(test)]
mod tests;
