//! Final delete: only of a deleted pod, only with a terminal phase in the API, only of this UID.

use k8s_openapi::api::core::v1::PodStatus;

use crate::{
    model::{
        failure::Failure,
        pod::{PodView, is_terminal_phase},
        trace::Step,
    },
    teardown::{
        attempt::Attempt,
        boundary::Counted,
        plan::{PlanFacts, Planned, PlannedAction},
    },
};

// === The decision ===

fn may_be_deleted(view: &PodView, shown: Option<&PodStatus>) -> Result<(), &'static str> {
    let phase = shown.and_then(|shown| shown.phase.as_deref());
    let terminal = phase.is_some_and(is_terminal_phase);
    match (view.mirror, view.deletion.is_some(), terminal) {
        (true, _, _) => Err("it is the mirror of a static pod"),
        (false, false, _) => Err("it has no deletionTimestamp"),
        (false, true, false) => Err("the API does not show a terminal phase"),
        (false, true, true) => Ok(()),
    }
}

// === The effect ===

/// Deletes the pod's object, unless that is gone.
pub async fn run(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    if attempt.is_gone {
        return Ok(());
    }
    let (context, recorder) = (&attempt.worker.context, &attempt.worker.recorder);
    let view = attempt.view();
    let span = recorder.span(Step::Delete, "");
    let result = match may_be_deleted(view, attempt.api_status.as_deref()) {
        Err(why) => Err(Failure::new(Step::Delete, "", why)),
        Ok(()) => match context.api.delete(&view.pod).await {
            Ok(finalizers) => Ok(finalizers),
            // 404 and 409: no such pod, or another UID under this name. 403: the response to a node about a deleted pod. None
            // proves anything before the server's identity is proven.
            Err(error) if matches!(error.code, Some(403 | 404 | 409)) => {
                match context.api.is_deleted(&view.pod).await {
                    Ok(true) => Ok(Vec::new()),
                    Ok(false) => Err(error.failure(Step::Delete)),
                    Err(unsure) => Err(unsure.failure(Step::Delete)),
                }
            }
            Err(error) => Err(error.failure(Step::Delete)),
        },
    };
    span.end(&result);
    let finalizers = result?;
    match finalizers.is_empty() {
        true => tracing::info!("Pod is deleted"),
        false => {
            let finalizers = finalizers.join(",");
            tracing::info!(finalizers, "Pod is deleted on this node; finalizers keep its object");
        }
    }
    // A pod with finalizers is deleted again with each retry of its cleanup.
    if recorder.read(|trace| trace.finalizers.is_empty()) {
        context.events.count(Counted::PodDeleted);
    }
    recorder.change(|trace| trace.finalizers = finalizers);
    Ok(())
}

// === The plan ===

/// The delete, with the finalizers that keep the object after it.
pub async fn plan(facts: &PlanFacts) -> Planned {
    let object = facts.reads.view.object.last_known();
    let finalizers = object.and_then(|object| object.pod.metadata.finalizers.clone());
    let delete = PlannedAction::DeleteObject {
        uid: facts.reads.view.pod.uid.to_string(),
        kept_by: finalizers.unwrap_or_default(),
    };
    vec![(Step::Delete, vec![delete])]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::pod::PodObject;

    fn view(mirror: bool, deleted: bool) -> PodView {
        let mut pod = json!({
            "metadata": { "name": "a", "namespace": "ns", "uid": "1", "annotations": {} },
            "spec": { "containers": [] },
        });
        if mirror {
            pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "hash".into();
        }
        if deleted {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        PodView::project(PodObject::from_value(&pod).unwrap(), false)
    }

    #[test]
    fn final_delete_needs_a_deletion_timestamp_and_a_terminal_phase_and_no_mirror() {
        for mirror in [false, true] {
            for deleted in [false, true] {
                for phase in ["Pending", "Running", "Failed", "Succeeded", "Unknown", ""] {
                    let shown = PodStatus {
                        phase: Some(phase.to_owned()),
                        ..PodStatus::default()
                    };
                    let expected = !mirror && deleted && matches!(phase, "Failed" | "Succeeded");
                    let may = may_be_deleted(&view(mirror, deleted), Some(&shown));
                    assert_eq!(
                        may.is_ok(),
                        expected,
                        "mirror {mirror}, deleted {deleted}, phase {phase:?}"
                    );
                }
            }
        }
    }
}
