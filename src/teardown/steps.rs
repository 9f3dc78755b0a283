//! The steps of a termination, in their order. A worker runs them, a plan lists what they would do, and an observer compares with
//! that what a kubelet has done.
//!
//! Each step has a file with its decision, its effect and its plan. Each is idempotent: every attempt begins with the observed state,
//! regardless of how far an earlier one came.

mod cgroup;
mod cleanup;
mod delete;
mod dependents;
pub(super) mod devices;
mod exits;
mod observe;
mod overrule;
mod status;
pub(super) mod stop;
mod survivors;
mod volumes;

use std::mem;

use futures::future::{BoxFuture, FutureExt as _, Ready, TryFutureExt as _, join_all, ready};

use super::{
    attempt::{Attempt, Interrupted, PodUpdate, StepResult, Worker, YieldReason},
    limits::StoppedFirst,
    plan::{Plan, PlanFacts, Planned, PlannedAction, PlannedStep},
};
use crate::model::{termination::Terminator, trace::Stage};

/// One step of a termination.
struct TeardownStep {
    /// What has to be true before it, and what is recorded then.
    gate: fn(&mut Attempt<'_>) -> StepResult,
    /// Does it.
    run: for<'a> fn(&'a mut Attempt<'_>) -> BoxFuture<'a, StepResult>,
    /// What it would do.
    plan: for<'a> fn(&'a PlanFacts) -> BoxFuture<'a, Planned>,
}

/// A step, by its gate, its effect and its plan.
macro_rules! step {
    ($gate:path, $run:path, $plan:path) => {
        TeardownStep {
            gate: $gate,
            run: |attempt| $run(attempt).err_into().boxed(),
            plan: |facts| $plan(facts).boxed(),
        }
    };
}

/// All steps, in their order.
static STEPS: [TeardownStep; 11] = [
    step!(open, dependents::wait, no_action),
    step!(not_canceled, stop::run, stop::plan),
    step!(after_stop, survivors::run, no_action),
    step!(open, devices::run, devices::plan),
    step!(open, status::run_stopped, status::plan::<false>),
    step!(safe_point, exits::make_durable, no_action),
    step!(open, volumes::run, volumes::plan),
    step!(open, cgroup::run, cgroup::plan),
    step!(nothing_failed, status::run_terminated, status::plan::<true>),
    step!(deletion_shown, delete::run, delete::plan),
    step!(deleted, cleanup::run, cleanup::plan),
];

/// Makes one attempt: all steps until one is not done. Failures of earlier steps are part of the result.
pub(super) async fn attempt(worker: &Worker, update: &PodUpdate, stopped_first: Option<StoppedFirst>) -> StepResult {
    let mut attempt = observe::begin(worker, update).await?;
    attempt.stopped_first = stopped_first;
    for step in &STEPS {
        let mut result = (step.gate)(&mut attempt);
        if result.is_ok() {
            result = (step.run)(&mut attempt).await;
        }
        if let Err(Interrupted::Failed(failures)) = result {
            attempt.failures.extend(failures);
            return Err(attempt.failures.into());
        }
        result?;
    }
    Ok(())
}

// === The gates ===

fn open(_: &mut Attempt<'_>) -> StepResult {
    Ok(())
}

fn not_canceled(attempt: &mut Attempt<'_>) -> StepResult {
    attempt.worker.check_not_canceled()
}

/// The runtime reports all containers as stopped. A kubelet would restart them unless the API shows the termination.
fn after_stop(attempt: &mut Attempt<'_>) -> StepResult {
    attempt.stopped_first = None;
    let worker = attempt.worker;
    worker.check_not_canceled()?;
    if attempt.stopped.runs() {
        return Ok(());
    }
    worker.record_safe_point(worker.terminates_by_api())
}

/// The API shows the termination: a kubelet that starts now repeats no work.
fn safe_point(attempt: &mut Attempt<'_>) -> StepResult {
    attempt.worker.record_safe_point(attempt.is_terminal)
}

/// The node is clean, and the API has the status.
fn nothing_failed(attempt: &mut Attempt<'_>) -> StepResult {
    if !attempt.failures.is_empty() {
        return Err(mem::take(&mut attempt.failures).into());
    }
    attempt.worker.check_not_canceled()?;
    attempt.worker.yield_to_kubelet(attempt.is_terminal)
}

/// The object is gone, or its deletion is requested.
fn deletion_shown(attempt: &mut Attempt<'_>) -> StepResult {
    let (worker, view) = (attempt.worker, attempt.view());
    let is_requested = view.deletion.is_some() && worker.updates.borrow().view.is_deletion_shown();
    if attempt.is_gone || is_requested {
        return Ok(());
    }
    if !attempt.is_terminal {
        worker.context.journal.set_safe_point(&view.pod.uid);
    }
    Err(Interrupted::Yield(YieldReason::NotDeleted))
}

fn deleted(attempt: &mut Attempt<'_>) -> StepResult {
    attempt.enter_stage(Stage::Deleted);
    Ok(())
}

// === The plan ===

fn no_action(_: &PlanFacts) -> Ready<Planned> {
    ready(Vec::new())
}

/// What the steps would do to this pod now. `object_unread`: why the view is not the object as it is now. `terminator`: the process
/// that terminates the pod. `blocked`: why nothing may be touched. The context refuses effects, see [`Context::read_only`].
pub(super) async fn plan(
    facts: PlanFacts,
    object_unread: Option<String>,
    terminator: Terminator,
    mut blocked: Vec<String>,
) -> Plan {
    let steps = STEPS.iter().map(|step| (step.plan)(&facts));
    let (steps, waits_for, disagreement) =
        tokio::join!(join_all(steps), dependents::plan(&facts), facts.disagreement());
    blocked.extend(disagreement);
    let view = &facts.reads.view;
    let steps = steps.into_iter().flatten();
    let steps = steps.filter(|(_, actions)| !view.mirror && !actions.is_empty());
    let steps: Vec<_> = steps.map(|(step, actions)| PlannedStep { step, actions }).collect();
    let object_unread = object_unread.map(|why| format!("its object in the API server: {why}"));
    let mut unknown: Vec<String> = object_unread.into_iter().collect();
    for action in steps.iter().flat_map(|planned| &planned.actions) {
        if let PlannedAction::NotKnown { fact } = action
            && !unknown.contains(fact)
        {
            unknown.push(fact.clone());
        }
    }
    let waits_for = waits_for.unwrap_or_else(|why| {
        unknown.push(format!("the pods that need it: {why}"));
        None
    });
    let grace = facts.grace.counted_by(terminator, view.deletion, facts.now);
    Plan {
        namespace: view.pod.namespace.to_string(),
        name: view.pod.name.to_string(),
        uid: view.pod.uid.to_string(),
        is_deleted: view.deletion.is_some(),
        is_mirror: view.mirror,
        blocked,
        waits_for,
        grace_seconds: grace.total_seconds.unwrap_or(facts.grace.total.as_secs()),
        grace_left_seconds: grace.left.as_secs(),
        grace_counted_from: grace.counted_from,
        steps,
        unknown,
    }
}
