//! A pod that other pods need for their termination, such as a CSI driver or the network plugin, terminates after them, at most
//! `--driver-hold` later. Its grace period begins only after that.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{
    journal::PodEntry,
    model::{
        event::Reason,
        failure::{Failure, first_message},
        pod::{PodRef, PodView},
        termination,
        trace::{BlockedReason, Obstacle, Stage, Step},
    },
    node::cri::types::RuntimePod,
    teardown::{
        attempt::{Attempt, Interrupted, StepResult, YieldReason},
        bounded_read::Fact,
        context::Context,
        drivers, grace,
        node_service::is_node_service,
        plan::{PlanFacts, PlannedWait},
    },
    why::Why,
    words::some_of,
};

/// How often is checked whether other pods still need it.
const INTERVAL: Duration = Duration::from_secs(2);
/// All pods of a node may be deleted one after another, this one first. So it waits at least this long.
const SETTLING_TIME: Duration = INTERVAL.saturating_mul(2);

/// Waits while other pods that are terminating need this one, at most for `--driver-hold`.
pub async fn wait(attempt: &mut Attempt<'_>) -> StepResult {
    let (worker, view) = (attempt.worker, attempt.view());
    let (context, uid) = (&worker.context, &view.pod.uid);
    // Without a running container it serves no other pod. A termination that has begun is not interrupted.
    if !attempt.observed.pod.may_run() || worker.period.has_begun() {
        return Ok(());
    }
    let began = Instant::now();
    let mut reported = String::new();
    while let Some((words, may_be_none)) = why_needed(context, view, began.elapsed() >= SETTLING_TIME).await {
        let now = context.node.clock.now();
        let since = context.journal.record_wait(uid, now.clone());
        if grace::used(&since, &now) >= context.driver_hold {
            if !may_be_none {
                let message = format!("--driver-hold has expired, and the pod terminates; {words}");
                tracing::warn!(message);
                context.events.event(view, None, Reason::DriverHoldExceeded, &message);
            }
            break;
        }
        if words != reported {
            tracing::info!(why = words, "Termination waits for other pods");
        }
        let blocked = Obstacle::pod(BlockedReason::Dependents, words.as_str());
        worker.recorder.set_blocked(vec![blocked]);
        reported = words;
        if context.node.effects.check_new().is_err() {
            return Err(Interrupted::Yield(YieldReason::NoNewWork));
        }
        tokio::select! {
            biased;
            () = context.stopping.cancelled() => return Err(Interrupted::Yield(YieldReason::Stopping)),
            () = sleep(INTERVAL) => {}
        }
    }
    worker.recorder.set_blocked(Vec::new());
    // The disk must not show that it waits when it is stopped.
    if context.journal.read(uid, |entry| entry.waits_for_dependents) {
        let now = context.node.clock.now();
        context.journal.update(uid, |entry| entry.begin_grace(now));
        worker.sync_beginning().await;
    }
    Ok(())
}

/// Why the pod waits, and whether perhaps no pod needs it. `is_settled`: a deletion that the watch has not reported is unlikely.
async fn why_needed(context: &Context, view: &PodView, is_settled: bool) -> Option<(String, bool)> {
    match find(context, view, is_settled).await {
        Ok(None) => None,
        Ok(Some(PlannedWait { pods, .. })) if pods.is_empty() && is_settled => None,
        Ok(Some(PlannedWait { pods, needed_as, .. })) if pods.is_empty() => {
            let words = format!("pods that were deleted just now may need this pod as {needed_as}");
            Some((words, true))
        }
        Ok(Some(PlannedWait { pods, needed_as, .. })) => {
            let pods = some_of(pods);
            Some((format!("terminating pods need this pod as {needed_as}: {pods}"), false))
        }
        Err(failures) => {
            let why = first_message(&failures);
            Some((
                format!("cannot find the terminating pods that need this pod: {why}"),
                false,
            ))
        }
    }
}

/// The wait before the first step, if there is one.
pub async fn plan(facts: &PlanFacts) -> Fact<Option<PlannedWait>> {
    let needed = async { Ok::<_, Why>(find(&facts.reads.context, &facts.reads.view, true).await?) };
    let needed = facts.reads.in_time(needed).await?;
    // A termination that has begun is not interrupted, and without a running container it serves no other pod.
    let has_begun = facts.entry.as_ref().is_some_and(PodEntry::has_begun);
    let may_run = facts.runtime().await.as_ref().map_or(true, RuntimePod::may_run);
    Ok(needed.filter(|_| !has_begun && may_run && !facts.reads.view.mirror))
}

/// The terminating pods that need this one; `None` if it is neither a driver nor a node service. If no worker has such a pod and
/// `confirm` is set, it also lists all pods of the node: the watch may not have reported a deletion yet.
async fn find(context: &Context, view: &PodView, confirm: bool) -> Result<Option<PlannedWait>, Vec<Failure>> {
    let users = drivers::users_of(context, view).await?;
    let is_service = is_node_service(view);
    let role = match (&users, is_service) {
        (None, false) => return Ok(None),
        (Some(_), false) => "a driver",
        (_, true) => "a node service",
    };
    let wait = |pods| {
        Some(PlannedWait {
            needed_as: role.to_owned(),
            pods,
            at_most_seconds: context.driver_hold.as_secs(),
        })
    };
    let uses = |other: &PodView| users.as_ref().is_some_and(|users| users.include(context, other));
    // Node services do not wait for each other.
    let needs = |other: &PodView| is_service && !is_node_service(other) || uses(other);
    let known = (context.terminating)().await;
    let with_worker = known.values().filter(|other| needs(other)).map(|other| &other.pod);
    // After a restart the journal has some before the workers do. It does not have their spec: one whose containers are not
    // stopped counts as no node service. The wait ends after `--driver-hold` at the latest.
    let journal = &context.journal;
    let may_run = |other: &PodView| {
        let uid = &other.pod.uid;
        let entry = journal.pod(uid).filter(|_| !known.contains_key(uid));
        entry.is_some_and(|entry| entry.stage == Stage::Terminating)
    };
    let begun = journal.unfinished().into_iter();
    let begun = begun.filter(|other| uses(other) || is_service && may_run(other));
    let pods = named(view, with_worker.cloned().chain(begun.map(|other| other.pod)));
    if !pods.is_empty() || !confirm {
        return Ok(wait(pods));
    }
    // A pod with a terminal phase and without a worker counts only by what is on the node.
    let needs = |other: &PodView| uses(other) || !other.terminal_phase && needs(other);
    let is_waited_for = |other: &PodView| termination::cause(other, false).is_some() && needs(other);
    let mut waited_for = Vec::new();
    let mut each = |other: PodView| waited_for.extend(is_waited_for(&other).then_some(other.pod));
    let listed = context.api.each_pod(&mut each).await;
    listed.map_err(|error| vec![error.failure(Step::Term)])?;
    Ok(wait(named(view, waited_for.into_iter())))
}

/// Namespaces and names of these pods but for `view` itself.
fn named(view: &PodView, pods: impl Iterator<Item = PodRef>) -> Vec<String> {
    let others = pods.filter(|pod| pod.uid != view.pod.uid);
    let by_uid: BTreeMap<_, _> = others.map(|pod| (pod.uid.clone(), pod)).collect();
    by_uid.values().map(ToString::to_string).collect()
}
