//! Answers with the traces of terminations.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    respond::{error, json_answer},
    state::PodsAdmin,
};
use crate::{
    model::{
        termination::Cause,
        trace::{Stage, Trace},
    },
    workers::TraceFilter,
};

/// Path of the list, and of the traces of one pod with its namespace and name, or its UID.
pub const TIMELINES: &str = "/v1/timelines";

/// A termination in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TimelineEntry {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// When the termination began.
    pub began: Timestamp,
    /// Why the pod terminates.
    pub cause: Cause,
    /// Stage of the termination.
    pub stage: Stage,
    /// Only the deletion of the object is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaiting_deletion: bool,
    /// Milliseconds from the beginning until now, or until it finished.
    pub elapsed_ms: u64,
    /// Grace period, in seconds.
    pub grace_seconds: u64,
    /// Number of attempts in this run of the agent.
    pub attempts: u32,
    /// The terminal phase in the API, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

// === impl TimelineEntry ===

impl From<Trace> for TimelineEntry {
    fn from(trace: Trace) -> Self {
        Self {
            namespace: trace.namespace,
            name: trace.name,
            uid: trace.uid,
            began: trace.began,
            cause: trace.cause,
            stage: trace.stage,
            awaiting_deletion: trace.waits_for_deletion,
            elapsed_ms: trace.elapsed_ms,
            grace_seconds: trace.grace_seconds,
            attempts: trace.attempts,
            phase: trace.phase,
        }
    }
}

/// The list, or the traces of one pod. `path` follows [`TIMELINES`].
pub(super) async fn answer(pods: &PodsAdmin, path: &str) -> Response<Full<Bytes>> {
    let filter = filter(path);
    match pods.in_time(pods.workers.traces(filter.clone())).await {
        Err(why) => error(StatusCode::SERVICE_UNAVAILABLE, &why),
        Ok(traces) if filter == TraceFilter::All => {
            json_answer(&traces.into_iter().map(TimelineEntry::from).collect::<Vec<_>>())
        }
        Ok(traces) if traces.is_empty() => error(
            StatusCode::NOT_FOUND,
            &format!(
                "no termination of {} is known; the agent remembers the last 256 since its start",
                path.trim_start_matches('/')
            ),
        ),
        Ok(mut traces) => {
            pods.set_kubelet_grace_periods(&mut traces).await;
            json_answer(&traces)
        }
    }
}

fn filter(path: &str) -> TraceFilter {
    match path.trim_start_matches('/').split_once('/') {
        Some((namespace, name)) => TraceFilter::Name {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        },
        None if path.trim_start_matches('/').is_empty() => TraceFilter::All,
        None => TraceFilter::Uid(path.trim_start_matches('/').into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_selects_all_traces_or_those_of_one_pod() {
        for path in ["", "/"] {
            assert_eq!(filter(path), TraceFilter::All);
        }
        assert_eq!(filter("/u-1"), TraceFilter::Uid("u-1".into()));
        let name = TraceFilter::Name {
            namespace: "ns".to_owned(),
            name: "web".to_owned(),
        };
        assert_eq!(filter("/ns/web"), name);
    }
}
