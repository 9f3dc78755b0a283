//! Pauses and resumes the agent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    respond::{self, Answer, Refused, bad_request, json_answer},
    state::PodsAdmin,
};
use crate::{
    cli::{MAX_PAUSE, PauseRequest},
    model::pause::Paused,
    ops::output::loss,
    words::some_of,
};

/// Path of `pause`.
pub const PAUSE: &str = "/v1/pause";
/// Path of `resume`.
pub const RESUME: &str = "/v1/resume";
/// What a restart may lose.
const CHANGE: &str = "this change";

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
pub(super) async fn pause(pods: &PodsAdmin, body: &[u8], user: &str) -> Answer {
    let request = parse(body)?;
    let (reason, limit) = (request.reason, request.duration_seconds.map(Duration::from_secs));
    let durable = pods.guard.pause(user, reason.clone(), limit, &pods.clock.now()).await;
    tracing::warn!(
        reason,
        limit = limit.map(tracing::field::debug),
        durable = durable.is_ok(),
        "Paused: no work is started any more"
    );
    json_answer(&Pause {
        paused: pods.guard.paused(),
        in_progress: pods.guard.work.names(),
        not_durable: durable.err().map(|cause| cause.to_string()),
    })
}

fn parse(body: &[u8]) -> Result<PauseRequest, Refused> {
    let request: Option<PauseRequest> = respond::parse_or_default(body)?;
    let request = request.unwrap_or_default();
    match request.duration_seconds.map(Duration::from_secs) {
        Some(Duration::ZERO) => Err(bad_request("durationSeconds must be at least 1")),
        Some(duration) if duration > MAX_PAUSE => Err(bad_request(format!(
            "durationSeconds must be at most {} (30 days)",
            MAX_PAUSE.as_secs()
        ))),
        Some(_) | None => Ok(PauseRequest {
            reason: respond::reason(request.reason)?,
            ..request
        }),
    }
}

/// Continues all work.
pub(super) async fn resume(pods: &PodsAdmin) -> Answer {
    let (paused, durable) = pods.guard.resume().await;
    tracing::warn!(durable = durable.is_ok(), was_paused = paused.is_some(), "Resumed");
    json_answer(&Pause {
        paused,
        in_progress: Vec::new(),
        not_durable: durable.err().map(|cause| cause.to_string()),
    })
}

/// Formats the result of `pause`.
pub fn paused(pause: &Pause) -> String {
    let paused = pause.paused.as_ref();
    let paused = paused.map_or_else(|| "the agent is not paused".to_owned(), Paused::why);
    let progress = match pause.in_progress.as_slice() {
        [] => "no pod is in progress".to_owned(),
        pods => format!("in progress, up to a safe point: {}", some_of(pods.iter().cloned())),
    };
    let lost = loss(CHANGE, pause.not_durable.as_ref());
    format!("No work starts on this node: {paused}; {progress}{lost}.")
}

/// Formats the result of `resume`.
pub fn resumed(pause: &Pause) -> String {
    let text = match &pause.paused {
        Some(paused) => format!("Waiting work continues; the agent was paused {}", paused.beginning()),
        None => "The agent was not paused".to_owned(),
    };
    format!("{text}{}.", loss(CHANGE, pause.not_durable.as_ref()))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

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
            assert_eq!(parse(body.as_bytes()).unwrap(), expected, "{body}");
        }
        let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(1025));
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

    #[test]
    fn result_of_resume_names_no_end_of_the_pause() {
        let paused = Paused {
            since: Timestamp::UNIX_EPOCH,
            by: "root".to_owned(),
            reason: None,
            until: Timestamp::from_second(7200).ok(),
        };
        let pause = Pause {
            paused: Some(paused),
            ..Pause::default()
        };
        assert_eq!(
            resumed(&pause),
            "Waiting work continues; the agent was paused since 1970-01-01T00:00:00Z by root."
        );
    }
}
