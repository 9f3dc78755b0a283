//! Hands the node over to a kubelet that is about to start.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};

use super::{
    peer::Peer,
    respond::{error, json_answer},
    state::PodsAdmin,
};

/// Path of the request.
pub const HANDOVER: &str = "/v1/handover";
/// Maximum timeout of a handover.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// A handover request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoverRequest {
    /// How long terminating pods have to reach a safe point, in milliseconds.
    pub timeout_ms: u64,
}

/// Returns when all pods have reached a safe point, or after the timeout.
pub(super) async fn perform(pods: &PodsAdmin, body: &[u8], peer: Peer) -> Response<Full<Bytes>> {
    let HandoverRequest { timeout_ms } = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(cause) => return error(StatusCode::BAD_REQUEST, &format!("the body is no request: {cause}")),
    };
    let timeout = Duration::from_millis(timeout_ms).min(MAX_TIMEOUT);
    tracing::info!(
        ?timeout,
        peer = peer.to_string(),
        "Handover requested: no work is started any more"
    );
    let result = pods.guard.hand_over(timeout, pods.handover_validity).await;
    if result.in_progress.is_empty() {
        tracing::info!(peer = peer.to_string(), "Node is handed over: no work is in progress");
    } else {
        tracing::warn!(
            peer = peer.to_string(),
            cut_short = result.in_progress.join(", "),
            "Node is handed over with work in progress: the kubelet may repeat hooks and grace period of these pods"
        );
    }
    json_answer(&result)
}
