//! What the API is told of a pod's state on its way to its end.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;

use super::Worker;
use crate::{
    model::{event::Reason, failure::Failure, pod::PodView, termination::Eviction, trace::Step},
    node::cri::types::RuntimePod,
    teardown::{
        status::{DEADLINE_EXCEEDED, Stage},
        status_sender::{self, Sent},
    },
};

/// An object that changes faster than a status can be sent waits for the next attempt.
const LOOKS: usize = 5;

impl Worker {
    pub(super) async fn as_it_is(&self, view: &Arc<PodView>, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        let view = self.latest(view).await?;
        let imposed = self.imposed();
        let facts = status_sender::Facts {
            view: &view,
            observed,
            stage: Stage::Terminating,
            imposed: imposed.as_deref(),
        };
        let sent = Box::pin(status_sender::as_it_is(&self.context, facts)).await;
        sent.map_err(|failure| vec![failure])
    }

    /// The status that the API shows now; `None` if the object is gone.
    pub(super) async fn status(
        &self,
        view: &Arc<PodView>,
        removed: bool,
        observed: &RuntimePod,
        stage: Stage,
        before: Option<&PodStatus>,
    ) -> Result<Option<Box<PodStatus>>, Vec<Failure>> {
        if removed {
            return Ok(None);
        }
        let mut view = self.latest(view).await?;
        for _ in 0..LOOKS {
            // Somebody may have decided on how it ends while the last one was on its way.
            let imposed = self.imposed();
            // Boxed: a worker is small while it waits for containers, and that is most of the time.
            let facts = status_sender::Facts {
                view: &view,
                observed,
                stage,
                imposed: imposed.as_deref(),
            };
            let send = status_sender::send(&self.context, facts, before, &self.record);
            match Box::pin(send).await.map_err(|failure| vec![failure])? {
                Sent::Shown(status) => {
                    if let Some(words) = news_of_a_deadline(&view, &status) {
                        self.context.events.event(&view, None, Reason::DeadlineExceeded, words);
                    }
                    return Ok(Some(status));
                }
                Sent::Gone => return Ok(None),
                Sent::Overtaken => view = self.read(&view).await?,
            }
        }
        let what = format!("the object has changed {LOOKS} times while its status was on its way");
        Err(vec![Failure::new(Step::Status, "", what)])
    }

    /// What was decided on how the pod ends.
    fn imposed(&self) -> Option<Arc<Eviction>> {
        self.updates.borrow().imposed.clone()
    }

    /// The pod as it was last seen, with its object. Of a pod that lived until somebody decided otherwise none was kept.
    async fn latest(&self, view: &Arc<PodView>) -> Result<Arc<PodView>, Vec<Failure>> {
        let latest = Arc::clone(&self.updates.borrow().view);
        if latest.object.is_some() {
            return Ok(latest);
        }
        if view.object.is_some() {
            return Ok(Arc::clone(view));
        }
        self.read(view).await
    }

    /// The pod as the API server has it now.
    pub(super) async fn read(&self, view: &PodView) -> Result<Arc<PodView>, Vec<Failure>> {
        let pod = self.context.api.pod(&view.pod).await;
        let pod = pod.map_err(|error| vec![error.failure(Step::Status)])?;
        let view = pod.map(|pod| PodView::whole(pod, true));
        // Never a sign that it is gone: the watch will say so.
        let view = view.ok_or_else(|| vec![Failure::new(Step::Status, "", "a list by the pod's name lacks it")])?;
        Ok(Arc::new(view))
    }
}

/// What is said of a pod's deadline, where the API has not shown before that it has passed.
fn news_of_a_deadline<'a>(view: &PodView, status: &'a PodStatus) -> Option<&'a str> {
    let before = view
        .object
        .as_ref()
        .and_then(|object| object.pod.status.as_ref()?.reason.as_deref());
    let passed = status.reason.as_deref() == Some(DEADLINE_EXCEEDED) && before != Some(DEADLINE_EXCEEDED);
    passed.then(|| status.message.as_deref().unwrap_or(DEADLINE_EXCEEDED))
}
