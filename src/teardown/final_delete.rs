//! The final delete: only what is being deleted, only after the API shows that it has ended, only this very UID.

use k8s_openapi::api::core::v1::PodStatus;

use crate::{
    model::{failure::Failure, pod::PodView, trace::Step},
    teardown::context::Context,
};

/// Deletes the pod's object, and tells which finalizers keep it. `shown` is the status that the API holds.
pub async fn send(context: &Context, view: &PodView, shown: &PodStatus) -> Result<Vec<String>, Failure> {
    let dry_run = context.effects.is_dry_run();
    may_be_deleted(view, shown, dry_run).map_err(|why| Failure::new(Step::Delete, "", why))?;
    match context.api.delete(&view.pod).await {
        Ok(finalizers) => {
            if !finalizers.is_empty() {
                tracing::info!(
                    ?finalizers,
                    "Pod is deleted as far as this node is concerned; finalizers hold its object"
                );
            } else if !dry_run {
                tracing::info!("Pod is deleted");
            }
            Ok(finalizers)
        }
        // 404 and 409: no such pod, or another UID under this name. 403: what a node is told of pods that are gone. None of
        // them proves anything before it is known who answers.
        Err(error) if matches!(error.code, Some(403 | 404 | 409)) => match context.api.is_gone(&view.pod).await {
            Ok(true) => {
                tracing::info!("Pod was deleted by somebody else");
                Ok(Vec::new())
            }
            Ok(false) => Err(error.failure(Step::Delete)),
            Err(unsure) => Err(unsure.failure(Step::Delete)),
        },
        Err(error) => Err(error.failure(Step::Delete)),
    }
}

/// A dry run has stopped nothing, so that no phase can be terminal; its delete gets no further than the gate.
fn may_be_deleted(view: &PodView, shown: &PodStatus, dry_run: bool) -> Result<(), &'static str> {
    let terminal = dry_run || matches!(shown.phase.as_deref(), Some("Failed" | "Succeeded"));
    match (view.mirror, view.deletion.is_some(), terminal) {
        (true, _, _) => Err("it is the mirror of a static pod"),
        (false, false, _) => Err("nobody has asked for its deletion"),
        (false, true, false) => Err("the API does not show a terminal phase"),
        (false, true, true) => Ok(()),
    }
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
    fn only_a_deleted_pod_that_is_no_mirror_and_has_a_terminal_phase_is_deleted() {
        for mirror in [false, true] {
            for deleted in [false, true] {
                for phase in ["Pending", "Running", "Failed", "Succeeded", "Unknown", ""] {
                    let shown = PodStatus {
                        phase: Some(phase.to_owned()),
                        ..PodStatus::default()
                    };
                    let expected = !mirror && deleted && matches!(phase, "Failed" | "Succeeded");
                    let may = may_be_deleted(&view(mirror, deleted), &shown, false);
                    assert_eq!(
                        may.is_ok(),
                        expected,
                        "mirror {mirror}, deleted {deleted}, phase {phase:?}"
                    );
                    let told = may_be_deleted(&view(mirror, deleted), &shown, true);
                    assert_eq!(told.is_ok(), !mirror && deleted, "dry run");
                }
            }
        }
    }
}
