//! Final delete: only of a deleted pod, only with a terminal phase in the API, only of this UID.

use k8s_openapi::api::core::v1::PodStatus;

use crate::{
    model::{
        failure::Failure,
        pod::{PodView, is_terminal_phase},
        trace::Step,
    },
    teardown::context::Context,
};

/// Deletes the pod's object. Returns the finalizers that keep it. `shown` is the status in the API.
pub async fn send(context: &Context, view: &PodView, shown: &PodStatus) -> Result<Vec<String>, Failure> {
    may_be_deleted(view, shown).map_err(|why| Failure::new(Step::Delete, "", why))?;
    match context.api.delete(&view.pod).await {
        Ok(finalizers) => {
            if !finalizers.is_empty() {
                tracing::info!(
                    finalizers = finalizers.join(","),
                    "Pod is deleted on this node; finalizers keep its object"
                );
            } else {
                tracing::info!("Pod is deleted");
            }
            Ok(finalizers)
        }
        // 404 and 409: no such pod, or another UID under this name. 403: the response to a node about a deleted pod. None proves
        // anything before the server's identity is proven.
        Err(error) if matches!(error.code, Some(403 | 404 | 409)) => match context.api.is_deleted(&view.pod).await {
            Ok(true) => {
                tracing::info!("Pod was already deleted");
                Ok(Vec::new())
            }
            Ok(false) => Err(error.failure(Step::Delete)),
            Err(unsure) => Err(unsure.failure(Step::Delete)),
        },
        Err(error) => Err(error.failure(Step::Delete)),
    }
}

fn may_be_deleted(view: &PodView, shown: &PodStatus) -> Result<(), &'static str> {
    let terminal = shown.phase.as_deref().is_some_and(is_terminal_phase);
    match (view.mirror, view.deletion.is_some(), terminal) {
        (true, _, _) => Err("it is the mirror of a static pod"),
        (false, false, _) => Err("it has no deletionTimestamp"),
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
    fn final_delete_needs_a_deletion_timestamp_and_a_terminal_phase_and_no_mirror() {
        for mirror in [false, true] {
            for deleted in [false, true] {
                for phase in ["Pending", "Running", "Failed", "Succeeded", "Unknown", ""] {
                    let shown = PodStatus {
                        phase: Some(phase.to_owned()),
                        ..PodStatus::default()
                    };
                    let expected = !mirror && deleted && matches!(phase, "Failed" | "Succeeded");
                    let may = may_be_deleted(&view(mirror, deleted), &shown);
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
