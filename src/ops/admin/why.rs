//! Why an object is still there: a pod of this node, or any object that the collector knows.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;

use super::{Admin, PodsAdmin, error, json_answer};
use crate::{
    api::escape,
    explanation::Explanation,
    model::{
        pod::{PodRef, PodView},
        trace::{Stage, Trace},
    },
    object_name::ObjectName,
    ops::why::{joined, of_mirror, of_pod},
    teardown::journal::PodJournalExt as _,
};

/// Where it is asked, with `?of=` and a UID or a name behind it.
pub const WHY: &str = "/v1/why";

/// The question why an object is still there.
pub fn question(name: &ObjectName) -> String {
    format!("{WHY}?of={}", escape(&name.to_string()))
}

pub(super) async fn answer(admin: &Admin, query: Option<&str>) -> Response<Full<Bytes>> {
    let name = query.and_then(|query| query.strip_prefix("of=")).unwrap_or_default();
    let name: ObjectName = match percent_decode_str(name).decode_utf8_lossy().parse() {
        Ok(name) => name,
        Err(how) => return error(StatusCode::BAD_REQUEST, &format!("the object {how}")),
    };
    let found = match &admin.pods {
        None => Ok((None, None)),
        Some(pods) => of_this_node(pods, &name).await,
    };
    let (pod, living) = match found {
        Ok(found) => found,
        Err(why) => return error(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    let collector = super::collector::why(admin.gc.as_ref(), &name).map_err(|nothing| match &admin.pods {
        None => nothing,
        Some(pods) => living
            .map(|view| format!("{} is on this node, and is not being deleted", called(&view.pod)))
            .or_else(|| begun_before(pods, &name))
            .unwrap_or_else(|| no_pod(&name, nothing)),
    });
    match joined(pod, collector) {
        Ok(why) => json_answer(&why),
        Err(nothing) => error(StatusCode::NOT_FOUND, &nothing),
    }
}

/// What is known of such a pod, if it ends or is a mirror, and else what the API server shows of it, if there is one.
type Found = (Option<(Explanation, Stage)>, Option<Arc<PodView>>);

async fn of_this_node(pods: &PodsAdmin, name: &ObjectName) -> Result<Found, String> {
    let story: Option<Trace> = match (name, name.pod()) {
        (ObjectName::Uid(uid), _) => {
            let record = pods.in_time(pods.workers.record(uid.as_str().into())).await?;
            record.map(|record| record.trace())
        }
        (_, Some((namespace, name))) => pods.in_time(pods.workers.stories(namespace, name)).await?.pop(),
        (_, None) => None,
    };
    if let Some(story) = story {
        let held = pods.guard.why_blocked();
        return Ok((Some((of_pod(&story, held.as_deref()), story.stage)), None));
    }
    let living = pods.in_time(pods.workers.living(name.clone())).await?;
    Ok(match living.as_deref().and_then(of_mirror) {
        Some(why) => (Some((why, Stage::Terminating)), None),
        None => (None, living),
    })
}

fn called(pod: &PodRef) -> String {
    format!("pod {}/{}, uid {},", pod.namespace, pod.name, pod.uid)
}

/// What is said of a pod whose end an earlier run of this agent began, before this run has been shown it.
fn begun_before(pods: &PodsAdmin, name: &ObjectName) -> Option<String> {
    let mut unfinished = pods.journal.unfinished().into_iter().map(|view| view.pod);
    let pod = unfinished.find(|pod| name.names(pod))?;
    let held = pods.guard.why_blocked().map(|why| format!("; held: {why}"));
    Some(format!(
        "the end of {} was begun before this agent was started, and goes on once the API server has shown it the Node and its \
         pods{}",
        called(&pod),
        held.unwrap_or_default()
    ))
}

/// What is said where a pod of this node may have been meant, with what the collector says.
fn no_pod(name: &ObjectName, nothing: String) -> String {
    match name {
        ObjectName::Uid(_) => format!("no teardown of a pod with this UID is known here; {nothing}"),
        _ => match name.pod() {
            Some((namespace, pod)) => format!(
                "no teardown of a pod {namespace}/{pod} is known here, since the agent's start and among the last 256; {nothing}"
            ),
            None if name.is_of_pods() => format!("{nothing}; a pod of this node is named NAMESPACE/NAME"),
            None => nothing,
        },
    }
}
