//! Answers what a teardown of a pod would do now. Touches nothing.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;

use super::{
    respond::{error, json_answer},
    state::PodsAdmin,
};
use crate::{api::escape, object_name::ObjectName, teardown::plan::gather::plan_teardown};

/// Path of the query, followed by `?pod=` and a UID or `NAMESPACE/NAME`.
pub const PLAN: &str = "/v1/plan";

/// The path that queries the plan for a pod by its name or UID.
pub fn request_path(pod: &str) -> String {
    format!("{PLAN}?pod={}", escape(pod))
}

pub(super) async fn answer(pods: &PodsAdmin, query: Option<&str>) -> Response<Full<Bytes>> {
    let name = query.and_then(|query| query.strip_prefix("pod=")).unwrap_or_default();
    let name: ObjectName = match percent_decode_str(name).decode_utf8_lossy().parse() {
        Ok(name) => name,
        Err(syntax) => return error(StatusCode::BAD_REQUEST, &format!("the pod {syntax}")),
    };
    let known = match pods.in_time(pods.workers.find_pod(name.clone())).await {
        Ok(known) => known,
        Err(why) => return error(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    match (known, pods.reader.get()) {
        (Some(known), Some(reader)) => {
            let blocked = pods.guard.why_no_new_work().into_iter().collect();
            let terminator = pods.terminated_by().terminator();
            json_answer(&plan_teardown(reader, known.view, terminator, blocked).await)
        }
        (None, _) => error(
            StatusCode::NOT_FOUND,
            "no such pod is known on this node; a pod is named NAMESPACE/NAME or by its UID",
        ),
        (Some(_), None) => error(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent has only just started; ask again",
        ),
    }
}
