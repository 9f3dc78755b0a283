//! Requests to the map of workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::stop::{PodStop, StopAccepted, StopRejected};
use crate::{
    model::{
        mismatch::Mismatch,
        pod::{PodRef, PodUid, PodView},
        trace::Trace,
    },
    object_name::ObjectName,
    trace_recorder::TraceRecorder,
};

/// Sends requests to the map of workers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WorkersHandle {
    requests: mpsc::Sender<Request>,
}

/// Requests that wait for the map.
#[derive(Debug)]
pub struct RequestReceiver(pub(crate) mpsc::Receiver<Request>);

/// Which traces are queried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceFilter {
    /// All that the agent remembers.
    All,
    /// Those of pods with this name.
    Name {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
    },
    /// That of the pod with this UID.
    Uid(PodUid),
}

impl TraceFilter {
    /// Whether it contains this pod.
    pub fn contains(&self, pod: &PodRef) -> bool {
        match self {
            Self::All => true,
            Self::Name { namespace, name } => *pod.namespace == **namespace && *pod.name == **name,
            Self::Uid(uid) => pod.uid == *uid,
        }
    }
}

/// A request, with the channel for its answer.
#[derive(Debug)]
pub(crate) enum Request {
    Overview(oneshot::Sender<Overview>),
    Traces(TraceFilter, oneshot::Sender<Vec<Trace>>),
    Stop(PodStop, oneshot::Sender<Result<StopAccepted, StopRejected>>),
    TraceRecorder(PodUid, oneshot::Sender<Option<Arc<TraceRecorder>>>),
    FindPod(ObjectName, oneshot::Sender<Option<KnownPod>>),
    TerminatingUids(oneshot::Sender<BTreeSet<PodUid>>),
    Terminating(oneshot::Sender<BTreeMap<PodUid, Arc<PodView>>>),
    Approve(PodUid, Mismatch, oneshot::Sender<bool>),
}

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

/// A pod in the API.
#[derive(Debug, Clone)]
pub struct KnownPod {
    /// The pod as it was last seen.
    pub view: Arc<PodView>,
    /// Its trace, if it has a worker.
    pub trace: Option<Arc<TraceRecorder>>,
}

// === impl WorkersHandle ===

impl WorkersHandle {
    /// A handle, and the receiver of its requests.
    pub fn new() -> (Self, RequestReceiver) {
        let (requests, received) = mpsc::channel(16);
        (Self { requests }, RequestReceiver(received))
    }

    /// All terminating pods; `None` while the agent stops.
    pub async fn overview(&self) -> Option<Overview> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::Overview(reply)).await.ok()?;
        response.await.ok()
    }

    /// Traces of these pods, oldest first; `None` while the agent stops.
    pub async fn traces(&self, filter: TraceFilter) -> Option<Vec<Trace>> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::Traces(filter, reply)).await.ok()?;
        response.await.ok()
    }

    /// Stops a pod; `None` while the agent stops.
    pub async fn stop_pod(&self, stop: PodStop) -> Option<Result<StopAccepted, StopRejected>> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::Stop(stop, reply)).await.ok()?;
        response.await.ok()
    }

    /// The trace recorder of a pod that terminates or has terminated, if there is one; `None` while the agent stops.
    pub async fn trace_recorder(&self, uid: PodUid) -> Option<Option<Arc<TraceRecorder>>> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::TraceRecorder(uid, reply)).await.ok()?;
        response.await.ok()
    }

    /// The pod with this name, if the API has it; `None` while the agent stops.
    pub async fn find_pod(&self, name: ObjectName) -> Option<Option<KnownPod>> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::FindPod(name, reply)).await.ok()?;
        response.await.ok()
    }

    /// UIDs of all pods that terminate or have just finished; `None` while the agent stops.
    pub async fn terminating_uids(&self) -> Option<BTreeSet<PodUid>> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::TerminatingUids(reply)).await.ok()?;
        response.await.ok()
    }

    /// Pods with a worker and something on the node, after all news so far; `None` while the agent stops.
    pub async fn terminating(&self) -> Option<BTreeMap<PodUid, Arc<PodView>>> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::Terminating(reply)).await.ok()?;
        response.await.ok()
    }

    /// Approves a mismatch of a terminating pod. `false` if there is no such pod; `None` while the agent stops.
    pub async fn approve(&self, uid: PodUid, mismatch: Mismatch) -> Option<bool> {
        let (reply, response) = oneshot::channel();
        self.requests.send(Request::Approve(uid, mismatch, reply)).await.ok()?;
        response.await.ok()
    }
}
