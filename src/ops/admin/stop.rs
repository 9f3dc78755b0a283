//! Requests to end a pod, and the wait for what becomes of one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{PodsAdmin, error, json_answer};
use crate::{
    model::{
        termination::{Eviction, is_reason},
        trace::Trace,
    },
    trace_recorder::TraceRecorder,
    workers::kill::{Kill, Refused},
};

/// Where a request goes, with namespace, name and verb behind it.
pub const PODS: &str = "/v1/pods";
/// Where the outcome is asked for, with the UID behind it.
pub const OUTCOMES: &str = "/v1/outcomes";
/// The longest wait for an outcome; whoever asks may ask again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopRequest {
    /// Only the pod of this UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The grace period instead of the pod's own, in seconds; of a pod that ends it only shortens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// Of an eviction: what the status gives as reason, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of an eviction: why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How far a pod's end has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopOutcome {
    /// Nothing of it runs any more, and the API server shows that, or has no such object any more.
    pub ended: bool,
    /// How that came.
    pub story: Trace,
}

/// A request as its path says it: namespace, name, and whether it is an eviction.
pub(super) fn target(path: &str) -> Option<(&str, &str, bool)> {
    let mut parts = path.strip_prefix(PODS)?.strip_prefix('/')?.split('/');
    let (namespace, name, verb) = (parts.next()?, parts.next()?, parts.next()?);
    match (verb, parts.next()) {
        ("kill", None) => Some((namespace, name, false)),
        ("evict", None) => Some((namespace, name, true)),
        _ => None,
    }
}

/// Does what is asked, and says of which pod.
pub(super) async fn request(pods: &PodsAdmin, path: &str, body: &[u8], peer: &str) -> Response<Full<Bytes>> {
    let Some((namespace, name, evict)) = target(path) else {
        return error(
            StatusCode::NOT_FOUND,
            "POST is answered at /v1/pods/NAMESPACE/NAME/kill, /v1/pods/NAMESPACE/NAME/evict, /v1/release, /v1/hand-back, \
             /v1/pause and /v1/resume",
        );
    };
    let kill = match kill(namespace, name, evict, body) {
        Ok(kill) => kill,
        Err(why) => return error(StatusCode::BAD_REQUEST, &why),
    };
    // Before anything is done: whoever asks may hang up at any moment, and so may the agent's process.
    tracing::info!(
        pod.uid = kill.uid,
        pod.namespace = namespace,
        pod.name = name,
        peer,
        evict,
        reason = kill.imposed.as_ref().map(|imposed| imposed.reason.as_str()),
        grace_seconds = kill.grace,
        "Somebody asks for the end of a pod"
    );
    // Whoever hangs up does not interrupt it, so that what becomes of it is logged.
    let granting = tokio::spawn(grant(pods.clone(), kill, peer.to_owned()));
    granting
        .await
        .unwrap_or_else(|cause| error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()))
}

async fn grant(pods: PodsAdmin, kill: Kill, peer: String) -> Response<Full<Bytes>> {
    let (namespace, name, evict) = (kill.namespace.clone(), kill.name.clone(), kill.imposed.is_some());
    let refused = |code, why: String| {
        tracing::warn!(pod.namespace = namespace, pod.name = name, peer, evict, %why, "A request to end a pod is refused");
        error(code, &why)
    };
    match pods.in_time(pods.workers.kill(kill)).await {
        Ok(Ok(granted)) => {
            let uid = &granted.uid;
            // Nobody but the journal tells an agent after a crash what was promised here.
            if let Err(error) = pods.journal.durable().await {
                tracing::error!(pod.uid = uid, pod.namespace = namespace, pod.name = name, %error, "The end of a pod is granted, and would be forgotten in a crash");
            }
            tracing::info!(
                pod.uid = uid,
                pod.namespace = namespace,
                pod.name = name,
                peer,
                evict,
                grace_seconds = granted.grace_seconds,
                ended_already = granted.ended_already,
                "A request to end a pod is granted"
            );
            json_answer(&granted)
        }
        Ok(Err(why)) => {
            let code = match &why {
                Refused::Unknown(_) => StatusCode::NOT_FOUND,
                Refused::OtherUid { .. } | Refused::Several { .. } | Refused::Mirror(_) => StatusCode::CONFLICT,
                Refused::Held { .. } | Refused::LeftToKubelet { .. } | Refused::Stopping(_) => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
            };
            refused(code, why.to_string())
        }
        Err(why) => {
            let why = format!("the end of {namespace}/{name} is not begun: {why}");
            refused(StatusCode::SERVICE_UNAVAILABLE, why)
        }
    }
}

