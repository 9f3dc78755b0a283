//! What the guard tells teardown.

use futures::future::{BoxFuture, FutureExt as _};

use super::{Guard, turn::UnderWay};
use crate::{
    model::{pod::PodRef, trace::BlockedReason},
    teardown::boundary::{Attempt, Gate},
};

impl Gate for Guard {
    fn why_held(&self) -> Option<String> {
        Self::why_held(self)
    }

    fn why_nothing_begins(&self) -> Option<(BlockedReason, String)> {
        let why = Self::why_nothing_begins(self)?;
        // A kubelet or a handover comes first: then the pause is not what blocks.
        let is_paused = self.paused().is_some_and(|paused| paused.why() == why);
        let reason = if is_paused {
            BlockedReason::Paused
        } else {
            BlockedReason::Guard
        };
        Some((reason, why))
    }

    fn may_repeat(&self) -> bool {
        Self::why_held(self).is_none() && self.paused().is_none()
    }

    fn has_kubelet(&self) -> bool {
        self.leaves_all_to_a_kubelet()
    }

    fn begin(&self, pod: &PodRef) -> Option<Box<dyn Attempt>> {
        Some(Box::new(Self::begin(self, pod.to_string()).ok()?))
    }

    fn may_begin(&self) -> BoxFuture<'_, ()> {
        Self::may_begin(self).boxed()
    }
}

impl Attempt for UnderWay {
    fn rests(&self) {
        Self::rests(self);
    }

    fn goes_on(&self) -> bool {
        Self::goes_on(self)
    }

    fn once_more(&self) -> BoxFuture<'_, ()> {
        Self::once_more(self).boxed()
    }
}
