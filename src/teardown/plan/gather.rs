//! Gathers the facts for a plan. Only reads, each with a limit of time, and all with one deadline.

use std::sync::Arc;

use tokio::time::timeout;

use super::{
    facts::{CgroupFacts, ClaimFacts, PlanFacts},
    model::Plan,
    steps::plan,
};
use crate::{
    model::{
        failure::{Failure, first_message},
        pod::PodView,
        termination::Terminator,
        trace::Step,
    },
    node::{cri::types::RuntimePod, logs::PodLogs},
    teardown::{
        bounded_read::{AnswerDeadline, Fact, READ_LIMIT, blocking_in, late, text},
        context::Context,
        dependents::dependents,
        devices::{self, ClaimDecision},
        evidence,
        grace::OwnGrace,
        journal::PodJournalExt as _,
        locate, user_namespace, volumes,
    },
};

/// Plans the teardown of this pod. `terminator`: the process that terminates it now. `blocked`: why nothing may be touched. The
/// context refuses effects, see [`Context::read_only`].
#[cfg(feature = "agent")]
pub(crate) async fn plan_teardown(
    context: &Arc<Context>,
    view: Arc<PodView>,
    terminator: Terminator,
    blocked: Vec<String>,
) -> Plan {
    let deadline = AnswerDeadline::from_now();
    let (view, object_unread) = super::super::bounded_read::current_object(context, view).await;
    let object_unread = object_unread.map(|unread| unread.why().to_owned());
    plan_until(deadline, context, view, object_unread, terminator, blocked).await
}

/// As [`plan_teardown`] by this agent, with this view of the object.
pub(crate) async fn plan_view(
    context: &Arc<Context>,
    view: Arc<PodView>,
    object_unread: Option<String>,
    blocked: Vec<String>,
) -> Plan {
    let deadline = AnswerDeadline::from_now();
    plan_until(deadline, context, view, object_unread, Terminator::Agent, blocked).await
}

async fn plan_until(
    deadline: AnswerDeadline,
    context: &Arc<Context>,
    view: Arc<PodView>,
    object_unread: Option<String>,
    terminator: Terminator,
    mut blocked: Vec<String>,
) -> Plan {
    let uid = &view.pod.uid;
    let entry = context.journal.pod(uid);
    let grace = OwnGrace::new(&view, entry.as_ref(), &context.node.clock.now());
    let runtime = async {
        let read = timeout(READ_LIMIT, context.node.cri.pod(uid.as_str(), READ_LIMIT)).await;
        let pod = read.map_err(late(READ_LIMIT))?.map_err(text)?;
        let disagreement = deadline.cap(disagreement(context, &view, pod.clone())).await;
        Ok((pod, disagreement))
    };
    let claims = async {
        let read = timeout(READ_LIMIT, claims(context, &view)).await;
        read.map_err(late(READ_LIMIT))?
            .map_err(|failures| first_message(&failures))
    };
    let dependents = async {
        let read = timeout(READ_LIMIT, dependents(context, &view, true)).await;
        read.map_err(late(READ_LIMIT))?
            .map_err(|failures| first_message(&failures))
    };
    let volumes = blocking_in(READ_LIMIT, context, &view, |context, view| {
        let dir = locate::pod_dir(context, view).map_err(|failures| first_message(&failures))?;
        let storage = &context.node.storage;
        let table = storage.all_mounts.read().map_err(|fault| fault.to_string())?;
        let planned = volumes::planned(&dir, storage, &table).map_err(|fault| fault.to_string())?;
        let attached = view.attachable_volumes || volumes::may_hold_attached(&dir, &storage.mounts);
        Ok((planned, attached))
    });
    let cgroups = blocking_in(READ_LIMIT, context, &view, |context, view| {
        let mut paths = Vec::new();
        for cgroup in locate::cgroups(context, view).map_err(|failures| first_message(&failures))? {
            let directories = context.node.cgroups.directories(&cgroup);
            paths.extend(directories.iter().map(|path| CgroupFacts {
                cgroup: cgroup.path().display().to_string(),
                path: path.display().to_string(),
            }));
        }
        Ok(paths)
    });
    let user_ids = blocking_in(READ_LIMIT, context, &view, |context, view| {
        let dir = locate::pod_dir(context, view).map_err(|failures| first_message(&failures))?;
        let file = user_namespace::file_to_remove(&dir, view).map_err(text)?;
        Ok(file.map(|path| path.display().to_string()))
    });
    let directory = blocking_in(READ_LIMIT, context, &view, |context, view| {
        let dir = locate::pod_dir(context, view).map_err(|failures| first_message(&failures))?;
        let there = dir.open().map_err(|fault| fault.to_string())?;
        Ok(there.map(|_| dir.path().display().to_string()))
    });
    let logs = blocking_in(READ_LIMIT, context, &view, |context, view| {
        let pod = &view.pod;
        let logs = PodLogs::new(&context.node.pod_logs_dir, &pod.namespace, &pod.name, pod.uid.as_str());
        let path = logs.map_err(|error| error.to_string())?.path();
        Ok(Some(path.display().to_string()).filter(|_| path.exists()))
    });
    let (runtime, claims, dependents, volumes, cgroups, user_ids, directory, logs) = tokio::join!(
        deadline.cap(runtime),
        deadline.cap(claims),
        deadline.cap(dependents),
        deadline.cap(volumes),
        deadline.cap(cgroups),
        deadline.cap(user_ids),
        deadline.cap(directory),
        deadline.cap(logs),
    );
    let runtime = runtime.map(|(pod, disagreement)| {
        blocked.extend(disagreement.unwrap_or_else(|why| {
            vec![format!(
                "whether runtime, cgroups and directories agree is not known: {why}"
            )]
        }));
        pod
    });
    // If it is not known, the terminal status waits for the volumes.
    let may_hold_attached = volumes.as_ref().map_or(true, |(_, attached)| *attached);
    let facts = PlanFacts {
        object_unread,
        blocked,
        entry,
        terminator,
        grace,
        dependents,
        driver_hold: context.driver_hold,
        runtime,
        runtime_name: context.node.runtime_name.clone(),
        claims,
        volumes: volumes.map(|(volumes, _)| volumes),
        may_hold_attached,
        cgroups,
        user_ids,
        directory,
        logs,
        view,
    };
    plan(&facts, context.node.clock.wall().now())
}

/// Why runtime, cgroups and directories do not agree; empty if they do.
async fn disagreement(context: &Arc<Context>, view: &Arc<PodView>, pod: RuntimePod) -> Fact<Vec<String>> {
    let evidence = blocking_in(READ_LIMIT, context, view, move |context, view| {
        Ok(evidence::check_agreement(context, view, Step::Term, &pod))
    });
    Ok(match evidence.await? {
        Ok(()) => Vec::new(),
        Err(failures) => failures.iter().map(Failure::to_string).collect(),
    })
}

async fn claims(context: &Context, view: &PodView) -> Result<Vec<ClaimFacts>, Vec<Failure>> {
    let prepared = devices::prepared(context, view).await?;
    if prepared.is_empty() {
        return Ok(Vec::new());
    }
    let decided = devices::decide_all(context, view, &prepared).await?;
    let facts = decided.into_iter().map(|(prepared, decision)| ClaimFacts {
        claim: format!("{}/{}", prepared.claim.namespace, prepared.claim.name),
        drivers: prepared.drivers.iter().cloned().collect(),
        used_by: match decision {
            ClaimDecision::Unprepare => None,
            ClaimDecision::Used(by) => Some(by),
        },
    });
    Ok(facts.collect())
}
