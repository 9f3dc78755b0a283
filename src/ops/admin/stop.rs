//! Requests to stop a pod, and their outcomes.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{
    respond::{self, Answer, Refused, bad_request, json_answer, not_found},
    state::PodsAdmin,
};
use crate::{
    cli::StopRequest,
    model::{
        termination::{Eviction, is_reason},
        trace::Trace,
    },
    object_name::ObjectName,
    workers::stop::{PodStop, StopAccepted, StopRejected},
};

/// Path of requests, followed by the namespace and the name or by the UID, and by `/stop`.
pub const PODS: &str = "/v1/pods";
/// Path of outcomes with its last slash, followed by the UID.
pub const OUTCOMES: &str = "/v1/outcomes/";
/// Maximum wait for an outcome.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The outcome of a request so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StopOutcome {
    /// No container runs, and the API server shows that or the object is deleted.
    pub terminated: bool,
    /// The trace of the termination.
    pub trace: Trace,
}

/// The pod in the path of a request: namespace and name, or no namespace and the UID.
fn target(path: &str) -> Option<(Option<&str>, &str)> {
    let pod = path.strip_prefix(PODS)?.strip_prefix('/')?.strip_suffix("/stop")?;
    match pod.split_once('/') {
        Some((_, name)) if name.contains('/') => None,
        Some((namespace, name)) => Some((Some(namespace), name)),
        None => Some((None, pod)),
    }
}

/// Performs a request.
pub(super) async fn request(pods: &PodsAdmin, path: &str, body: &[u8]) -> Answer {
    let target = target(path).ok_or_else(|| {
        not_found(
            "POST is answered at /v1/pods/NAMESPACE/NAME/stop, /v1/pods/UID/stop, /v1/approve, /v1/handover, /v1/pause and \
             /v1/resume",
        )
    })?;
    let request = parse(body)?;
    let stop = match target {
        (Some(namespace), name) => PodStop {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..request
        },
        (None, uid) => find(pods, uid, request).await?,
    };
    let (namespace, name) = (stop.namespace.clone(), stop.name.clone());
    // Logged first, because the agent may crash at any moment.
    tracing::info!(
        pod.uid = stop.uid,
        pod.namespace = namespace,
        pod.name = name,
        reason = stop.eviction.as_ref().map(|eviction| eviction.reason.as_str()),
        grace_period_seconds = stop.grace,
        "Pod stop requested"
    );
    let unanswered = |Refused(code, why)| {
        let why = format!("the termination of {namespace}/{name} is not started: {why}");
        Refused(code, why)
    };
    let answer = pods.ask(|pods| pods.stop_pod(stop)).await.map_err(unanswered)?;
    let granted = answer.map_err(|why| Refused(code_of(&why), why.to_string()))?;
    let uid = &granted.uid;
    // After a crash only the journal knows the request.
    let durable = pods.journal.durable().await;
    if let Err(error) = &durable {
        tracing::error!(pod.uid = uid, pod.namespace = namespace, pod.name = name, %error, "Pod stop request is granted but not durable: a crash would lose it");
    }
    // A request that changes nothing cannot be lost.
    let lost = durable.err().filter(|_| !granted.already_terminated);
    tracing::info!(
        pod.uid = uid,
        pod.namespace = namespace,
        pod.name = name,
        grace_period_seconds = granted.grace_period_seconds,
        already_terminated = granted.already_terminated,
        "Pod stop request granted"
    );
    json_answer(&StopAccepted {
        not_durable: lost.map(|cause| cause.to_string()),
        ..granted
    })
}

/// Completes a request for the pod with this UID.
async fn find(pods: &PodsAdmin, uid: &str, request: PodStop) -> Result<PodStop, Refused> {
    if request.uid.as_deref().is_some_and(|expected| expected != uid) {
        return Err(bad_request("the path and the body have different UIDs"));
    }
    let name = ObjectName::Uid(uid.to_owned());
    let known = pods.ask(move |pods| pods.find_pod(&name)).await?;
    let (view, _) = known.ok_or_else(|| not_found(StopRejected::Unknown(format!("with UID {uid}")).to_string()))?;
    Ok(PodStop {
        namespace: view.pod.namespace.to_string(),
        name: view.pod.name.to_string(),
        uid: Some(uid.to_owned()),
        ..request
    })
}

