//! Describes the progress of a pod's termination in one line. Pure.

use crate::{
    model::{
        termination::GraceStart,
        trace::{BlockedReason, Span, Stage, Step, Trace},
    },
    words::seconds,
};

/// What happens to a pod at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Blocked,
    /// Other pods have to terminate first. The grace period has not begun.
    WaitingForDependents,
    InProgress(Step),
    WaitingToRetry(Step),
    BetweenSteps,
}

/// The reason why the agent is paused, if it is.
pub(super) fn pause_reason(trace: &Trace) -> Option<&str> {
    let mut blocked = trace.blocked.iter();
    let pause = blocked.find(|blocked| blocked.reason == BlockedReason::Paused)?;
    Some(&pause.message)
}

fn activity(trace: &Trace, is_blocked: bool) -> Activity {
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
    if let Some(step) = open.map(|span| span.step).min() {
        return Activity::InProgress(step);
    }
    trace
        .failed_at()
        .map_or(Activity::BetweenSteps, Activity::WaitingToRetry)
}

/// The current step, for a column: the one in progress or the one that is retried, `blocked` or `waiting`.
pub(super) fn step(trace: &Trace) -> &'static str {
    match (activity(trace, false), trace.stage) {
        (_, Stage::Finished) => "finished",
        (Activity::Blocked, _) => "blocked",
        (Activity::WaitingForDependents, _) => "waiting",
        (Activity::InProgress(step) | Activity::WaitingToRetry(step), _) => step.name(),
        (Activity::BetweenSteps, Stage::Terminating) => Step::Term.name(),
        (Activity::BetweenSteps, Stage::Terminated) => Step::Volumes.name(),
        (Activity::BetweenSteps, Stage::Deleted) => Step::Cleanup.name(),
    }
}

/// The activity, its duration and, while containers run, the rest of the grace period. `is_blocked`: the whole agent is.
pub(super) fn describe(trace: &Trace, is_blocked: bool) -> String {
    let activity = activity(trace, is_blocked);
    let elapsed = match activity {
        Activity::WaitingToRetry(step) => waiting_time(trace, step),
        _ => format!(", for {}", seconds(trace.elapsed_ms - start_ms(trace, activity))),
    };
    let doing = match (activity, trace.stage) {
        (_, Stage::Finished) => return format!("finished in {}", seconds(trace.elapsed_ms)),
        (Activity::Blocked, _) => "blocked".to_owned(),
        (Activity::WaitingForDependents, _) => "waits for other pods to terminate".to_owned(),
        (Activity::InProgress(step), _) => in_progress(step).to_owned(),
        (Activity::WaitingToRetry(step), Stage::Deleted) => format!("deleted; {} has failed", noun(step)),
        (Activity::WaitingToRetry(step), _) => format!("{} has failed", noun(step)),
        (Activity::BetweenSteps, Stage::Terminating) => in_progress(Step::Term).to_owned(),
        (Activity::BetweenSteps, Stage::Terminated) => "nothing runs; volumes and cgroup are being removed".to_owned(),
        (Activity::BetweenSteps, Stage::Deleted) => in_progress(Step::Cleanup).to_owned(),
    };
    // The status is sent, and the object deleted, after all containers have stopped.
    let runs = trace.stage == Stage::Terminating
        && !matches!(
            activity,
            Activity::WaitingForDependents
                | Activity::InProgress(Step::Status | Step::Delete)
                | Activity::WaitingToRetry(Step::Status | Step::Delete)
        );
    match trace.grace_left_ms {
        _ if !runs => format!("{doing}{elapsed}"),
        _ if trace.awaits_grace_period() => {
            format!(
                "{doing}{elapsed}; its grace period of {}s has not begun",
                trace.grace_seconds
            )
        }
        _ if trace.grace_counted_from == GraceStart::DeleteRequest => format!(
            "{doing}{elapsed}; {} of {}s grace left, as the kubelet counts it",
            seconds(trace.grace_left_ms),
            trace.grace_seconds
        ),
        0 => format!(
            "{doing}{elapsed}; the grace period of {}s has expired",
            trace.grace_seconds
        ),
        left => format!(
            "{doing}{elapsed}; {} of {}s grace left",
            seconds(left),
            trace.grace_seconds
        ),
    }
}

