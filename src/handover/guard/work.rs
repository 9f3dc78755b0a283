//! Whether new work may begin, the work in progress, and the handover of the node to a kubelet. No work begins on standby or during
//! a handover.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::{
    Guard,
    activity::{KubeletFault, Work},
};

/// Work in progress. It ends when this is dropped.
pub struct WorkInProgress {
    guard: Guard,
    id: u64,
}

/// The result of a handover.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HandoverResult {
    /// Work that had not reached a safe point at the timeout. The kubelet may repeat hooks and grace period of these pods.
    pub in_progress: Vec<String>,
}

// === impl Guard ===

impl Guard {
    /// Sets the role: why this agent is on standby, `None` if it is active; and how the kubelet fails, if it does not work.
    pub fn set_role(&self, standby_reason: Option<String>, kubelet_fault: Option<KubeletFault>) {
        let mut state = self.lock();
        state.activity.has_role = true;
        state.activity.kubelet_fault = kubelet_fault;
        // A kubelet that was seen since then is not in this decision.
        if standby_reason.is_none() && state.seen.is_some() {
            return;
        }
        if state.activity.standby_reason.is_some() && standby_reason.is_none() {
            self.unblocked.notify_waiters();
        }
        if standby_reason.is_some() {
            self.cancel.notify_waiters();
        }
        state.activity.standby_reason = standby_reason;
    }

    /// Whether a handover is in progress, or has ended and its kubelet has not been seen yet.
    pub fn is_handing_over(&self) -> bool {
        let state = self.lock();
        state.activity.handovers > 0 || state.activity.why_blocked().is_some()
    }

    /// Waits until this agent becomes active or is resumed.
    pub async fn wait_until_unblocked(&self) {
        self.unblocked.notified().await;
    }

    /// Why no new work may begin now. Work in progress may continue.
    pub fn why_no_new_work(&self) -> Option<String> {
        let handovers = || {
            let is_handing_over = self.lock().activity.handovers > 0;
            is_handing_over.then(|| "the node is being handed over to its kubelet".to_owned())
        };
        let paused = || self.paused().map(|paused| paused.why());
        self.why_blocked().or_else(handovers).or_else(paused)
    }

    /// Begins work with this name for people. A handover waits until it ends.
    ///
    /// # Errors
    /// Why no work may begin.
    pub fn begin(&self, what: String) -> Result<WorkInProgress, String> {
        if let Some(why) = self.why_no_new_work() {
            return Err(why);
        }
        let mut state = self.lock();
        if !state.activity.is_busy() {
            self.probe_requested.notify_one();
        }
        state.activity.last += 1;
        let id = state.activity.last;
        let work = Work {
            what,
            waits_to_retry: false,
            has_failed: false,
        };
        state.activity.work_in_progress.insert(id, work);
        Ok(WorkInProgress {
            guard: self.clone(),
            id,
        })
    }

    /// Hands the node over to a kubelet that is about to start. No work begins from now on, and work in progress has `max_wait` to
    /// reach a safe point. Work that waits to retry makes one more attempt at once. Then all effects are blocked for `reserve_for`, or
    /// until a kubelet is seen.
    pub async fn hand_over(&self, max_wait: Duration, reserve_for: Duration) -> HandoverResult {
        let _handing_back = OngoingHandover::begin(self);
        let asked = Instant::now();
        let idle = async {
            loop {
                let ends = self.idle.notified();
                if !self.lock().activity.is_busy() {
                    return;
                }
                ends.await;
            }
        };
        // After the timeout, too: the caller starts a kubelet now.
        timeout(max_wait, idle).await.ok();
        // Also pods that an earlier run has not brought to a safe point, and those that a kubelet process interrupted.
        let in_progress = self.journal.in_progress();
        // A restarted agent must not become active again.
        self.journal.set_last_active(None);
        let mut state = self.lock();
        state.activity.hand_over(asked, reserve_for);
        self.cancel.notify_waiters();
        let in_progress: BTreeSet<_> = state.activity.work_names().into_iter().chain(in_progress).collect();
        HandoverResult {
            in_progress: in_progress.into_iter().collect(),
        }
    }

    fn notify_if_idle(&self) {
        if !self.lock().activity.is_busy() {
            self.idle.notify_waiters();
        }
    }
}

/// One handover in progress.
struct OngoingHandover<'a>(&'a Guard);

// === impl OngoingHandover ===

impl<'a> OngoingHandover<'a> {
    fn begin(guard: &'a Guard) -> Self {
        let mut state = guard.lock();
        state.activity.handovers += 1;
        for work in state.activity.work_in_progress.values_mut() {
            (work.waits_to_retry, work.has_failed) = (false, false);
        }
        guard.retry_requested.notify_waiters();
        drop(state);
        Self(guard)
    }
}

impl Drop for OngoingHandover<'_> {
    fn drop(&mut self) {
        self.0.lock().activity.handovers -= 1;
    }
}

// === impl WorkInProgress ===

impl WorkInProgress {
    /// Whether it may begin a further part.
    pub fn may_begin_part(&self) -> bool {
        self.guard.why_no_new_work().is_none()
    }

    /// The attempt has failed, and the next one begins later.
    pub fn set_failed(&self) {
        if let Some(work) = self.guard.lock().activity.work_in_progress.get_mut(&self.id) {
            (work.waits_to_retry, work.has_failed) = (true, true);
        }
        self.guard.notify_if_idle();
    }

    /// Begins the next attempt. `false`: a handover does not wait for it any more.
    pub fn begin_retry(&self) -> bool {
        let mut state = self.guard.lock();
        if state.activity.is_nearly_idle() {
            return false;
        }
        if let Some(work) = state.activity.work_in_progress.get_mut(&self.id) {
            work.waits_to_retry = false;
        }
        self.guard.probe_requested.notify_one();
        true
    }

    /// Waits until the next attempt has to begin at once, because a handover has begun.
    pub async fn wait_for_retry_request(&self) {
        loop {
            let notified = self.guard.retry_requested.notified();
            if !self
                .guard
                .lock()
                .activity
                .work_in_progress
                .get(&self.id)
                .is_some_and(|work| work.waits_to_retry)
            {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for WorkInProgress {
    fn drop(&mut self) {
        self.guard.lock().activity.work_in_progress.remove(&self.id);
        self.guard.notify_if_idle();
    }
}
