//! One worker for each terminating pod: in order for one pod, in parallel for different pods.
//!
//! [`PodRequests`] are answered by the map of workers, or by the observer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::{
    model::{
        mismatch::Mismatch,
        pod::{PodUid, PodView},
        trace::Trace,
    },
    object_name::ObjectName,
    trace_recorder::TraceRecorder,
};

pub mod artifacts;
mod map;
pub mod stop;

pub use self::map::PodWorkers;
use self::stop::{PodStop, StopAccepted, StopRejected};

/// Sends requests to the map of workers, or to the observer. Cheap to clone.
#[derive(Clone)]
pub struct WorkersHandle(mpsc::Sender<Request>);

/// Answers requests about the pods of this node.
pub trait PodRequests {
    /// All terminating pods.
    fn overview(&self) -> Overview;

    /// Traces of the pods with this name, or of all, oldest first: one name may have had several pods.
    fn traces(&self, name: Option<&ObjectName>) -> Vec<Trace>;

    /// Forgets the pods that are finished and gone.
    fn forget_gone(&mut self) {}

    /// Stops a pod. A request for a pod that is stopped changes nothing.
    fn stop_pod(&mut self, stop: PodStop) -> Result<StopAccepted, StopRejected>;

    /// The trace recorder of a pod that terminates or has terminated, if there is one.
    fn trace_recorder(&self, uid: &PodUid) -> Option<Arc<TraceRecorder>>;

    /// The pod with this name as it was last seen, if the API has it, and its trace, if it has a worker.
    fn find_pod(&self, name: &ObjectName) -> Option<KnownPod>;

    /// UIDs of all pods that terminate.
    fn terminating_uids(&self) -> BTreeSet<PodUid>;

    /// Pods with a worker and something on the node.
    fn terminating(&self) -> BTreeMap<PodUid, Arc<PodView>>;

    /// Approves a mismatch of a pod; `false` if the pod does not terminate.
    fn approve(&mut self, uid: &PodUid, mismatch: Mismatch) -> bool;
}

/// A pod in the API, and its trace.
pub type KnownPod = (Arc<PodView>, Option<Arc<TraceRecorder>>);

/// A request. It sends its answer itself.
pub type Request = Box<dyn FnOnce(&mut dyn PodRequests) + Send>;

/// All terminating pods at one time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Pods with a worker, longest first.
    pub terminating: Vec<Trace>,
    /// Pods of which nothing runs, and that are not deleted.
    pub awaiting_deletion: usize,
    /// Finished pods with an object that finalizers keep.
    pub awaiting_finalizers: usize,
}

// === impl WorkersHandle ===

impl WorkersHandle {
    /// A handle, and the receiver of its requests.
    pub fn new() -> (Self, mpsc::Receiver<Request>) {
        let (requests, received) = mpsc::channel(16);
        (Self(requests), received)
    }

    /// The answer to this request, after all changes so far; `None` while the agent stops.
    pub async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut dyn PodRequests) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let request: Request = Box::new(move |pods| {
            // A request whose caller no longer waits was reported as failed, and is not executed.
            if !reply.is_closed() {
                reply.send(request(pods)).ok();
            }
        });
        self.0.send(request).await.ok()?;
        answer.await.ok()
    }
}
