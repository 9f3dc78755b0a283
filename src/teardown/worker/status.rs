//! Sends the status: before the stop, after it, and when the node is clean.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::OwnedSemaphorePermit;

use super::Worker;
use crate::{
    model::{event::Reason, failure::Failure, pod::PodView, termination::Eviction, trace::Step},
    node::cri::types::RuntimePod,
    teardown::{
        large_object,
        status::{DEADLINE_EXCEEDED, StatusStage},
        status_sender::{self, Sent},
    },
};

/// An object that changes more often while its status is sent waits for the next attempt.
const MAX_SENDS: usize = 5;

/// A pod with its object, and the permit for a large one.
type ReadPod = (Arc<PodView>, Option<OwnedSemaphorePermit>);

/// Result of sending the status after the stop.
pub(super) struct StatusResult {
    /// The object is gone, or there is no API server.
    pub is_gone: bool,
    /// The status that the API shows; `None` if it was not sent.
    pub api_status: Option<Box<PodStatus>>,
    pub failures: Vec<Failure>,
}

impl Worker {
    /// Sends the status as observed, while containers are being stopped.
    pub(super) async fn send_prestop_status(
        &self,
        view: &Arc<PodView>,
        runtime_pod: &RuntimePod,
    ) -> Result<(), Vec<Failure>> {
        let (view, _permit) = self.latest(view).await?;
        let eviction = self.eviction();
        let facts = status_sender::StatusUpdate {
            view: &view,
            observed: runtime_pod,
            stage: StatusStage::Terminating,
            eviction: eviction.as_deref(),
        };
        let sent = Box::pin(status_sender::send_prestop(&self.context, facts)).await;
        sent.map_err(|failure| vec![failure])
    }

    /// Sends the status of the stopped containers. With attached volumes it waits until these are unmounted: a terminal status starts
    /// the controller's clock for a forced detach.
    ///
    /// # Errors
    /// If it is not known whether volumes are attached. A failure of the API server is part of the result.
    pub(super) async fn send_stopped_status(
        &self,
        view: &Arc<PodView>,
        stopped: &RuntimePod,
    ) -> Result<StatusResult, Vec<Failure>> {
        let mut reported = StatusResult {
            is_gone: view.object.is_absent(),
            api_status: None,
            failures: Vec::new(),
        };
        if !self.may_hold_attached(view).await? {
            match self
                .send_status(view, reported.is_gone, stopped, StatusStage::Stopped, None)
                .await
            {
                Ok(status) => (reported.is_gone, reported.api_status) = (status.is_none(), status),
                Err(failures) => reported.failures = failures,
            }
        }
        Ok(reported)
    }

    /// Sends the status. Returns what the API shows now; `None` if the object is gone.
    pub(super) async fn send_status(
        &self,
        view: &Arc<PodView>,
        is_gone: bool,
        runtime_pod: &RuntimePod,
        stage: StatusStage,
        before: Option<&PodStatus>,
    ) -> Result<Option<Box<PodStatus>>, Vec<Failure>> {
        if is_gone {
            return Ok(None);
        }
        let (mut view, mut permit) = self.latest(view).await?;
        for _ in 0..MAX_SENDS {
            // An eviction may have been requested while the last status was sent.
            let eviction = self.eviction();
            let facts = status_sender::StatusUpdate {
                view: &view,
                observed: runtime_pod,
                stage,
                eviction: eviction.as_deref(),
            };
            let send = status_sender::send(&self.context, facts, before, &self.recorder);
            // Boxed: most of the time a worker waits for containers, and it must be small then.
            match Box::pin(send).await.map_err(|failure| vec![failure])? {
                Sent::Shown(status) => {
                    if let Some(message) = new_deadline_exceeded(&view, &status) {
                        self.context
                            .events
                            .event(&view, None, Reason::DeadlineExceeded, message);
                    }
                    return Ok(Some(status));
                }
                Sent::Deleted => return Ok(None),
                Sent::Overtaken => {
                    drop(permit);
                    (view, permit) = self.read_pod(&view).await?;
                }
            }
        }
        let what = format!("the object has changed {MAX_SENDS} times while its status was being sent");
        Err(vec![Failure::new(Step::Status, "", what)])
    }

    fn eviction(&self) -> Option<Arc<Eviction>> {
        self.updates.borrow().eviction.clone()
    }

    /// The pod as it was last seen, with its object. It is read from the API if neither has one, such as after a stop request.
    pub(super) async fn latest(&self, view: &Arc<PodView>) -> Result<ReadPod, Vec<Failure>> {
        let latest = Arc::clone(&self.updates.borrow().view);
        if latest.object.last_known().is_some() {
            return Ok((latest, None));
        }
        if view.object.last_known().is_some() {
            return Ok((Arc::clone(view), None));
        }
        self.read_pod(view).await
    }

    /// The pod as the API server has it now.
    async fn read_pod(&self, view: &PodView) -> Result<ReadPod, Vec<Failure>> {
        let project = |object| Arc::new(PodView::whole(object, true));
        let read = large_object::read(&self.context, view, project).await;
        read.map_err(|failure| vec![failure])
    }
}

/// The message of a status with reason `DeadlineExceeded`, if the API did not have that reason before.
fn new_deadline_exceeded<'a>(view: &PodView, status: &'a PodStatus) -> Option<&'a str> {
    let before = view.object.status().and_then(|status| status.reason.as_deref());
    let passed = status.reason.as_deref() == Some(DEADLINE_EXCEEDED) && before != Some(DEADLINE_EXCEEDED);
    passed.then(|| status.message.as_deref().unwrap_or(DEADLINE_EXCEEDED))
}
