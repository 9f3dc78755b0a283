//! Pauses and resumes the agent.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    respond::{error, json_answer},
    state::PodsAdmin,
};
use crate::journal::paused::Paused;

/// Path of `pause`.
pub const PAUSE: &str = "/v1/pause";
/// Path of `resume`.
pub const RESUME: &str = "/v1/resume";

/// The result of `pause` or `resume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The pause that is in force or was ended.
    pub paused: Option<Paused>,
    /// Work in progress that has not reached a safe point yet.
    pub in_progress: Vec<String>,
    /// Why a restart would lose the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_durable: Option<String>,
}

/// Starts no work any more.
pub(super) async fn pause(pods: &PodsAdmin, peer: &str) -> Response<Full<Bytes>> {
    let (pods, peer) = (pods.clone(), peer.to_owned());
    uninterrupted(async move {
        let durable = pods.guard.pause(&peer, Timestamp::now()).await;
        tracing::warn!(peer, durable = durable.is_ok(), "Paused: no work is started any more");
        Pause {
            paused: pods.guard.paused(),
            in_progress: pods.guard.work_in_progress(),
            not_durable: durable.err().map(|cause| cause.to_string()),
        }
    })
    .await
}

/// Continues all work.
pub(super) async fn resume(pods: &PodsAdmin, peer: &str) -> Response<Full<Bytes>> {
    let (pods, peer) = (pods.clone(), peer.to_owned());
    uninterrupted(async move {
        let (paused, durable) = pods.guard.resume().await;
        tracing::warn!(
            peer,
            durable = durable.is_ok(),
            was_paused = paused.is_some(),
            "Resumed"
        );
        Pause {
            paused,
            in_progress: Vec::new(),
            not_durable: durable.err().map(|cause| cause.to_string()),
        }
    })
    .await
}

/// A client that disconnects does not interrupt the work.
async fn uninterrupted(work: impl Future<Output = Pause> + Send + 'static) -> Response<Full<Bytes>> {
    match tokio::spawn(work).await {
        Ok(pause) => json_answer(&pause),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
    }
}
