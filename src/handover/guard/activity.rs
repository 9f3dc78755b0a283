//! The role, a handover to a kubelet, and the work in progress.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// After each handover the agent stays away at least this long: the caller is about to start a kubelet.
const MIN_RESERVATION: Duration = Duration::from_secs(5);

/// The role, the handover, and the work in progress.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Why this agent is on standby.
    pub standby_reason: Option<String>,
    /// The probes of the kubelet decide the role of this agent.
    pub has_role: bool,
    /// How the kubelet fails, if it does not work.
    pub kubelet_fault: Option<KubeletFault>,
    /// Number of handover calls in progress.
    pub handovers: usize,
    /// Until when the node is reserved for a kubelet that has not been seen yet.
    reserved_until: Option<Instant>,
    /// The first and the last handover since a kubelet was seen.
    unseen_since: Option<(Instant, Instant)>,
    pub work_in_progress: BTreeMap<u64, Work>,
    pub last: u64,
}

/// How a kubelet fails whose process exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubeletFault {
    /// The same process does nothing.
    Unresponsive,
    /// It starts again and again and never works: how often.
    Failing(String),
}

/// Work that has not reached a safe point.
#[derive(Debug)]
pub(super) struct Work {
    /// Its name for people, such as `default/web-0`.
    pub what: String,
    /// The last attempt has failed, and the next one has not begun.
    pub waits_to_retry: bool,
    /// An attempt has failed since the handover began: the handover does not wait for the next one to begin.
    pub has_failed: bool,
}

// === impl Activity ===

impl Activity {
    /// Why all effects are blocked: the node is reserved for a kubelet.
    pub fn why_blocked(&self) -> Option<String> {
        let left = self.reserved_until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| {
            format!(
                "the node was handed over to its kubelet, which has {} s to start",
                left.as_secs() + 1
            )
        })
    }

    /// Whether an attempt is in progress.
    pub fn is_busy(&self) -> bool {
        self.work_in_progress.values().any(|work| !work.waits_to_retry)
    }

    /// Whether a handover waits only for attempts that are in progress.
    pub fn is_nearly_idle(&self) -> bool {
        self.handovers > 0 && self.work_in_progress.values().all(|work| work.has_failed)
    }

    /// Names of all work that has not reached a safe point.
    pub fn work_names(&self) -> Vec<String> {
        self.work_in_progress.values().map(|work| work.what.clone()).collect()
    }

    /// A kubelet was seen: its process blocks all effects from now on, and after its exit the probes decide the role again.
    pub fn kubelet_seen(&mut self) {
        self.reserved_until = None;
        self.unseen_since = None;
        if self.has_role && self.standby_reason.is_none() {
            self.standby_reason = Some("a kubelet process has just been seen".to_owned());
        }
    }

    /// Reserves the node for `reserve_for` from now on. The handover was requested at `asked`. A kubelet whose starts fail again and again,
    /// each with a handover, gets this time only once.
    pub fn hand_over(&mut self, asked: Instant, reserve_for: Duration) {
        let now = Instant::now();
        let repeated = self
            .unseen_since
            .filter(|(_, last)| asked.saturating_duration_since(*last) < reserve_for);
        let first = repeated.map_or(now, |(first, _)| first);
        self.unseen_since = Some((first, now));
        self.reserved_until = Some((first + reserve_for).max(now + MIN_RESERVATION.min(reserve_for)));
    }
}
