//! Answers with the traces of terminations.

use super::{
    respond::{Answer, json_answer, not_found},
    state::PodsAdmin,
};
use crate::object_name::ObjectName;

/// Path of the list, and of the traces of one pod with its namespace and name, or its UID.
pub const TIMELINES: &str = "/v1/timelines";

/// The list, or the traces of one pod. `path` follows [`TIMELINES`].
pub(super) async fn answer(pods: &PodsAdmin, path: &str) -> Answer {
    let path = path.trim_start_matches('/');
    let name = match path {
        "" => None,
        path => Some(path.parse::<ObjectName>().map_err(not_found)?),
    };
    let is_list = name.is_none();
    let mut traces = pods.ask(move |pods| pods.traces(name.as_ref())).await?;
    if is_list {
        // The list has no details.
        for trace in &mut traces {
            trace.spans.clear();
            trace.blocked.clear();
        }
        return json_answer(&traces);
    }
    if traces.is_empty() {
        return Err(not_found(format!(
            "no termination of {path} is known; the agent remembers the last 256 since its start"
        )));
    }
    json_answer(&traces)
}
