//! Sends the status that `teardown::status` generates: before the stop, after it, and when the node is clean. Each patch has the
//! pod's UID and resourceVersion, so that it changes no other pod and overwrites no newer status.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;

use super::exits;
use crate::{
    model::{
        event::Reason,
        failure::Failure,
        pod::{PodObject, PodView},
        trace::Step,
    },
    node::cri::types::RuntimePod,
    teardown::{
        attempt::{Attempt, Worker},
        boundary::ApiFailure,
        context::Context,
        locate,
        plan::{PlanFacts, Planned, PlannedAction},
        status::{self, DEADLINE_EXCEEDED, StatusInput, StatusStage},
        termination_message, volumes,
    },
};

/// An object that changes more often while its status is sent waits for the next attempt.
const MAX_SENDS: usize = 5;

/// Result of sending a status.
enum Sent {
    /// The API has this status.
    Shown(Box<PodStatus>),
    /// The object is proven to be deleted.
    Deleted,
    /// The object has changed: the status must be generated again.
    Overtaken,
}

// === The decision ===

/// Whether attachable volumes of the pod may still be mounted or staged. Then the API keeps its last running container statuses: a
/// terminal status starts the controller's clock for a forced detach.
///
/// # Errors
/// If the node cannot be read.
pub async fn may_hold_attached(attempt: &Attempt<'_>) -> Result<bool, Vec<Failure>> {
    let view = attempt.view();
    if view.attachable_volumes {
        return Ok(true);
    }
    let read = |context: &Context, view: &PodView| {
        let dir = locate::pod_dir(context, view)?;
        Ok(volumes::may_hold_attached(&dir, &context.node.storage.mounts))
    };
    attempt.worker.on_node(view, Step::Status, read).await
}

/// The message of a status with reason `DeadlineExceeded`, if the API did not have that reason before.
fn new_deadline_exceeded<'a>(view: &PodView, status: &'a PodStatus) -> Option<&'a str> {
    let before = view.object.status().and_then(|status| status.reason.as_deref());
    let passed = status.reason.as_deref() == Some(DEADLINE_EXCEEDED) && before != Some(DEADLINE_EXCEEDED);
    passed.then(|| status.message.as_deref().unwrap_or(DEADLINE_EXCEEDED))
}

// === The effect ===

/// Sends the status as observed, while containers are being stopped. If it is delayed, it must not replace a later status.
pub async fn send_prestop(attempt: &Attempt<'_>) -> Result<(), Vec<Failure>> {
    let view = attempt.latest().await?;
    let Some(object) = view.object.last_known() else {
        return Ok(());
    };
    let (worker, observed) = (attempt.worker, &attempt.observed.pod);
    // Boxed, since all workers wait in this step.
    let wanted = Box::pin(wanted(worker, object, observed, StatusStage::Terminating)).await?;
    let Some(patch) = patch_of(object, &view, &wanted) else {
        return Ok(());
    };
    let sent = Box::pin(worker.context.api.patch_status(&view.pod, &patch)).await;
    sent.map_err(|error| vec![error.failure(Step::Status)])
}

/// Records the exits and sends the status of the stopped containers, unless the pod may hold attached volumes. A failure of the API
/// server does not keep the node from being cleaned up.
///
/// # Errors
/// If an exit code may still be read, or it is not known whether volumes are attached.
pub async fn run_stopped(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    if !attempt.is_gone {
        exits::check_read(attempt).await?;
        exits::record(attempt).await;
    }
    if !may_hold_attached(attempt).await?
        && let Err(failures) = send(attempt, StatusStage::Stopped).await
    {
        attempt.failures = failures;
    }
    let is_shown = attempt.api_status.as_deref().is_some_and(status::has_terminal_phase);
    attempt.is_terminal = attempt.worker.terminates_by_api() || attempt.is_gone || is_shown;
    Ok(())
}

/// Sends the last status: the node is clean.
///
/// # Errors
/// If the API server has not accepted it.
pub async fn run_terminated(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    send(attempt, StatusStage::Terminated).await
}