/// When the activity began: a pod may have waited long before its first step.
fn start_ms(trace: &Trace, activity: Activity) -> u64 {
    let Activity::InProgress(step) = activity else { return 0 };
    let is_same = |span: &&Span| in_progress(span.step) == in_progress(step);
    let start = trace.spans.iter().filter(is_same).map(|span| span.start_ms).min();
    start.unwrap_or_default().min(trace.elapsed_ms)
}

/// Since when the step fails, and when its next attempt is due, as a continuation of a sentence.
fn waiting_time(trace: &Trace, step: Step) -> String {
    let failed = trace.spans.iter().filter(|span| noun(span.step) == noun(step));
    let succeeded = |span: &&Span| span.failure.is_none() && span.end_ms.is_some();
    // Other targets of the step may succeed each time.
    let last_of = |what: &str| {
        failed
            .clone()
            .filter(succeeded)
            .filter(|it| it.what == what)
            .filter_map(|it| it.end_ms)
            .max()
    };
    let first = failed
        .clone()
        .filter(|span| span.failure.is_some() && span.end_ms > last_of(&span.what))
        .filter_map(|span| span.end_ms)
        .min();
    let waits = seconds(trace.elapsed_ms.saturating_sub(first.unwrap_or_default()));
    match trace.next_attempt() {
        Some(at) => format!(
            " for {waits}; the next attempt begins by {} UTC",
            at.strftime("%H:%M:%S")
        ),
        None => format!(" for {waits}; the next attempt is in progress"),
    }
}

fn in_progress(step: Step) -> &'static str {
    match step {
        Step::Hook | Step::Term | Step::Kill => "containers are being stopped",
        Step::Sandbox => "the sandbox is being stopped",
        Step::Devices => "nothing runs; its devices are being released",
        Step::Volumes => "nothing runs; volumes are being removed",
        Step::Cgroup => "nothing runs; the cgroup is being removed",
        Step::Status => "nothing runs; the status is being sent",
        Step::Delete => "nothing is left; the object is being deleted",
        Step::Cleanup => "deleted; what is left in the runtime is being removed",
    }
}

