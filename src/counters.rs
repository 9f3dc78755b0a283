//! What happened how often.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};

use crate::model::{failure::Failure, trace::Step};

/// How often each step failed, by reason.
pub type Failures<S = Step> = BTreeMap<S, BTreeMap<Cow<'static, str>, u64>>;

/// Counters since the start of the agent.
#[derive(Debug, Default)]
pub struct Counters {
    begun: AtomicU64,
    deleted: AtomicU64,
    finished: AtomicU64,
    attempts_failed: AtomicU64,
    failures: Mutex<Failures>,
    hooks_failed: AtomicU64,
    events_dropped: AtomicU64,
    pods_unreadable: AtomicU64,
    workers_panicked: AtomicU64,
    leftovers_found: AtomicU64,
    unused_volumes_failed: AtomicU64,
    requests_given_up: AtomicU64,
}

/// Their values at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Teardowns begun.
    pub begun: u64,
    /// Final deletes that the API server has accepted.
    pub deleted: u64,
    /// Teardowns of which nothing is left to do.
    pub finished: u64,
    /// Attempts that failed and are repeated.
    pub attempts_failed: u64,
    /// Failures of steps.
    #[serde(default)]
    pub failures: Failures,
    /// preStop hooks that failed.
    pub hooks_failed: u64,
    /// Events that nobody will read.
    pub events_dropped: u64,
    /// Pod objects that could not be understood.
    pub pods_unreadable: u64,
    /// Workers that panicked and were started again.
    pub workers_panicked: u64,
    /// Pods that were gone and of which something was found that was left.
    #[serde(default)]
    pub leftovers_found: u64,
    /// Attempts to take a volume that no pod uses off the node that failed and are repeated.
    #[serde(default)]
    pub unused_volumes_failed: u64,
    /// Requests for a pod's end that were given up, since a kubelet has come, or may have.
    #[serde(default)]
    pub requests_given_up: u64,
    /// Writes of the journal that failed; it counts this and what follows itself.
    #[serde(default)]
    pub journal_writes_failed: u64,
    /// Durable writes of the journal.
    #[serde(default)]
    pub journal_commits: u64,
    /// Microseconds that they took together.
    #[serde(default)]
    pub journal_commits_us: u64,
}

macro_rules! count {
    ($($(#[$doc:meta])* $method:ident => $field:ident;)*) => {
        $($(#[$doc])* pub fn $method(&self) { self.$field.fetch_add(1, Ordering::Relaxed); })*
    };
}

// === impl Counters ===

impl Counters {
    count! {
        /// A teardown begins.
        teardown_begun => begun;
        /// A pod's object is deleted, as far as this node is concerned.
        pod_deleted => deleted;
        /// Nothing is left to do for a pod.
        teardown_finished => finished;
        /// A hook failed.
        hook_failed => hooks_failed;
        /// An event was dropped.
        event_dropped => events_dropped;
        /// A pod's object, or fields of it, cannot be read.
        pod_unreadable => pods_unreadable;
        /// A worker panicked.
        worker_panicked => workers_panicked;
        /// Something was left of a pod that is gone.
        leftover_found => leftovers_found;
        /// A volume that no pod uses could not be taken off the node.
        unused_volume_failed => unused_volumes_failed;
        /// A request for a pod's end is given up.
        stop_request_cancelled => requests_given_up;
    }

    /// An attempt failed, because of these; one that was let go on the way has none.
    pub fn attempt_failed(&self, failures: &[Failure]) {
        if failures.is_empty() {
            return;
        }
        self.attempts_failed.fetch_add(1, Ordering::Relaxed);
        for failure in failures {
            self.failed(failure);
        }
    }

    /// Something failed, in an attempt that goes on or that ends with it.
    pub fn failed(&self, Failure { step, reason, .. }: &Failure) {
        let mut counted = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *counted.entry(*step).or_default().entry(reason.clone()).or_default() += 1;
    }

    /// All values.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            begun: read(&self.begun),
            deleted: read(&self.deleted),
            finished: read(&self.finished),
            attempts_failed: read(&self.attempts_failed),
            failures: self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            hooks_failed: read(&self.hooks_failed),
            events_dropped: read(&self.events_dropped),
            pods_unreadable: read(&self.pods_unreadable),
            workers_panicked: read(&self.workers_panicked),
            leftovers_found: read(&self.leftovers_found),
            unused_volumes_failed: read(&self.unused_volumes_failed),
            requests_given_up: read(&self.requests_given_up),
            journal_writes_failed: 0,
            journal_commits: 0,
            journal_commits_us: 0,
        }
    }
}
