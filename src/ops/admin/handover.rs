//! Hands the node over to a kubelet that is about to start. The client never prevents that start.

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    respond::{Answer, json_answer, parse},
    state::PodsAdmin,
};
use crate::{
    handover::guard::HandoverResult,
    ops::client::{self, ClientError},
    words::some_of,
};

/// Path of the request.
pub const HANDOVER: &str = "/v1/handover";
/// Maximum timeout of a handover.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// A handover request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoverRequest {
    /// How long terminating pods have to reach a safe point, in milliseconds.
    pub timeout_ms: u64,
}

/// Returns when all pods have reached a safe point, or after the timeout.
pub(super) async fn perform(pods: &PodsAdmin, body: &[u8]) -> Answer {
    let HandoverRequest { timeout_ms } = parse(body)?;
    let timeout = Duration::from_millis(timeout_ms).min(MAX_TIMEOUT);
    tracing::info!(?timeout, "Handover requested: no work is started any more");
    let result = pods.guard.hand_over(timeout, pods.handover_validity).await;
    if result.in_progress.is_empty() {
        tracing::info!("Node is handed over: no work is in progress");
    } else {
        tracing::warn!(
            cut_short = result.in_progress.join(", "),
            "Node is handed over with work in progress: the kubelet may repeat hooks and grace period of these pods"
        );
    }
    json_answer(&result)
}

/// Requests the handover of the agent at this socket, and formats the result.
pub async fn request_handover(socket: &Path, timeout: Duration) -> String {
    let request = HandoverRequest {
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
    };
    text(client::post_with_timeout(socket, HANDOVER, &request, timeout).await)
}

fn text(answer: Result<HandoverResult, ClientError>) -> String {
    match answer {
        Ok(HandoverResult { in_progress }) if in_progress.is_empty() => {
            "The node is handed over: no work is in progress.".to_owned()
        }
        Ok(HandoverResult { in_progress }) => format!(
            "The node is handed over. Not all pods have reached a safe point: {}. The kubelet may repeat their hooks and grace \
             periods.",
            some_of(in_progress)
        ),
        // No agent works on this node's pods.
        Err(error @ (ClientError::NoAgent { .. } | ClientError::Refused(_) | ClientError::Unknown(_))) => {
            format!("There is nothing to hand over: {error}")
        }
        Err(error) => format!("Unknown whether the node is handed over: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_reached_no_safe_point_are_named() {
        assert!(text(Ok(HandoverResult::default())).contains("no work is in progress"));
        let in_progress = vec!["default/web-0".to_owned()];
        assert!(text(Ok(HandoverResult { in_progress })).contains("default/web-0"));
        let refused = ClientError::Refused("this agent takes no pods down".to_owned());
        assert_eq!(
            text(Err(refused)),
            "There is nothing to hand over: this agent takes no pods down"
        );
    }
}