fn noun(step: Step) -> &'static str {
    match step {
        Step::Hook | Step::Term | Step::Kill => "the stop of its containers",
        Step::Sandbox => "the stop of its sandbox",
        Step::Devices => "the release of its devices",
        Step::Volumes => "the removal of its volumes",
        Step::Cgroup => "the removal of its cgroup",
        Step::Status => "its status in the API",
        Step::Delete => "the delete of its object",
        Step::Cleanup => "the clean-up of the runtime",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::trace::Blocked;

    fn failed(step: Step, message: &str) -> Blocked {
        Blocked {
            step: Some(step),
            ..Blocked::pod(BlockedReason::Failed, message)
        }
    }

    fn trace(stage: Stage, open: &[Step], blocked: &[Blocked]) -> Trace {
        let span = |step: &Step| Span {
            step: *step,
            what: String::new(),
            start_ms: 0,
            end_ms: None,
            failure: None,
        };
        Trace {
            grace_left_ms: 12_000,
            grace_end_ms: Some(30_000),
            grace_counted_from: GraceStart::Termination,
            stage,
            elapsed_ms: 18_000,
            blocked: blocked.to_vec(),
            spans: open.iter().map(span).collect(),
            ..Trace::sample()
        }
    }

    #[test]
    fn line_names_the_activity_and_shows_the_grace_period_only_while_containers_run() {
        let grace = "; 12.0s of 30s grace left";
        let (terminating, terminated, deleted) = (Stage::Terminating, Stage::Terminated, Stage::Deleted);
        let no_status = &[failed(Step::Status, "PATCH /api/v1: connection refused")][..];
        let mismatch = &[Blocked {
            reason: BlockedReason::Mismatch,
            ..failed(Step::Cgroup, "blocked: 2 processes in this cgroup")
        }][..];
        let dependents = &[Blocked::pod(
            BlockedReason::Dependents,
            "terminating pods need this pod as a driver: ns/db",
        )][..];
        for (stage, open, blocked, is_blocked, doing, grace) in [
            (
                terminating,
                &[Step::Term][..],
                &[][..],
                false,
                "containers are being stopped",
                grace,
            ),
            (
                terminating,
                &[Step::Status],
                &[],
                false,
                "nothing runs; the status is being sent",
                "",
            ),
            (
                terminating,
                &[],
                no_status,
                false,
                "its status in the API has failed",
                "",
            ),
            (
                terminating,
                &[Step::Sandbox],
                no_status,
                false,
                "the sandbox is being stopped",
                grace,
            ),
            (
                terminating,
                &[],
                &[failed(Step::Term, "hangs")],
                false,
                "the stop of its containers has failed",
                grace,
            ),
            (terminating, &[], &[failed(Step::Term, "no")], true, "blocked", grace),
            (terminating, &[], mismatch, false, "blocked", grace),
            (
                terminating,
                &[],
                dependents,
                false,
                "waits for other pods to terminate",
                "",
            ),
            (
                terminated,
                &[],
                &[failed(Step::Volumes, "busy")],
                false,
                "the removal of its volumes has failed",
                "",
            ),
            (
                deleted,
                &[],
                &[failed(Step::Cleanup, "x")],
                false,
                "deleted; the clean-up of the runtime has failed",
                "",
            ),
            (
                deleted,
                &[],
                &[],
                false,
                "deleted; what is left in the runtime is being removed",
                "",
            ),
        ] {
            let line = describe(&trace(stage, open, blocked), is_blocked);
            let time = if doing.ends_with("has failed") {
                " for 18.0s; the next attempt is in progress"
            } else {
                ", for 18.0s"
            };
            assert_eq!(line, format!("{doing}{time}{grace}"), "{open:?} {blocked:?}");
        }
        assert_eq!(describe(&trace(Stage::Finished, &[], &[]), false), "finished in 18.0s");
    }

    #[test]
    fn grace_period_that_has_not_begun_and_the_kubelets_are_named_so() {
        let line = |grace_counted_from| {
            let waiting = Trace {
                grace_end_ms: None,
                grace_counted_from,
                ..trace(Stage::Terminating, &[], &[])
            };
            describe(&waiting, true)
        };
        assert_eq!(
            line(GraceStart::NotBegun),
            "blocked, for 18.0s; its grace period of 30s has not begun"
        );
        assert_eq!(
            line(GraceStart::DeleteRequest),
            "blocked, for 18.0s; 12.0s of 30s grace left, as the kubelet counts it"
        );
    }

    #[test]
    fn retry_shows_its_wait_since_the_first_failure_and_its_next_attempt() {
        let retry_at = Some("2026-01-02T03:04:30Z".parse().unwrap());
        let busy = Blocked {
            retry_at,
            ..failed(Step::Volumes, "busy")
        };
        let mut waits = trace(Stage::Terminated, &[Step::Volumes; 4], &[busy]);
        let ends = [
            ("/a", 2_000, true),
            ("/b", 3_000, false),
            ("/a", 6_000, false),
            ("/b", 9_000, true),
        ];
        for (span, (what, end_ms, fails)) in waits.spans.iter_mut().zip(ends) {
            (span.what, span.end_ms) = (what.to_owned(), Some(end_ms));
            span.failure = fails.then(|| "busy".to_owned());
        }
        assert_eq!(
            describe(&waits, false),
            "the removal of its volumes has failed for 9.0s; the next attempt begins by 03:04:30 UTC"
        );
        waits.spans[2].failure = Some("busy".to_owned());
        let line = describe(&waits, false);
        assert!(line.contains("has failed for 16.0s;"), "{line}");
    }

    #[test]
    fn duration_of_an_activity_excludes_the_wait_before_it() {
        let mut waited = trace(Stage::Terminating, &[Step::Term, Step::Kill], &[]);
        (waited.spans[0].start_ms, waited.spans[1].start_ms) = (10_000, 16_000);
        waited.spans[0].end_ms = Some(16_000);
        let line = describe(&waited, false);
        assert!(line.starts_with("containers are being stopped, for 8.0s;"), "{line}");
    }
}