fn kill(namespace: &str, name: &str, evict: bool, body: &[u8]) -> Result<Kill, String> {
    let ask: StopRequest = match body {
        [] => StopRequest::default(),
        body => serde_json::from_slice(body).map_err(|error| format!("the body is no request: {error}"))?,
    };
    if ask.grace_seconds.is_some_and(|grace| grace < 0) {
        return Err("graceSeconds must not be negative".to_owned());
    }
    let imposed = match (evict, ask.reason, ask.message) {
        (false, None, None) => None,
        (false, ..) => return Err("reason and message are for an eviction: ask at …/evict".to_owned()),
        (true, reason, message) => {
            let reason = reason.filter(|reason| is_reason(reason));
            let reason = reason.ok_or("an eviction needs a reason: one word of letters and digits, such as Evicted")?;
            let message = message.filter(|message| !message.is_empty());
            let message = message.ok_or("an eviction needs a message that says why")?;
            Some(Eviction {
                reason,
                disruption: Some(message.clone()),
                message,
            })
        }
    };
    Ok(Kill {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: ask.uid,
        grace: ask.grace_seconds,
        imposed,
    })
}

/// Waits until the pod has ended and the API server shows it, or for as long as was asked for.
pub(super) async fn outcome(pods: &PodsAdmin, uid: &str, query: Option<&str>) -> Response<Full<Bytes>> {
    let seconds = query.and_then(|query| query.strip_prefix("wait=")?.parse().ok());
    let wait = Duration::from_secs(seconds.unwrap_or(0)).min(LONGEST_WAIT);
    let record = match pods.in_time(pods.workers.record(uid.into())).await {
        Ok(Some(record)) => record,
        Ok(None) => {
            return error(
                StatusCode::NOT_FOUND,
                &format!("no teardown of a pod with UID {uid} is remembered"),
            );
        }
        Err(why) => return error(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    // Also what has not come so far is an answer.
    timeout(wait, record.wait_until_ended()).await.ok();
    json_answer(&told(&record))
}

fn told(record: &Arc<TraceRecorder>) -> StopOutcome {
    StopOutcome {
        ended: record.has_ended(),
        story: record.trace(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, body: &str) -> Result<Kill, String> {
        let (namespace, name, evict) = target(path).unwrap();
        kill(namespace, name, evict, body.as_bytes())
    }

    #[test]
    fn a_request_is_understood_or_told_what_is_wrong_with_it() {
        let plain = asked("/v1/pods/ns/web/kill", r#"{"uid":"u","graceSeconds":5}"#).unwrap();
        assert_eq!(
            (plain.uid.as_deref(), plain.grace, plain.imposed),
            (Some("u"), Some(5), None)
        );
        assert_eq!(asked("/v1/pods/ns/web/kill", "").unwrap().grace, None);
        let evict = asked("/v1/pods/ns/web/evict", r#"{"reason":"Evicted","message":"disk full"}"#).unwrap();
        let imposed = evict.imposed.unwrap();
        assert_eq!(
            (&*imposed.reason, imposed.disruption.as_deref()),
            ("Evicted", Some("disk full"))
        );
        for (path, body) in [
            ("/v1/pods/ns/web/kill", "no json"),
            ("/v1/pods/ns/web/kill", r#"{"graceSeconds":-1}"#),
            ("/v1/pods/ns/web/kill", r#"{"graceperiod":1}"#),
            ("/v1/pods/ns/web/kill", r#"{"reason":"Evicted","message":"disk full"}"#),
            ("/v1/pods/ns/web/evict", "{}"),
            ("/v1/pods/ns/web/evict", r#"{"reason":"no word","message":"m"}"#),
            ("/v1/pods/ns/web/evict", r#"{"reason":"Evicted"}"#),
        ] {
            assert!(asked(path, body).is_err(), "{path} {body}");
        }
        for path in [
            "/v1/pods/ns/web",
            "/v1/pods/ns/web/kill/more",
            "/v1/pods/ns/web/delete",
            "/v1/other",
        ] {
            assert!(target(path).is_none(), "{path}");
        }
    }
}