/// Sends the status, unless the object is gone.
async fn send(attempt: &mut Attempt<'_>, stage: StatusStage) -> Result<(), Vec<Failure>> {
    if attempt.is_gone {
        return Ok(());
    }
    let worker = attempt.worker;
    let mut view = attempt.latest().await?;
    for _ in 0..MAX_SENDS {
        // Boxed: most of the time a worker waits for containers, and it must be small then.
        match Box::pin(send_once(attempt, &view, stage)).await? {
            Sent::Shown(status) => {
                if let Some(message) = new_deadline_exceeded(&view, &status) {
                    let events = &worker.context.events;
                    events.event(&view, None, Reason::DeadlineExceeded, message);
                }
                attempt.api_status = Some(status);
                return Ok(());
            }
            Sent::Deleted => {
                (attempt.is_gone, attempt.api_status) = (true, None);
                return Ok(());
            }
            Sent::Overtaken => {
                let object = worker.read_object(&view.pod).await?;
                view = Arc::new(PodView::whole(object, true));
            }
        }
    }
    let what = format!("the object has changed {MAX_SENDS} times while its status was being sent");
    Err(vec![Failure::new(Step::Status, "", what)])
}

/// An unchanged status is not sent again.
async fn send_once(attempt: &Attempt<'_>, view: &PodView, stage: StatusStage) -> Result<Sent, Failure> {
    let (worker, api) = (attempt.worker, &attempt.worker.context.api);
    // This does not show that the object is deleted.
    let unseen = "the object has not been seen since its termination began";
    let object = view.object.last_known();
    let object = object.ok_or_else(|| Failure::new(Step::Status, "", unseen))?;
    let wanted = wanted(worker, object, &attempt.stopped.pod, stage).await?;
    if attempt.api_status.as_deref() == Some(&wanted) {
        return Ok(Sent::Shown(Box::new(wanted)));
    }
    let Some(patch) = patch_of(object, view, &wanted) else {
        return Ok(Sent::Shown(Box::new(wanted)));
    };
    let span = worker.recorder.span(Step::Status, "");
    let failed = |error: ApiFailure| Err(error.failure(Step::Status));
    let result = match api.patch_status(&view.pod, &patch).await {
        Ok(()) => Ok(Sent::Shown(Box::new(wanted))),
        // 404: no such pod. 422: another UID. 409: another version, or another UID. 403: the response to a node about a deleted
        // pod, or missing rights. None proves anything before the server's identity is proven.
        Err(error) if matches!(error.code, Some(403 | 404 | 409 | 422)) => match api.is_deleted(&view.pod).await {
            Ok(true) => Ok(Sent::Deleted),
            Ok(false) if error.code == Some(409) => Ok(Sent::Overtaken),
            Ok(false) => failed(error),
            Err(unsure) => failed(unsure),
        },
        Err(error) => failed(error),
    };
    // A deleted object is no failure.
    span.end(&result);
    result
}

/// The patch has the resourceVersion of the object: a status that became terminal since is not overwritten.
fn patch_of(object: &PodObject, view: &PodView, wanted: &PodStatus) -> Option<Value> {
    let mut patch = status::patch(&object.pod, object.raw_status.as_deref(), view.pod.uid.as_str(), wanted)?;
    patch["metadata"]["resourceVersion"] = object.pod.metadata.resource_version.clone().into();
    Some(patch)
}

/// The status with the recorded exits. Termination messages that the journal does not have are read, except before the stop.
async fn wanted(
    worker: &Worker,
    object: &PodObject,
    observed: &RuntimePod,
    stage: StatusStage,
) -> Result<PodStatus, Failure> {
    let node = &worker.context.node;
    let exits = worker.context.journal.exits(&worker.recorder.pod().uid);
    let observed = exits::with_exits(observed, &exits);
    let mut messages = exits::messages(&exits);
    let is_known = |id: &str| exits.get(id).is_some_and(|exit| exit.termination_message.is_some());
    let unknown = observed.containers.iter().filter(|it| !is_known(&it.id));
    let unknown: Vec<_> = unknown.cloned().collect();
    if stage != StatusStage::Terminating && !unknown.is_empty() {
        let read = node.reads.run_blocking(move || termination_message::read_all(&unknown));
        let (read, unread) = read.await.map_err(|error| Failure::new(Step::Status, "", error))?;
        messages.extend(read);
        for error in unread {
            tracing::warn!(error = %error, "Termination message cannot be read");
        }
    }
    // An eviction may have been requested while the last status was sent.
    let eviction = worker.updates.borrow().eviction.clone();
    Ok(status::generate(&StatusInput {
        pod: &object.pod,
        observed: &observed,
        runtime_name: &node.runtime_name,
        now: node.clock.wall.now(),
        stage,
        eviction: eviction.as_deref(),
        messages: &messages,
    }))
}

// === The plan ===

/// The status after the stop, or that of a pod that holds attached volumes until the node is clean.
pub async fn plan<const OF_ATTACHED: bool>(facts: &PlanFacts) -> Planned {
    if facts.may_hold_attached().await != OF_ATTACHED {
        return Vec::new();
    }
    vec![(Step::Status, vec![PlannedAction::ReportStatus])]
}
