//! Where a pod's end is at, in words. Pure.

use crate::{
    model::trace::{BlockedReason, Span, Stage, Step, Trace},
    words::seconds,
};

/// Where a pod's end is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nothing is done to it.
    Held,
    /// Its end waits for that of others, and its grace period has not begun.
    Waits,
    /// This step is under way.
    Now(Step),
    /// This step has failed and will be tried again.
    Again(Step),
    /// Between two steps.
    Between,
}

/// Why nothing is done for it, if somebody has paused the agent.
pub(super) fn paused(story: &Trace) -> Option<&str> {
    let mut blocked = story.blocked.iter();
    let paused = blocked.find(|blocked| blocked.reason == BlockedReason::Paused)?;
    Some(&paused.message)
}

fn at(story: &Trace, held: bool) -> At {
    for blocked in &story.blocked {
        match blocked.reason {
            BlockedReason::Dependents if !held => return At::Waits,
            BlockedReason::Guard | BlockedReason::Paused | BlockedReason::Mismatch => {
                return At::Held;
            }
            BlockedReason::Dependents | BlockedReason::Failed => {}
        }
    }
    if held {
        return At::Held;
    }
    let open = story.spans.iter().filter(|span| span.end_ms.is_none());
    if let Some(step) = open.map(|span| span.step).min() {
        return At::Now(step);
    }
    story.failed_at().map_or(At::Between, At::Again)
}

/// Where a pod's end is at, in words.
pub(super) fn stands(story: &Trace, held: bool) -> String {
    let at = at(story, held);
    let elapsed = seconds(story.elapsed_ms - since_ms(story, at));
    let doing = match (at, story.stage) {
        (_, Stage::Finished) => return format!("finished in {elapsed}"),
        (At::Held, _) => "held".to_owned(),
        (At::Waits, _) => "its end waits for that of others".to_owned(),
        (At::Now(step), _) => under_way(step).to_owned(),
        (At::Again(step), Stage::Deleted) => format!("deleted; {} will be tried again", thing(step)),
        (At::Again(step), _) => format!("{} will be tried again", thing(step)),
        (At::Between, Stage::Terminating) => under_way(Step::Term).to_owned(),
        (At::Between, Stage::Terminated) => "nothing runs; volumes and cgroup are being removed".to_owned(),
        (At::Between, Stage::Deleted) => under_way(Step::Cleanup).to_owned(),
    };
    // The status is sent, and the object deleted, when nothing runs any more: nobody has a use for grace then.
    let runs = story.stage == Stage::Terminating
        && !matches!(
            at,
            At::Waits | At::Now(Step::Status | Step::Delete) | At::Again(Step::Status | Step::Delete)
        );
    match story.grace_left_ms {
        _ if !runs => format!("{doing}, for {elapsed}"),
        0 => format!(
            "{doing}, for {elapsed}; the grace period of {} s is over",
            story.grace_seconds
        ),
        left => format!(
            "{doing}, for {elapsed}; {} of {} s grace left",
            seconds(left),
            story.grace_seconds
        ),
    }
}

/// Since when it is there, if not from the beginning: pods may have waited long for a turn.
fn since_ms(story: &Trace, at: At) -> u64 {
    let At::Now(step) = at else { return 0 };
    let doing = |span: &&Span| under_way(span.step) == under_way(step);
    let since = story.spans.iter().filter(doing).map(|span| span.start_ms).min();
    since.unwrap_or_default().min(story.elapsed_ms)
}

fn under_way(step: Step) -> &'static str {
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

fn thing(step: Step) -> &'static str {
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

    fn story(stage: Stage, open: &[Step], blocked: &[Blocked]) -> Trace {
        let span = |step: &Step| Span {
            step: *step,
            what: String::new(),
            start_ms: 0,
            end_ms: None,
            failure: None,
        };
        Trace {
            grace_left_ms: 12_000,
            stage,
            elapsed_ms: 18_000,
            blocked: blocked.to_vec(),
            spans: open.iter().map(span).collect(),
            ..Trace::sample()
        }
    }

    #[test]
    fn a_line_names_what_really_waits_and_grace_only_while_something_runs() {
        let grace = "; 12.0 s of 30 s grace left";
        let (ending, ended, gone) = (Stage::Terminating, Stage::Terminated, Stage::Deleted);
        let no_status = &[failed(Step::Status, "PATCH /api/v1: connection refused")][..];
        let mismatch = &[Blocked {
            reason: BlockedReason::Mismatch,
            ..failed(Step::Cgroup, "held: it holds 2 processes")
        }][..];
        let dependents = &[Blocked::pod(
            BlockedReason::Dependents,
            "ns/db that end need this pod as a driver",
        )][..];
        for (stage, open, blocked, held, doing, grace) in [
            (
                ending,
                &[Step::Term][..],
                &[][..],
                false,
                "containers are being stopped",
                grace,
            ),
            (
                ending,
                &[Step::Status],
                &[],
                false,
                "nothing runs; the status is being sent",
                "",
            ),
            (
                ending,
                &[],
                no_status,
                false,
                "its status in the API will be tried again",
                "",
            ),
            (
                ending,
                &[Step::Sandbox],
                no_status,
                false,
                "the sandbox is being stopped",
                grace,
            ),
            (
                ending,
                &[],
                &[failed(Step::Term, "hangs")],
                false,
                "the stop of its containers will be tried again",
                grace,
            ),
            (ending, &[], &[failed(Step::Term, "no")], true, "held", grace),
            (ending, &[], mismatch, false, "held", grace),
            (ending, &[], dependents, false, "its end waits for that of others", ""),
            (
                ended,
                &[],
                &[failed(Step::Volumes, "busy")],
                false,
                "the removal of its volumes will be tried again",
                "",
            ),
            (
                gone,
                &[],
                &[failed(Step::Cleanup, "x")],
                false,
                "deleted; the clean-up of the runtime will be tried again",
                "",
            ),
            (
                gone,
                &[],
                &[],
                false,
                "deleted; what is left in the runtime is being removed",
                "",
            ),
        ] {
            let told = stands(&story(stage, open, blocked), held);
            assert_eq!(told, format!("{doing}, for 18.0 s{grace}"), "{open:?} {blocked:?}");
        }
        // An age would grow; this is how long it took.
        assert_eq!(stands(&story(Stage::Finished, &[], &[]), false), "finished in 18.0 s");
    }

    #[test]
    fn how_long_something_has_been_going_on_does_not_count_what_was_waited_for_before() {
        let mut waited = story(Stage::Terminating, &[Step::Term, Step::Kill], &[]);
        (waited.spans[0].start_ms, waited.spans[1].start_ms) = (10_000, 16_000);
        waited.spans[0].end_ms = Some(16_000);
        let told = stands(&waited, false);
        assert!(told.starts_with("containers are being stopped, for 8.0 s;"), "{told}");
    }
}
