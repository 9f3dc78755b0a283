//! Answers what a teardown of a pod would do now. Touches nothing.

use super::{
    respond::{Answer, json_answer, name, not_found, unavailable},
    state::PodsAdmin,
};
use crate::{api::escape, node::effects::Gate as _, teardown::plan::plan_teardown};

/// Path of the query, followed by `?pod=` and a UID or `NAMESPACE/NAME`.
pub(super) const PLAN: &str = "/v1/plan";

/// The path that queries the plan for a pod by its name or UID.
pub fn request_path(pod: &str) -> String {
    format!("{PLAN}?pod={}", escape(pod))
}

pub(super) async fn answer(pods: &PodsAdmin, query: Option<&str>) -> Answer {
    let name = name(query, "pod", "pod")?;
    let known = pods.ask(move |pods| pods.find_pod(&name)).await?;
    let (view, _) = known
        .ok_or_else(|| not_found("no such pod is known on this node; a pod is named NAMESPACE/NAME or by its UID"))?;
    let reader = pods.reader.get();
    let reader = reader.ok_or_else(|| unavailable("the agent has only just started; ask again"))?;
    let blocked = pods.guard.check_new().err().iter().map(ToString::to_string).collect();
    let terminator = pods.terminated_by().terminator();
    json_answer(&plan_teardown(reader, view, terminator, blocked).await)
}
