//! Answers why an object still exists: a pod of this node, or an object that the collector knows.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;

use super::{
    respond::{error, json_answer},
    state::{Admin, PodsAdmin},
};
use crate::{
    api::escape,
    explanation::Explanation,
    model::{
        pod::{PodRef, PodView},
        trace::{Stage, Trace},
    },
    object_name::ObjectName,
    ops::why::{combined, explain_mirror_pod, explain_pod},
    teardown::journal::PodJournalExt as _,
};

/// Path of the query, followed by `?of=` and a UID or a name.
pub const WHY: &str = "/v1/why";

/// The path that queries an object.
pub fn request_path(name: &ObjectName) -> String {
    format!("{WHY}?of={}", escape(&name.to_string()))
}

pub(super) async fn answer(admin: &Admin, query: Option<&str>) -> Response<Full<Bytes>> {
    let name = query.and_then(|query| query.strip_prefix("of=")).unwrap_or_default();
    let name: ObjectName = match percent_decode_str(name).decode_utf8_lossy().parse() {
        Ok(name) => name,
        Err(syntax) => return error(StatusCode::BAD_REQUEST, &format!("the object {syntax}")),
    };
    let found = match &admin.pods {
        None => Ok((None, None)),
        Some(pods) => find_pod(pods, &name).await,
    };
    let (pod, known) = match found {
        Ok(found) => found,
        Err(why) => return error(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    let collector = super::collector::why(admin.gc.as_ref(), &name).map_err(|not_found| match &admin.pods {
        None => not_found,
        Some(pods) => known
            .map(|view| format!("{} is on this node, and is not being deleted", label(&view.pod)))
            .or_else(|| begun_before(pods, &name))
            .unwrap_or_else(|| pod_not_found(&name, not_found)),
    });
    match combined(pod, collector) {
        Ok(why) => json_answer(&why),
        Err(not_found) => error(StatusCode::NOT_FOUND, &not_found),
    }
}

/// The explanation of a terminating or mirror pod, else the pod in the API, if it exists.
type PodAnswer = (Option<(Explanation, Stage)>, Option<Arc<PodView>>);

async fn find_pod(pods: &PodsAdmin, name: &ObjectName) -> Result<PodAnswer, String> {
    let trace: Option<Trace> = match (name, name.pod()) {
        (ObjectName::Uid(uid), _) => {
            let record = pods.in_time(pods.workers.trace_recorder(uid.as_str().into())).await?;
            record.map(|record| record.trace())
        }
        (_, Some((namespace, name))) => pods.in_time(pods.workers.traces(namespace, name)).await?.pop(),
        (_, None) => None,
    };
    if let Some(trace) = trace {
        let blocked = pods.guard.why_blocked();
        return Ok((Some((explain_pod(&trace, blocked.as_deref()), trace.stage)), None));
    }
    let known = pods.in_time(pods.workers.active_pod(name.clone())).await?;
    Ok(match known.as_deref().and_then(explain_mirror_pod) {
        Some(why) => (Some((why, Stage::Terminating)), None),
        None => (None, known),
    })
}

fn label(pod: &PodRef) -> String {
    format!("pod {}/{}, uid {},", pod.namespace, pod.name, pod.uid)
}

/// Reports a pod that an earlier run of the agent began to terminate and that this run has not seen yet.
fn begun_before(pods: &PodsAdmin, name: &ObjectName) -> Option<String> {
    let mut unfinished = pods.journal.unfinished().into_iter().map(|view| view.pod);
    let pod = unfinished.find(|pod| name.names(pod))?;
    let blocked = pods.guard.why_blocked().map(|why| format!("; held: {why}"));
    Some(format!(
        "the end of {} was begun before this agent was started, and goes on once the API server has shown it the Node and its \
         pods{}",
        label(&pod),
        blocked.unwrap_or_default()
    ))
}

/// The error for an unknown object that may be a pod of this node. `not_found`: the collector's error.
fn pod_not_found(name: &ObjectName, not_found: String) -> String {
    match name {
        ObjectName::Uid(_) => format!("no teardown of a pod with this UID is known here; {not_found}"),
        _ => match name.pod() {
            Some((namespace, pod)) => format!(
                "no teardown of a pod {namespace}/{pod} is known here, since the agent's start and among the last 256; {not_found}"
            ),
            None if name.is_of_pods() => format!("{not_found}; a pod of this node is named NAMESPACE/NAME"),
            None => not_found,
        },
    }
}
