//! What the API server shows of this node, once that is proven to be the recorded one.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::guard::Guard;
use crate::{
    api::{ApiClient, ApiError, Proof},
    model::{blocked::NodeMismatch, pod::PodRef},
};

/// Taint of a Node that is lost: its pods are force-deleted and their volumes detached
/// (<https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown>).
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Reads the Node again, and compares it with the recorded one.
///
/// # Errors
/// [`ErrorKind::Blocked`](crate::api::ErrorKind::Blocked) for a mismatch, else the error of the request.
pub async fn read_node(guard: &Guard, api: &ApiClient) -> Result<Node, ApiError> {
    check_answer(guard, api.node().await, api.node_name()).await
}

/// Checks that a new connection leads to the recorded Node's cluster.
pub fn proof(guard: &Guard, node_name: &str) -> Proof {
    let (guard, node_name) = (guard.clone(), Arc::<str>::from(node_name));
    Arc::new(move |answer| {
        let (guard, node_name) = (guard.clone(), Arc::clone(&node_name));
        Box::pin(async move { check_answer(&guard, answer, &node_name).await.map(drop) })
    })
}

/// Whether a complete, consistent list of the pods of this name on this node lacks this UID. The Node is read before and
/// after it, so that the list is known to come from the right cluster.
///
/// # Errors
/// When a request fails, the Node is not the recorded one, or absence is no proof now.
pub async fn is_deleted(guard: &Guard, api: &ApiClient, pod: &PodRef) -> Result<bool, ApiError> {
    read_node(guard, api).await?;
    let seen_before = guard.absence.highest();
    let list = api.pods_named(pod).await?;
    if list.pod.is_some() {
        return Ok(false);
    }
    read_node(guard, api).await?;
    match guard.absence.record_list(list.version, seen_before, None) {
        None => Ok(true),
        Some(cause) => Err(ApiError::blocked("LIST", "/api/v1/pods", cause)),
    }
}

/// The Node must have the recorded UID and describe this machine. An answer without a Node is a mismatch; no answer changes
/// nothing.
async fn check_answer(guard: &Guard, answer: Result<Node, ApiError>, name: &str) -> Result<Node, ApiError> {
    let identity = match &answer {
        Ok(node) => guard.identity.compare(node).await,
        Err(error) if matches!(error.code(), Some(403 | 404)) => Err(NodeMismatch::new(format!(
            "the API server shows no Node of this agent ({error}): are --kubeconfig and --node-name right?"
        ))),
        Err(_) => return answer,
    };
    guard.identity.set(identity.clone());
    guard
        .absence
        .set_out_of_service(answer.as_ref().is_ok_and(is_out_of_service));
    identity.map_err(|mismatch| ApiError::blocked("GET", &format!("/api/v1/nodes/{name}"), mismatch.to_string()))?;
    answer
}

/// Whether the Node has the taint [`OUT_OF_SERVICE`].
fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    taints
        .unwrap_or_default()
        .iter()
        .any(|taint| taint.key == OUT_OF_SERVICE)
}