fn code_of(why: &StopRejected) -> StatusCode {
    match why {
        StopRejected::Unknown(_) => StatusCode::NOT_FOUND,
        StopRejected::OtherUid(..) | StopRejected::Several(..) | StopRejected::Mirror(_) => StatusCode::CONFLICT,
        StopRejected::Blocked(..) | StopRejected::Stopping(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Parses the body of a request. The name of the pod is missing.
fn parse(body: &[u8]) -> Result<PodStop, Refused> {
    let request: StopRequest = respond::parse_or_default(body)?;
    if request.grace_period_seconds.is_some_and(|grace| grace < 0) {
        return Err(bad_request("gracePeriodSeconds must not be negative"));
    }
    let eviction = match (request.reason, request.message) {
        (None, None) => None,
        (reason, message) => {
            let reason = reason.filter(|reason| is_reason(reason)).ok_or_else(|| {
                bad_request("a failed pod needs a reason: one word of letters and digits, such as Evicted")
            })?;
            let message = message.filter(|message| !message.is_empty());
            let message = message.ok_or_else(|| bad_request("a failed pod needs a message that says why"))?;
            Some(Eviction {
                reason,
                disruption: Some(message.clone()),
                message,
            })
        }
    };
    Ok(PodStop {
        namespace: String::new(),
        name: String::new(),
        uid: request.uid,
        grace: request.grace_period_seconds,
        eviction,
    })
}

/// Waits until the pod has terminated and the API server shows it, or until the time of the query is over.
pub(super) async fn outcome(pods: &PodsAdmin, uid: &str, query: Option<&str>) -> Answer {
    let seconds = query.and_then(|query| query.strip_prefix("wait=")?.parse().ok());
    let wait = Duration::from_secs(seconds.unwrap_or(0)).min(MAX_WAIT);
    let asked = uid.into();
    let record = pods.ask(move |pods| pods.trace_recorder(&asked)).await?;
    let record = record.ok_or_else(|| not_found(format!("no teardown of a pod with UID {uid} is remembered")))?;
    timeout(wait, record.wait_until_terminated()).await.ok();
    json_answer(&StopOutcome {
        terminated: record.has_terminated(),
        trace: record.trace(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_requests_are_parsed_and_others_refused() {
        let plain = parse(br#"{"uid":"u","gracePeriodSeconds":5}"#).unwrap();
        assert_eq!(
            (plain.uid.as_deref(), plain.grace, plain.eviction),
            (Some("u"), Some(5), None)
        );
        assert_eq!(parse(b"").unwrap().grace, None);
        let failed = parse(br#"{"reason":"Evicted","message":"disk full"}"#).unwrap();
        let eviction = failed.eviction.unwrap();
        assert_eq!(
            (&*eviction.reason, eviction.disruption.as_deref()),
            ("Evicted", Some("disk full"))
        );
        for body in [
            "no json",
            r#"{"gracePeriodSeconds":-1}"#,
            r#"{"graceperiod":1}"#,
            r#"{"reason":"no word","message":"m"}"#,
            r#"{"reason":"Evicted"}"#,
            r#"{"message":"disk full"}"#,
        ] {
            assert!(parse(body.as_bytes()).is_err(), "{body}");
        }
        assert_eq!(target("/v1/pods/ns/web/stop"), Some((Some("ns"), "web")));
        assert_eq!(target("/v1/pods/1-2/stop"), Some((None, "1-2")));
        for path in [
            "/v1/pods/ns/web",
            "/v1/pods/stop",
            "/v1/pods/ns/web/stop/more",
            "/v1/pods/a/b/c/stop",
            "/v1/pods/ns/web/delete",
            "/v1/other",
        ] {
            assert!(target(path).is_none(), "{path}");
        }
    }
}
