//! What teardown needs from whoever embeds it, beside [`PodJournal`](super::journal::PodJournal) and the container runtime.

use std::{borrow::Cow, collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt as _};
use serde_json::Value;

use crate::{
    model::{
        event::Reason,
        failure::{Failure, Reasoned},
        pod::{PodObject, PodRef, PodUid, PodView, Role},
        trace::{BlockedReason, Step},
    },
    node::plugins::ClaimRef,
};

/// The API server, as far as the termination of pods needs it. Each write must have the pod's UID as its precondition.
///
/// The defaults are for a node without one: it takes everything, and shows nothing.
pub trait PodApi: Send + Sync {
    /// The pod's object as it is now; `None` if a list by its name lacks this UID, which proves nothing.
    ///
    /// # Errors
    /// When there is no answer.
    fn pod<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodObject>, ApiFailure>> {
        async { Ok(None) }.boxed()
    }

    /// Calls `each` with every pod of this node.
    ///
    /// # Errors
    /// When the list is not complete.
    fn each_pod<'a>(&'a self, _each: &'a mut (dyn FnMut(PodView) + Send)) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(()) }.boxed()
    }

    /// UIDs of the pods for which this very claim is reserved.
    ///
    /// # Errors
    /// When that cannot be known.
    fn reserved_for<'a>(&'a self, _claim: &'a ClaimRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Sends a strategic merge patch of the pod's status.
    ///
    /// # Errors
    /// When the API server does not show this status now.
    fn patch_status<'a>(&'a self, _pod: &'a PodRef, _patch: &'a Value) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(()) }.boxed()
    }

    /// The final delete, with grace period 0. Returns the finalizers that still hold the object.
    ///
    /// # Errors
    /// When it was not accepted.
    fn delete<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Whether the object of this UID is proven to be gone. A 404 alone is no proof: it may come from another cluster.
    ///
    /// # Errors
    /// When that cannot be known.
    fn is_gone<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<bool, ApiFailure>> {
        async { Ok(false) }.boxed()
    }
}

/// No API server.
pub struct NoApi;

/// A request that was refused, or that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct ApiFailure {
    /// HTTP status, if there was an answer.
    pub code: Option<u16>,
    /// Verb, path and cause, for people.
    pub cause: String,
    /// The cause in one word, for counting.
    pub reason: Cow<'static, str>,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
}

/// Takes what is reported of pods. Nothing waits for it, and nothing depends on it.
pub trait EventSink: Send + Sync {
    /// An event for people, about the pod or one of its containers.
    fn event(&self, _view: &PodView, _container: Option<(Role, &str)>, _reason: Reason, _message: &str) {}

    /// Something that is counted.
    fn count(&self, _what: Counted<'_>) {}
}

/// Nobody takes them.
pub struct NoEvents;

/// What is counted.
#[derive(Debug, Clone, Copy)]
pub enum Counted<'a> {
    /// A step failed while its attempt goes on.
    Failed(&'a Failure),
    /// An attempt ended with these failures, which are at least one; it will be repeated.
    AttemptFailed(&'a [Failure]),
    /// A preStop hook failed.
    HookFailed,
    /// The final delete of a pod was accepted.
    PodDeleted,
}

/// Whether pods may be touched. The default is that they may.
pub trait Gate: Send + Sync {
    /// Why no effect may happen now. Asked before each effect.
    fn why_blocked(&self) -> Option<String> {
        None
    }

    /// Why no termination may begin, or go on after a safe point.
    fn why_no_new_work(&self) -> Option<(BlockedReason, String)> {
        self.why_blocked().map(|why| (BlockedReason::Guard, why))
    }

    /// Whether an attempt that has failed may be repeated although nothing new begins.
    fn may_repeat(&self) -> bool {
        self.why_blocked().is_none()
    }

    /// Whether a kubelet is here that takes down all pods itself.
    fn has_kubelet(&self) -> bool {
        false
    }

    /// Begins an attempt for the pod; `None` if nothing may begin.
    fn begin(&self, _pod: &PodRef) -> Option<Box<dyn Attempt>> {
        self.why_no_new_work()
            .is_none()
            .then(|| Box::new(Free) as Box<dyn Attempt>)
    }

    /// Returns when something may begin that could not before. It may miss that: callers also ask every second.
    fn unblocked(&self) -> BoxFuture<'_, ()> {
        pending().boxed()
    }
}

/// The attempts for one pod. It is dropped when the pod is at a safe point.
pub trait Attempt: Send + Sync {
    /// The attempt has failed, and the next one comes later.
    fn set_failed(&self) {}

    /// The next attempt begins; `false` if it may not.
    fn begin_retry(&self) -> bool {
        true
    }

    /// Returns when the next attempt is to begin at once.
    fn retry_requested(&self) -> BoxFuture<'_, ()> {
        pending().boxed()
    }
}

/// Everything may always be touched.
pub struct OpenGate;

struct Free;

/// Which pods are terminating and still have something on the node.
pub type Terminating = Arc<dyn Fn() -> BoxFuture<'static, BTreeMap<PodUid, Arc<PodView>>> + Send + Sync>;

impl PodApi for NoApi {}

impl EventSink for NoEvents {}

impl Gate for OpenGate {}

impl Attempt for Free {}

// === impl ApiFailure ===

impl ApiFailure {
    /// The same as a failure of this step.
    pub fn failure(&self, step: Step) -> Failure {
        Failure {
            retry_after: self.retry_after,
            ..Failure::new(step, "", self)
        }
    }
}

impl Reasoned for ApiFailure {
    fn reason(&self) -> Cow<'static, str> {
        self.reason.clone()
    }
}
