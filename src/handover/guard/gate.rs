//! The guard as the gate of teardown.

use futures::future::{BoxFuture, FutureExt as _};

use super::{Guard, work::WorkInProgress};
use crate::{
    model::{pod::PodRef, trace::BlockedReason},
    teardown::boundary::{Attempt, Gate},
};

impl Gate for Guard {
    fn why_blocked(&self) -> Option<String> {
        Self::why_blocked(self)
    }

    fn why_no_new_work(&self) -> Option<(BlockedReason, String)> {
        let why = Self::why_no_new_work(self)?;
        // A kubelet or a handover is reported before a pause.
        let is_paused = self.paused().is_some_and(|paused| paused.why() == why);
        let reason = if is_paused {
            BlockedReason::Paused
        } else {
            BlockedReason::Guard
        };
        Some((reason, why))
    }

    fn may_repeat(&self) -> bool {
        Self::why_blocked(self).is_none() && self.paused().is_none()
    }

    fn has_kubelet(&self) -> bool {
        self.is_blocked_by_kubelet()
    }

    fn begin(&self, pod: &PodRef) -> Option<Box<dyn Attempt>> {
        Some(Box::new(Self::begin(self, pod.to_string()).ok()?))
    }

    fn wait_until_unblocked(&self) -> BoxFuture<'_, ()> {
        Self::wait_until_unblocked(self).boxed()
    }
}

impl Attempt for WorkInProgress {
    fn set_failed(&self) {
        Self::set_failed(self);
    }

    fn begin_retry(&self) -> bool {
        Self::begin_retry(self)
    }

    fn wait_for_retry_request(&self) -> BoxFuture<'_, ()> {
        Self::wait_for_retry_request(self).boxed()
    }
}
