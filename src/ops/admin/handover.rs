//! Gives the node to a kubelet that is about to start.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};

use super::{PodsAdmin, error, json_answer};

/// Where it is asked for.
pub const HANDOVER: &str = "/v1/hand-back";
/// Nobody who starts a kubelet waits longer.
const LONGEST: Duration = Duration::from_secs(3600);

/// What is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoverRequest {
    /// How long pods that are being taken down have to come to a safe point.
    pub timeout_ms: u64,
}

/// Returns when nothing is under way any more, or at the end of that time.
pub(super) async fn hand_over(pods: &PodsAdmin, body: &[u8], peer: &str) -> Response<Full<Bytes>> {
    let HandoverRequest { timeout_ms } = match serde_json::from_slice(body) {
        Ok(ask) => ask,
        Err(cause) => return error(StatusCode::BAD_REQUEST, &format!("the body is no request: {cause}")),
    };
    let patience = Duration::from_millis(timeout_ms).min(LONGEST);
    tracing::info!(
        ?patience,
        peer,
        "The node is asked for, for its kubelet: nothing is begun from here on"
    );
    let handed_back = pods.guard.hand_over(patience, pods.hands_back_for).await;
    if handed_back.cut_short.is_empty() {
        tracing::info!(peer, "The node is handed back: nothing is under way");
    } else {
        tracing::warn!(
            peer,
            cut_short = handed_back.cut_short.join(", "),
            "The node is handed back in the middle of what was under way: the kubelet may repeat hooks and grace period of such pods"
        );
    }
    json_answer(&handed_back)
}
