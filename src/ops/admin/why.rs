//! Answers why an object still exists: a pod of this node, or an object that the collector knows.

use super::{
    respond::{self, Answer, Refused, json_answer, not_found, unavailable},
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
    node::effects::Gate as _,
    object_name::ObjectName,
    ops::why::{causes_of_finalizers, combined, explain_by_causes, explain_pod, rank},
    teardown::diagnosis::{diagnose, facts::TerminatedBy, gather::gather},
    watch::SourceState,
};

/// Path of the query, followed by `?of=` and a UID or a name.
pub const WHY: &str = "/v1/why";

/// The path that queries an object by its name or UID.
pub fn request_path(object: &str) -> String {
    format!("{WHY}?of={}", escape(object))
}

pub(super) async fn answer(admin: &Admin, query: Option<&str>) -> Answer {
    let name = respond::name(query, "of", "object")?;
    let pod = match &admin.pods {
        None => None,
        Some(pods) => explain(pods, &name).await?,
    };
    let collector = super::collector::why(admin.gc.as_ref(), &name).map_err(|refused| match &admin.pods {
        None => refused,
        Some(pods) => unknown(pods, &name, admin.gc.is_some().then_some(refused.1)),
    });
    json_answer(&combined(pod, collector)?)
}

/// Explains a pod of this node; `None` if it is not known. The trace of a pod that this agent terminates comes first; else the
/// node is read.
async fn explain(pods: &PodsAdmin, name: &ObjectName) -> Result<Option<(Explanation, Stage)>, Refused> {
    let asked = name.clone();
    let known = pods.ask(move |pods| pods.find_pod(&asked)).await?;
    let Some((view, trace)) = known else {
        return Ok(finished(pods, name).await?.map(|trace| explain_trace(pods, &trace)));
    };
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
    let now = reader.node.clock.wall.now();
    let causes = diagnose(&facts, now);
    Ok(Some(match own {
        Some(trace) => {
            let (mut why, stage) = explain_trace(pods, trace);
            let role = pods.role.as_ref().map(|role| role.borrow().clone());
            if let (Some(failing), [pod, ..]) = (
                role.as_ref().and_then(RoleReport::between_starts_of),
                why.objects.as_mut_slice(),
            ) {
                let starts = failing.fault(now);
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
    let blocked = pods.guard.check().err().map(|blocked| blocked.to_string());
    let why = explain_pod(trace, blocked.as_deref());
    let causes = match trace.stage {
        Stage::Finished => causes_of_finalizers(trace),
        Stage::Terminating | Stage::Terminated | Stage::Deleted => why.causes,
    };
    (Explanation { causes, ..why }, trace.stage)
}

/// The last trace of a pod whose object is deleted.
async fn finished(pods: &PodsAdmin, name: &ObjectName) -> Result<Option<Trace>, Refused> {
    let name = name.clone();
    let traces = pods.ask(move |pods| pods.traces(Some(&name)));
    Ok(traces.await?.pop())
}

/// The error for an object that neither the agent knows nor its collector, for that reason. A pod is not called unknown before its
/// node's pods were listed: a client may take it for deleted.
fn unknown(pods: &PodsAdmin, name: &ObjectName, collector: Option<String>) -> Refused {
    let mut unfinished = pods.journal.unfinished().into_iter().map(|view| view.pod);
    if let Some(PodRef { namespace, name, uid }) = unfinished.find(|pod| name.names(pod)) {
        let blocked = pods.guard.check().err().map(|why| format!("; blocked: {why}"));
        return unavailable(format!(
            "an earlier run of the agent began to terminate pod {namespace}/{name}, uid {uid}, and this run continues after the \
             first list of this node's pods{}",
            blocked.unwrap_or_default()
        ));
    }
    let collector = collector.map_or_else(String::new, |why| format!("; {why}"));
    let why = format!("no pod {name} on this node; a pod is named NAMESPACE/NAME or by its UID{collector}");
    let may_be_pod = matches!(name, ObjectName::Uid(_)) || name.pod().is_some();
    match pods.watch.borrow().state {
        SourceState::Connecting if may_be_pod => unavailable(why),
        _ => not_found(why),
    }
}
