//! `handover`: requests the handover of the node to a kubelet that is about to start. It never prevents that start.

use std::{path::Path, time::Duration};

use super::{
    admin::handover::{HANDOVER, HandoverRequest},
    client::{self, ClientError},
};
use crate::{handover::guard::work::HandoverResult, words::some_of};

/// Requests the handover and formats the result.
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
        Err(error @ ClientError::NoAgent { .. } | error @ (ClientError::Refused(_) | ClientError::Unknown(_))) => {
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
