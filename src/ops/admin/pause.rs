//! Pauses and resumes the agent.

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
use crate::{cli::MAX_PAUSE, journal::paused::Paused};

/// Path of `pause`.
pub const PAUSE: &str = "/v1/pause";
/// Path of `resume`.
pub const RESUME: &str = "/v1/resume";

/// Maximum length of a reason, in bytes.
const MAX_REASON: usize = 1024;

/// The body of a pause request. An empty body is a pause without a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PauseRequest {
    /// After this time the pause ends by itself, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    /// Reason of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The result of `pause` or `resume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// Starts no work any more, until the end of the pause.
pub(super) async fn pause(pods: &PodsAdmin, body: &[u8], peer: Peer) -> Response<Full<Bytes>> {
    let PauseRequest {
        duration_seconds,
        reason,
    } = match parse(body) {
        Ok(request) => request,
        Err(why) => return error(StatusCode::BAD_REQUEST, &why),
    };
    let pods = pods.clone();
    uninterrupted(async move {
        let limit = duration_seconds.map(Duration::from_secs);
        let durable = pods
            .guard
            .pause(&peer.user(), reason.clone(), limit, &pods.clock.now())
            .await;
        tracing::warn!(
            peer = peer.to_string(),
            reason,
            limit = limit.map(tracing::field::debug),
            durable = durable.is_ok(),
            "Paused: no work is started any more"
        );
        Pause {
            paused: pods.guard.paused(),
            in_progress: pods.guard.work_in_progress(),
            not_durable: durable.err().map(|cause| cause.to_string()),
        }
    })
    .await
}

fn parse(body: &[u8]) -> Result<PauseRequest, String> {
    let request: PauseRequest = match body {
        [] | b"null" => PauseRequest::default(),
        body => serde_json::from_slice(body).map_err(|error| format!("the body is no pause request: {error}"))?,
    };
    let reason = request.reason.filter(|reason| !reason.is_empty());
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON) {
        return Err(format!("reason is longer than {MAX_REASON} bytes"));
    }
    match request.duration_seconds.map(Duration::from_secs) {
        Some(Duration::ZERO) => Err("durationSeconds must be at least 1".to_owned()),
        Some(duration) if duration > MAX_PAUSE => Err(format!(
            "durationSeconds must be at most {} (30 days)",
            MAX_PAUSE.as_secs()
        )),
        Some(_) | None => Ok(PauseRequest { reason, ..request }),
    }
}

/// Continues all work.
pub(super) async fn resume(pods: &PodsAdmin, peer: Peer) -> Response<Full<Bytes>> {
    let pods = pods.clone();
    uninterrupted(async move {
        let (paused, durable) = pods.guard.resume().await;
        tracing::warn!(
            peer = peer.to_string(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_pause_requests_are_parsed_and_others_refused() {
        let request = |duration_seconds, reason: Option<&str>| PauseRequest {
            duration_seconds,
            reason: reason.map(str::to_owned),
        };
        for (body, expected) in [
            ("", request(None, None)),
            ("null", request(None, None)),
            (r#"{"durationSeconds":60,"reason":"x"}"#, request(Some(60), Some("x"))),
            (r#"{"reason":""}"#, request(None, None)),
        ] {
            assert_eq!(parse(body.as_bytes()), Ok(expected), "{body}");
        }
        let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(MAX_REASON + 1));
        for body in [
            r#"{"durationSeconds":0}"#,
            r#"{"durationSeconds":99999999}"#,
            r#"{"for":"2h"}"#,
            "2h",
            &long,
        ] {
            assert!(parse(body.as_bytes()).is_err(), "{body}");
        }
    }
}
