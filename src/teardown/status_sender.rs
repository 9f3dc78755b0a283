//! Sends the status that `status` generates. Each patch has the pod's UID, so that it changes no other pod.

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;

use super::{
    recorded_exits,
    status::{self, Messages, StatusStage},
    termination_message,
};
use crate::{
    model::{
        failure::Failure,
        pod::{PodObject, PodView},
        termination::Eviction,
        trace::Step,
    },
    node::cri::types::RuntimePod,
    teardown::{context::Context, journal::PodJournalExt as _},
    trace_recorder::TraceRecorder,
};

/// Result of sending a status.
#[derive(Debug, Clone, PartialEq)]
pub enum Sent {
    /// The API has this status.
    Shown(Box<PodStatus>),
    /// The object is proven to be deleted.
    Deleted,
    /// The object has changed: the status must be generated again.
    Overtaken,
}

/// Input of a status.
#[derive(Clone, Copy)]
pub struct StatusUpdate<'a> {
    /// The pod, with its object.
    pub view: &'a PodView,
    /// The pod in the runtime.
    pub observed: &'a RuntimePod,
    /// Stage of the termination.
    pub stage: StatusStage,
    /// The eviction that a user requested.
    pub eviction: Option<&'a Eviction>,
}

/// Sends the pre-stop status. If it is delayed, it must not replace a later status.
pub async fn send_prestop(context: &Context, update: StatusUpdate<'_>) -> Result<(), Failure> {
    let view = update.view;
    let Some(object) = view.object.last_known() else {
        return Ok(());
    };
    let exits = context.journal.exits(&view.pod.uid);
    let observed = &recorded_exits::with_exits(update.observed, &exits);
    let wanted = wanted(
        context,
        object,
        StatusUpdate { observed, ..update },
        &recorded_exits::messages(&exits),
    );
    let Some(patch) = patch_of(object, view, &wanted) else {
        return Ok(());
    };
    context
        .api
        .patch_status(&view.pod, &patch)
        .await
        .map_err(|error| error.failure(Step::Status))
}

/// Sends the status after the stop. `before` is the last status sent: an unchanged one is not sent again.
pub async fn send(
    context: &Context,
    update: StatusUpdate<'_>,
    before: Option<&PodStatus>,
    recorder: &TraceRecorder,
) -> Result<Sent, Failure> {
    let view = update.view;
    // This does not show that the object is deleted.
    let unknown = || {
        Failure::new(
            Step::Status,
            "",
            "the object has not been seen since its termination began",
        )
    };
    let object = view.object.last_known().ok_or_else(unknown)?;
    let exits = context.journal.exits(&view.pod.uid);
    let observed = &recorded_exits::with_exits(update.observed, &exits);
    let mut messages = recorded_exits::messages(&exits);
    let unknown: Vec<_> = observed
        .containers
        .iter()
        .filter(|container| {
            exits
                .get(&container.id)
                .is_none_or(|exit| exit.termination_message.is_none())
        })
        .cloned()
        .collect();
    if !unknown.is_empty() {
        let read = context
            .node
            .reads
            .run_blocking(move || termination_message::read_all(&unknown));
        let (read, unread) = read.await.map_err(|error| Failure::new(Step::Status, "", error))?;
        messages.extend(read);
        for error in unread {
            tracing::warn!(error = %error, "Termination message cannot be read");
        }
    }
    let wanted = wanted(context, object, StatusUpdate { observed, ..update }, &messages);
    if before == Some(&wanted) {
        return Ok(Sent::Shown(Box::new(wanted)));
    }
    let Some(patch) = patch_of(object, view, &wanted) else {
        return Ok(Sent::Shown(Box::new(wanted)));
    };
    let span = recorder.span(Step::Status, "");
    let result = match context.api.patch_status(&view.pod, &patch).await {
        Ok(()) => Ok(Sent::Shown(Box::new(wanted))),
        // 404: no such pod. 422: another UID. 409: another version, or another UID. 403: the response to a node about a deleted
        // pod, or missing rights. None proves anything before the server's identity is proven.
        Err(error) if matches!(error.code, Some(403 | 404 | 409 | 422)) => {
            match context.api.is_deleted(&view.pod).await {
                Ok(true) => Ok(Sent::Deleted),
                Ok(false) if error.code == Some(409) => Ok(Sent::Overtaken),
                Ok(false) => Err(error.failure(Step::Status)),
                Err(unsure) => Err(unsure.failure(Step::Status)),
            }
        }
        Err(error) => Err(error.failure(Step::Status)),
    };
    // A deleted object is no failure.
    span.end(&result);
    result
}

/// The patch has the resourceVersion of the object: a status that became terminal since is not overwritten.
fn patch_of(object: &PodObject, view: &PodView, wanted: &PodStatus) -> Option<Value> {
    let mut patch = status::patch(&object.pod, &object.statuses, view.pod.uid.as_str(), wanted)?;
    patch["metadata"]["resourceVersion"] = object.pod.metadata.resource_version.clone().into();
    Some(patch)
}

fn wanted(context: &Context, object: &PodObject, update: StatusUpdate<'_>, messages: &Messages) -> PodStatus {
    status::generate(&status::StatusInput {
        pod: &object.pod,
        observed: update.observed,
        runtime_name: &context.node.runtime_name,
        now: context.node.clock.wall().now(),
        stage: update.stage,
        eviction: update.eviction,
        messages,
    })
}
