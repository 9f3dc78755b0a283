//! Sends the status that `status` decides on. The UID goes with every patch, so that no other pod is ever touched.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::{
    status::{self, Facts, Messages, Stage},
    termination_message,
};
use crate::{
    api::ApiError,
    context::Context,
    node::cri::types::RuntimePod,
    pod::PodView,
    record::{Record, Step},
    teardown::Failure,
};

/// What became of a status.
#[derive(Debug, Clone, PartialEq)]
pub enum Sent {
    /// The API shows it; this is the whole of it.
    Shown(Box<PodStatus>),
    /// The object is proven to be gone.
    Gone,
}

/// The status while the pod is being stopped. It carries the resourceVersion that it rests on: delayed on its way, it
/// must not undo what is said later.
pub async fn as_it_is(context: &Context, view: &PodView, observed: &RuntimePod) -> Result<(), Failure> {
    let Some(object) = &view.object else { return Ok(()) };
    let wanted = wanted(context, object, observed, Stage::Terminating, &Messages::default());
    let Some(mut patch) = status::patch(object, view.pod.uid.as_str(), &wanted) else {
        return Ok(());
    };
    patch["metadata"]["resourceVersion"] = object.metadata.resource_version.clone().into();
    context
        .api
        .patch_pod_status(&view.pod, &patch)
        .await
        .map_err(|error| failed(&error))
}

/// The status once everything has stopped. `before` is what was sent last: nothing is patched when nothing changed.
pub async fn send(
    context: &Context,
    view: &PodView,
    observed: &RuntimePod,
    stage: Stage,
    before: Option<&PodStatus>,
    record: &Record,
) -> Result<Sent, Failure> {
    // Never a sign that the object is gone: who knows that does not come here.
    let unknown = || Failure::new(Step::Status, "", "the object has not been seen since its end began");
    let object = view.object.as_ref().ok_or_else(unknown)?;
    let containers = observed.containers.clone();
    let read = context.reads.work(move || termination_message::read_all(&containers));
    let (messages, unread) = read.await.map_err(|error| Failure::new(Step::Status, "", error))?;
    for error in unread {
        tracing::warn!(error = %error, "Termination message is left out");
    }
    let wanted = wanted(context, object, observed, stage, &messages);
    if before == Some(&wanted) {
        return Ok(Sent::Shown(Box::new(wanted)));
    }
    let Some(patch) = status::patch(object, view.pod.uid.as_str(), &wanted) else {
        return Ok(Sent::Shown(Box::new(wanted)));
    };
    let span = record.span(Step::Status, "");
    let result = match context.api.patch_pod_status(&view.pod, &patch).await {
        Ok(()) => Ok(Sent::Shown(Box::new(wanted))),
        // 404: no such pod. 422: another UID. 403: what a node is told of pods that are gone, and of rights that it lacks.
        // None of them proves anything before it is known who answers.
        Err(
            error @ ApiError::Refused {
                code: 403 | 404 | 422, ..
            },
        ) => match context.guard.is_gone(&context.api, &view.pod).await {
            Ok(true) => Ok(Sent::Gone),
            Ok(false) => Err(failed(&error)),
            Err(unsure) => Err(failed(&unsure)),
        },
        Err(error) => Err(failed(&error)),
    };
    // That the object is gone is an answer, and no failure.
    span.end(&result);
    result
}

fn wanted(context: &Context, object: &Pod, observed: &RuntimePod, stage: Stage, messages: &Messages) -> PodStatus {
    status::generate(&Facts {
        pod: object,
        observed,
        runtime_name: &context.runtime_name,
        now: Timestamp::now(),
        stage,
        imposed: None,
        messages,
    })
}

fn failed(error: &ApiError) -> Failure {
    Failure::of_request(Step::Status, error)
}
