//! Pauses the agent, and resumes.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{PodsAdmin, error, json_answer};
use crate::journal::paused::Paused;

/// Where a pause is asked for.
pub const PAUSE: &str = "/v1/pause";
/// Where its end is.
pub const RESUME: &str = "/v1/resume";

/// What came of either.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The pause that begins, goes on, or has ended.
    pub paused: Option<Paused>,
    /// What was begun before, and comes to a safe point yet.
    pub under_way: Vec<String>,
    /// Why a restart would not know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_durable: Option<String>,
}

/// Nothing is begun from here on.
pub(super) async fn pause(pods: &PodsAdmin, peer: &str) -> Response<Full<Bytes>> {
    let (pods, peer) = (pods.clone(), peer.to_owned());
    in_any_case(async move {
        let durable = pods.guard.pause(&peer, Timestamp::now()).await;
        tracing::warn!(peer, durable = durable.is_ok(), "Paused: nothing is begun from here on");
        Pause {
            paused: pods.guard.paused(),
            under_way: pods.guard.work_in_progress(),
            not_durable: durable.err().map(|cause| cause.to_string()),
        }
    })
    .await
}

/// All that waits is begun.
pub(super) async fn resume(pods: &PodsAdmin, peer: &str) -> Response<Full<Bytes>> {
    let (pods, peer) = (pods.clone(), peer.to_owned());
    in_any_case(async move {
        let (paused, durable) = pods.guard.resume().await;
        tracing::warn!(
            peer,
            durable = durable.is_ok(),
            was_paused = paused.is_some(),
            "Resumed"
        );
        Pause {
            paused,
            under_way: Vec::new(),
            not_durable: durable.err().map(|cause| cause.to_string()),
        }
    })
    .await
}

/// Whoever hangs up does not interrupt it.
async fn in_any_case(work: impl Future<Output = Pause> + Send + 'static) -> Response<Full<Bytes>> {
    match tokio::spawn(work).await {
        Ok(done) => json_answer(&done),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
    }
}
