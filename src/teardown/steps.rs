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

use futures::future::{BoxFuture, FutureExt as _, Ready, join_all, ready};

use super::{
    attempt::{Attempt, PodUpdate, StepEnd, Worker, YieldReason},
    limits::StoppedFirst,
    plan::{Plan, PlanFacts, Planned, PlannedAction, PlannedStep},
};
use crate::model::{termination::Terminator, trace::Stage};

/// One step of a termination.
struct TeardownStep {
    /// What has to be true before it, and what is recorded then.
    gate: fn(&mut Attempt<'_>) -> StepEnd,
    /// Does it.
    run: for<'a> fn(&'a mut Attempt<'_>) -> BoxFuture<'a, StepEnd>,
    /// What it would do.
    plan: for<'a> fn(&'a PlanFacts) -> BoxFuture<'a, Planned>,
}

/// A step, by its gate, its effect and its plan.
macro_rules! step {
    ($gate:path, $run:path, $plan:path) => {
        TeardownStep {
            gate: $gate,
            run: |attempt| $run(attempt).map(StepEnd::from).boxed(),
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
    step!(open, status::run_stopped, status::plan_stopped),
    step!(safe_point, exits::make_durable, no_action),
    step!(open, volumes::run, volumes::plan),
    step!(open, cgroup::run, cgroup::plan),
    step!(nothing_failed, status::run_terminated, status::plan_terminated),
    step!(deletion_shown, delete::run, delete::plan),
    step!(deleted, cleanup::run, cleanup::plan),
];

/// Makes one attempt: all steps until one does not end with `Done`. Failures of earlier steps are part of the end.
pub(super) async fn attempt(worker: &Worker, update: &PodUpdate, stopped_first: Option<StoppedFirst>) -> StepEnd {
    let mut attempt = match observe::begin(worker, update).await {
        Ok(attempt) => attempt,
        Err(failures) => return StepEnd::Failed(failures),
    };
    attempt.stopped_first = stopped_first;
    for step in &STEPS {
        let mut end = (step.gate)(&mut attempt);
        if end.is_done() {
            end = (step.run)(&mut attempt).await;
        }
        match end {
            StepEnd::Done => {}
            StepEnd::Yield(_) => return end,
            StepEnd::Failed(failures) => {
                attempt.failures.extend(failures);
                return StepEnd::Failed(attempt.failures);
            }
        }
    }
    StepEnd::Done
}

// === The gates ===

fn open(_: &mut Attempt<'_>) -> StepEnd {
    StepEnd::Done
}

fn not_canceled(attempt: &mut Attempt<'_>) -> StepEnd {
    attempt.worker.check_not_canceled()
}

/// The runtime reports all containers as stopped. A kubelet would restart them unless the API shows the termination.
fn after_stop(attempt: &mut Attempt<'_>) -> StepEnd {
    attempt.stopped_first = None;
    let worker = attempt.worker;
    let mut end = worker.check_not_canceled();
    if end.is_done() && !attempt.stopped.runs() {
        end = worker.record_safe_point(worker.terminates_by_api());
    }
    end
}

/// The API shows the termination: a kubelet that starts now repeats no work.
fn safe_point(attempt: &mut Attempt<'_>) -> StepEnd {
    attempt.worker.record_safe_point(attempt.is_terminal)
}

/// The node is clean, and the API has the status.
fn nothing_failed(attempt: &mut Attempt<'_>) -> StepEnd {
    if !attempt.failures.is_empty() {
        return StepEnd::Failed(mem::take(&mut attempt.failures));
    }
    let end = attempt.worker.check_not_canceled();
    if end.is_done() {
        return attempt.worker.yield_to_kubelet(attempt.is_terminal);
    }
    end
}

/// The object is gone, or its deletion is requested.
fn deletion_shown(attempt: &mut Attempt<'_>) -> StepEnd {
    let (worker, view) = (attempt.worker, attempt.view());
    let is_requested = view.deletion.is_some() && worker.updates.borrow().view.is_deletion_shown();
    if attempt.is_gone || is_requested {
        return StepEnd::Done;
    }
    if !attempt.is_terminal {
        worker.context.journal.set_safe_point(&view.pod.uid);
    }
    StepEnd::Yield(YieldReason::NotDeleted)
}

fn deleted(attempt: &mut Attempt<'_>) -> StepEnd {
    attempt.enter_stage(Stage::Deleted);
    StepEnd::Done
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
    let steps = steps
        .into_iter()
        .flatten()
        .filter(|(_, actions)| !view.mirror && !actions.is_empty());
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
