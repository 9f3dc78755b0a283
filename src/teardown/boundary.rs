//! Traits that the caller of teardown implements.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt as _};
use serde_json::Value;

use crate::{
    model::{
        event::Reason,
        failure::{Failure, Reasoned},
        pod::{PodObject, PodRef, PodUid, PodView, Role},
        trace::Step,
    },
    node::plugins::ClaimRef,
};

/// Requests to the API server. Each write of a pod must have its UID as its precondition.
///
/// The defaults are for a node without API server: writes succeed, and reads show nothing.
pub trait PodApi: Send + Sync {
    /// The pod's current object; `None` if a list by its name lacks this UID, which does not prove its deletion.
    ///
    /// # Errors
    /// If there is no response.
    fn pod<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodObject>, ApiFailure>> {
        async { Ok(None) }.boxed()
    }

    /// Calls `each` with every pod of this node.
    ///
    /// # Errors
    /// If the list is not complete.
    fn each_pod<'a>(&'a self, _each: &'a mut (dyn FnMut(PodView) + Send)) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(()) }.boxed()
    }

    /// UIDs of the pods for which the claim with this UID is reserved.
    ///
    /// # Errors
    /// If the claim cannot be read.
    fn reserved_for<'a>(&'a self, _claim: &'a ClaimRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Sends a strategic merge patch of the pod's status.
    ///
    /// # Errors
    /// If the API server has not accepted it.
    fn patch_status<'a>(&'a self, _pod: &'a PodRef, _patch: &'a Value) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(()) }.boxed()
    }

    /// Sends the final delete, with grace period 0. Returns the finalizers that still keep the object.
    ///
    /// # Errors
    /// If it was not accepted.
    fn delete<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Whether the object with this UID is proven to be deleted. A 404 alone is no proof: it may come from another cluster.
    ///
    /// # Errors
    /// If that cannot be proven or refuted.
    fn is_deleted<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<bool, ApiFailure>> {
        async { Ok(false) }.boxed()
    }

    /// CSI driver and volume handle of the PersistentVolume of this name; `None` if it does not exist, or the node may not read
    /// it: then only the node's files identify its volume.
    ///
    /// # Errors
    /// If it cannot be read.
    fn persistent_volume<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Result<Option<(String, String)>, ApiFailure>> {
        async { Ok(None) }.boxed()
    }

    /// The node's `volumesInUse`.
    ///
    /// # Errors
    /// If the Node cannot be read.
    fn volumes_in_use(&self) -> BoxFuture<'_, Result<Vec<String>, ApiFailure>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Removes a volume from the node's `volumesInUse`: after that a controller may detach it.
    ///
    /// # Errors
    /// If the API server has not accepted it.
    fn remove_volume_in_use<'a>(&'a self, _volume: &'a str) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(()) }.boxed()
    }
}

/// A node without API server.
pub struct NoApi;

/// A request that was rejected or has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct ApiFailure {
    /// HTTP status, if there was an answer.
    pub code: Option<u16>,
    /// Verb, path and cause, for people.
    pub cause: String,
    /// The cause in one word, for counters.
    pub reason: Cow<'static, str>,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// Takes reports about pods. Nothing waits for them or depends on them.
pub trait EventSink: Send + Sync {
    /// An event about the pod or one of its containers.
    fn event(&self, _view: &PodView, _container: Option<(Role, &str)>, _reason: Reason, _message: &str) {}

    /// Increases a counter.
    fn count(&self, _what: Counted<'_>) {}
}

/// Discards all reports.
pub struct NoEvents;

/// A counter to increase.
#[derive(Debug, Clone, Copy)]
pub enum Counted<'a> {
    /// A step failed, and its attempt continues.
    Failed(&'a Failure),
    /// An attempt failed with these failures, at least one. It will be retried.
    AttemptFailed(&'a [Failure]),
    /// A preStop hook failed.
    HookFailed,
    /// A worker panicked. It is restarted.
    WorkerPanicked,
    /// The final delete of a pod was accepted.
    PodDeleted,
}

/// The pods that are terminating and still have something on the node.
pub type Terminating = Arc<dyn Fn() -> BoxFuture<'static, BTreeMap<PodUid, Arc<PodView>>> + Send + Sync>;

impl PodApi for NoApi {}

impl EventSink for NoEvents {}

// === impl ApiFailure ===

impl ApiFailure {
    /// This failure as one of `step`.
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
