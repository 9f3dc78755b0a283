//! Answers why an object still exists: a pod of this node, or an object that the collector knows.

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
    handover::report::RoleReport,
    model::{
        pod::PodRef,
        trace::{Stage, Trace},
    },
    object_name::ObjectName,
    ops::why::{causes_of_finalizers, combined, explain_by_causes, explain_mirror_pod, explain_pod, rank},
    teardown::{
        diagnosis::{diagnose, facts::TerminatedBy, gather::gather},
        journal::PodJournalExt as _,
    },
    watch::SourceState,
    workers::{KnownPod, TraceFilter},
};

/// Path of the query, followed by `?of=` and a UID or a name.
pub const WHY: &str = "/v1/why";

/// The path that queries an object by its name or UID.
pub fn request_path(object: &str) -> String {
    format!("{WHY}?of={}", escape(object))
}

pub(super) async fn answer(admin: &Admin, query: Option<&str>) -> Response<Full<Bytes>> {
    let name = query.and_then(|query| query.strip_prefix("of=")).unwrap_or_default();
    let name: ObjectName = match percent_decode_str(name).decode_utf8_lossy().parse() {
        Ok(name) => name,
        Err(syntax) => return error(StatusCode::BAD_REQUEST, &format!("the object {syntax}")),
    };
    let found = match &admin.pods {
        None => Ok(None),
        Some(pods) => explain(pods, &name).await,
    };
    let pod = match found {
        Ok(found) => found,
        Err(why) => return error(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    let collector = super::collector::why(admin.gc.as_ref(), &name).map_err(|not_found| match &admin.pods {
        None if name.pod().is_some() => (
            StatusCode::NOT_FOUND,
            format!("this agent takes no pods down: it runs with --mode never; {not_found}"),
        ),
        None => (StatusCode::NOT_FOUND, not_found),
        Some(pods) => match begun_before(pods, &name) {
            Some(begun) => (StatusCode::SERVICE_UNAVAILABLE, begun),
            None => {
                let collector = admin.gc.is_some().then_some(not_found);
                (unknown_pod_status(pods, &name), pod_not_found(&name, collector))
            }
        },
    });
    match combined(pod, collector) {
        Ok(why) => json_answer(&why),
        Err((status, why)) => error(status, &why),
    }
}

/// Explains a pod of this node; `None` if it is not known. The trace of a pod that this agent terminates comes first; else the
/// node is read.
async fn explain(pods: &PodsAdmin, name: &ObjectName) -> Result<Option<(Explanation, Stage)>, String> {
    let known = pods.in_time(pods.workers.find_pod(name.clone())).await?;
    let Some(KnownPod { view, trace }) = known else {
        return Ok(finished(pods, name).await?.map(|trace| explain_trace(pods, &trace)));
    };
    if let Some(why) = explain_mirror_pod(&view) {
        return Ok(Some((why, Stage::Terminating)));
    }
    let trace = trace.map(|record| record.trace());
    let terminated_by = pods.terminated_by();
    let own = trace.as_ref().filter(|_| terminated_by == TerminatedBy::Agent);
    if let Some(trace) = own.filter(|trace| trace.stage == Stage::Finished) {
        return Ok(Some(explain_trace(pods, trace)));
    }
    let Some(reader) = pods.reader.get() else {
        return Ok(trace.map(|trace| explain_trace(pods, &trace)));
    };
    let mut facts = gather(reader, view, terminated_by).await;
    let kill_in_ms = own.and_then(|trace| trace.kill_in_ms);
    facts.kill_in_seconds = kill_in_ms.map(|ms| ms.div_ceil(1000));
    let now = reader.node.clock.wall().now();
    let causes = diagnose(&facts, now);
    Ok(Some(match own {
        Some(trace) => {
            let (mut why, stage) = explain_trace(pods, trace);
            let role = pods.role.as_ref().map(|role| role.borrow().clone());
            if let (Some(failing), [pod, ..]) = (
                role.as_ref().and_then(RoleReport::between_starts_of),
                why.objects.as_mut_slice(),
            ) {
                let starts = failing.starts_in(now);
                let between = format!("this agent terminates it between the starts of a failing kubelet: {starts}");
                pod.facts.push(pods.with_kubelet_unit(&between));
            }
            let causes = rank(why.causes, causes);
            (Explanation { causes, ..why }, stage)
        }
        None => (explain_by_causes(&facts, trace.as_ref(), causes), Stage::Terminating),
    }))
}

fn explain_trace(pods: &PodsAdmin, trace: &Trace) -> (Explanation, Stage) {
    let why = explain_pod(trace, pods.guard.why_blocked().as_deref());
    let causes = match trace.stage {
        Stage::Finished => causes_of_finalizers(trace),
        Stage::Terminating | Stage::Terminated | Stage::Deleted => why.causes,
    };
    (Explanation { causes, ..why }, trace.stage)
}

/// The last trace of a pod whose object is deleted.
async fn finished(pods: &PodsAdmin, name: &ObjectName) -> Result<Option<Trace>, String> {
    Ok(match (name, name.pod()) {
        (ObjectName::Uid(uid), _) => {
            let record = pods.in_time(pods.workers.trace_recorder(uid.as_str().into())).await?;
            record.map(|record| record.trace())
        }
        (_, Some((namespace, name))) => {
            let filter = TraceFilter::Name {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            pods.in_time(pods.workers.traces(filter)).await?.pop()
        }
        (_, None) => None,
    })
}

/// A pod is not called unknown before its node's pods were listed: a client may take it for deleted.
fn unknown_pod_status(pods: &PodsAdmin, name: &ObjectName) -> StatusCode {
    let may_be_pod = matches!(name, ObjectName::Uid(_)) || name.pod().is_some();
    match pods.watch.borrow().state {
        SourceState::Connecting if may_be_pod => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::NOT_FOUND,
    }
}

fn label(pod: &PodRef) -> String {
    format!("pod {}/{}, uid {},", pod.namespace, pod.name, pod.uid)
}

/// Reports a pod that an earlier run of the agent began to terminate and that this run has not seen yet.
fn begun_before(pods: &PodsAdmin, name: &ObjectName) -> Option<String> {
    let mut unfinished = pods.journal.unfinished().into_iter().map(|view| view.pod);
    let pod = unfinished.find(|pod| name.names(pod))?;
    let blocked = pods.guard.why_blocked().map(|why| format!("; blocked: {why}"));
    Some(format!(
        "an earlier run of the agent began to terminate {} and this run continues after the first list of this node's pods{}",
        label(&pod),
        blocked.unwrap_or_default()
    ))
}

/// The error for an unknown object that may be a pod of this node. `collector`: the error of the collector, if this agent has one.
fn pod_not_found(name: &ObjectName, collector: Option<String>) -> String {
    let on_node = match name {
        ObjectName::Uid(_) => "no pod with this UID on this node".to_owned(),
        ObjectName::Named { .. } => match name.pod() {
            Some((namespace, pod)) => {
                format!("no pod {namespace}/{pod} on this node; a pod of another namespace is named NAMESPACE/NAME")
            }
            None if name.is_of_pods() => "a pod of this node is named NAMESPACE/NAME".to_owned(),
            None => "this agent knows only pods: it has no collector".to_owned(),
        },
    };
    match (
        collector,
        name.pod().is_some() || name.is_of_pods() || matches!(name, ObjectName::Uid(_)),
    ) {
        (Some(collector), true) => format!("{on_node}; {collector}"),
        (Some(collector), false) => collector,
        (None, _) => on_node,
    }
}
