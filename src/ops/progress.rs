//! Describes the progress of a pod's termination in one line. Pure.

use crate::{
    model::trace::{BlockedReason, Stage, Step, Trace},
    words::seconds,
};

/// What happens to a pod at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Finished,
    Blocked,
    /// Other pods have to terminate first. The grace period has not begun.
    WaitingForDependents,
    InProgress(Step),
    WaitingToRetry(Step),
}

/// The reason why the agent is paused, if it is.
pub(super) fn pause_reason(trace: &Trace) -> Option<&str> {
    let mut blocked = trace.blocked.iter();
    let pause = blocked.find(|blocked| blocked.reason == BlockedReason::Paused)?;
    Some(&pause.message)
}

fn activity(trace: &Trace, is_blocked: bool) -> Activity {
    if trace.stage == Stage::Finished {
        return Activity::Finished;
    }
    for blocked in &trace.blocked {
        match blocked.reason {
            BlockedReason::Dependents if !is_blocked => return Activity::WaitingForDependents,
            BlockedReason::Guard | BlockedReason::Paused | BlockedReason::StaticPod | BlockedReason::Mismatch => {
                return Activity::Blocked;
            }
            BlockedReason::Dependents | BlockedReason::Failed => {}
        }
    }
    if is_blocked {
        return Activity::Blocked;
    }
    let open = trace.spans.iter().filter(|span| span.end_ms.is_none());
    match (open.map(|span| span.step).min(), trace.failed_at(), trace.stage) {
        (Some(step), ..) => Activity::InProgress(step),
        (None, Some(step), _) => Activity::WaitingToRetry(step),
        // Between two steps.
        (None, None, Stage::Terminating) => Activity::InProgress(Step::Term),
        (None, None, Stage::Terminated) => Activity::InProgress(Step::Volumes),
        (None, None, Stage::Deleted | Stage::Finished) => Activity::InProgress(Step::Cleanup),
    }
}

/// The current step, for a column: the one in progress or the one that is retried, `blocked` or `waiting`.
pub(super) fn step(trace: &Trace) -> &'static str {
    match activity(trace, false) {
        Activity::Finished => "finished",
        Activity::Blocked => "blocked",
        Activity::WaitingForDependents => "waiting",
        Activity::InProgress(step) | Activity::WaitingToRetry(step) => step.name(),
    }
}

/// The activity, the age of the termination and, while containers run, the rest of the grace period. `is_blocked`: the whole agent
/// is.
pub(super) fn describe(trace: &Trace, is_blocked: bool) -> String {
    let activity = activity(trace, is_blocked);
    let age = seconds(trace.elapsed_ms);
    let doing = match activity {
        Activity::Finished => return format!("finished in {age}"),
        Activity::Blocked => "blocked".to_owned(),
        Activity::WaitingForDependents => "waits for other pods to terminate".to_owned(),
        Activity::InProgress(step) => format!("step {step} is in progress"),
        Activity::WaitingToRetry(step) => format!("step {step} has failed, and is repeated"),
    };
    let doing = format!("{doing}, {age} after the beginning");
    // The status is sent, and the object deleted, after all containers have stopped.
    let runs = trace.stage == Stage::Terminating
        && !matches!(
            activity,
            Activity::WaitingForDependents
                | Activity::InProgress(Step::Status | Step::Delete)
                | Activity::WaitingToRetry(Step::Status | Step::Delete)
        );
    let (left, total) = (seconds(trace.grace_left_ms), trace.grace_seconds);
    match trace.grace_left_ms {
        _ if !runs => doing,
        _ if trace.awaits_grace_period() => format!("{doing}; its grace period of {total}s has not begun"),
        0 => format!("{doing}; the grace period of {total}s has expired"),
        _ => format!("{doing}; {left} of {total}s grace left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        termination::GraceStart,
        trace::{Obstacle, Span},
    };

    fn obstacle(step: Option<Step>, reason: BlockedReason) -> Obstacle {
        Obstacle {
            step,
            ..Obstacle::pod(reason, "why")
        }
    }

    #[test]
    fn line_names_the_activity_and_shows_the_grace_period_only_while_containers_run() {
        let failed = |step| Some(obstacle(Some(step), BlockedReason::Failed));
        let mismatch = Some(obstacle(Some(Step::Cgroup), BlockedReason::Mismatch));
        let dependents = Some(obstacle(None, BlockedReason::Dependents));
        let (terminating, terminated, deleted) = (Stage::Terminating, Stage::Terminated, Stage::Deleted);
        for (stage, open, blocked, column, doing, has_grace) in [
            (
                terminating,
                Some(Step::Term),
                None,
                "term",
                "step term is in progress",
                true,
            ),
            (
                terminating,
                Some(Step::Status),
                None,
                "status",
                "step status is in progress",
                false,
            ),
            (terminating, None, None, "term", "step term is in progress", true),
            (
                terminating,
                None,
                failed(Step::Status),
                "status",
                "step status has failed, and is repeated",
                false,
            ),
            (
                terminating,
                Some(Step::Sandbox),
                failed(Step::Status),
                "sandbox",
                "step sandbox is in progress",
                true,
            ),
            (
                terminating,
                None,
                failed(Step::Term),
                "term",
                "step term has failed, and is repeated",
                true,
            ),
            (terminating, None, mismatch, "blocked", "blocked", true),
            (
                terminating,
                None,
                dependents,
                "waiting",
                "waits for other pods to terminate",
                false,
            ),
            (terminated, None, None, "volumes", "step volumes is in progress", false),
            (
                deleted,
                None,
                failed(Step::Cleanup),
                "cleanup",
                "step cleanup has failed, and is repeated",
                false,
            ),
        ] {
            let span = |step| Span {
                step,
                what: String::new(),
                start_ms: 0,
                end_ms: None,
                failure: None,
            };
            let trace = Trace {
                grace_left_ms: 12_000,
                grace_end_ms: Some(30_000),
                grace_counted_from: GraceStart::Termination,
                stage,
                elapsed_ms: 18_000,
                blocked: blocked.into_iter().collect(),
                spans: open.into_iter().map(span).collect(),
                ..Trace::sample()
            };
            let grace = if has_grace { "; 12.0s of 30s grace left" } else { "" };
            let expected = format!("{doing}, 18.0s after the beginning{grace}");
            assert_eq!(describe(&trace, false), expected, "{trace:?}");
            assert_eq!(step(&trace), column);
        }
    }

    #[test]
    fn grace_period_that_has_not_begun_is_named_so() {
        let trace = Trace {
            grace_left_ms: 12_000,
            ..Trace::sample()
        };
        assert!(describe(&trace, true).ends_with("; its grace period of 30s has not begun"));
    }
}
