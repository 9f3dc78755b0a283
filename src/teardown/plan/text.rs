//! Formats a plan as numbered steps.

use std::{fmt::Write as _, iter};

use super::{
    model::{Plan, PlannedAction},
    status::PlannedStatus,
};
use crate::{
    model::{step::Step, termination::GraceStart},
    words::{escape_control_chars, some_of},
};

/// The plan as numbered steps. `is_wide`: with the path of a cgroup in each hierarchy.
pub fn text(plan: &Plan, is_wide: bool) -> String {
    let mut out = format!("Pod {}/{}  uid {}\n", plan.namespace, plan.name, plan.uid);
    let mut line = |text: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", escape_control_chars(&text));
    };
    if plan.is_mirror {
        line("It is the mirror of a static pod: nothing is ever done to it.".to_owned());
    } else if !plan.is_deleted {
        line("It is not being deleted: nothing would be done now. This is the plan if it were.".to_owned());
    }
    for why in &plan.blocked {
        line(format!("Blocked now: {why}"));
    }
    if let Some(wait) = &plan.waits_for {
        let none = ["none now".to_owned()];
        let pods = if wait.pods.is_empty() { &none[..] } else { &wait.pods };
        line(format!(
            "Waits first, at most {}s, until the terminating pods that need it as {} are gone: {}",
            wait.at_most_seconds,
            wait.needed_as,
            some_of(pods.iter().cloned())
        ));
    }
    let (grace, left) = (plan.grace_seconds, plan.grace_left_seconds);
    line(match plan.grace_counted_from {
        GraceStart::Termination => format!("Grace period {grace}s, {left}s left"),
        GraceStart::DeleteRequest => format!("Grace period {grace}s, {left}s left, as the kubelet counts it"),
        GraceStart::NotBegun => format!("Grace period {grace}s, not begun by this agent"),
    });
    line(String::new());
    for (index, (step, words)) in lines(plan, is_wide).into_iter().enumerate() {
        line(format!("{:>3}. {step:<8} {words}", index + 1));
    }
    let is_in_steps = |what: &str| {
        let mut actions = plan.actions();
        actions.any(|(_, action)| matches!(action, PlannedAction::NotKnown { fact } if fact == what))
    };
    for what in plan.unknown.iter().filter(|what| !is_in_steps(what)) {
        line(format!("Unknown: could not read {what}"));
    }
    line("\nNothing was touched.".trim_start().to_owned());
    out
}

/// The actions with their steps. A cgroup is one line for all of its hierarchies, unless `is_wide`.
fn lines(plan: &Plan, is_wide: bool) -> Vec<(Step, String)> {
    let mut lines = Vec::new();
    for planned in &plan.steps {
        let mut actions = planned.actions.iter().peekable();
        while let Some(action) = actions.next() {
            let is_same = |next: &&PlannedAction| !is_wide && same_cgroup(action, next);
            let more = iter::from_fn(|| actions.next_if(is_same)).count();
            let mut line = match (more, action) {
                (1.., PlannedAction::RemoveCgroup { cgroup, .. }) => {
                    format!("remove cgroup {cgroup} in {} hierarchies", more + 1)
                }
                _ => words(action),
            };
            if planned.is_after_unknown && !matches!(action, PlannedAction::NotKnown { .. }) {
                line += " (only after all steps above have succeeded)";
            }
            lines.push((planned.step, line));
        }
    }
    lines
}

/// Whether both remove the same cgroup, in two hierarchies. An older agent does not say.
fn same_cgroup(one: &PlannedAction, other: &PlannedAction) -> bool {
    match (one, other) {
        (PlannedAction::RemoveCgroup { cgroup, .. }, PlannedAction::RemoveCgroup { cgroup: next, .. }) => {
            cgroup == next && !cgroup.is_empty()
        }
        _ => false,
    }
}

fn words(action: &PlannedAction) -> String {
    match action {
        PlannedAction::RunHook {
            container,
            handler,
            target,
            ..
        } => format!("run the preStop hook of container {container}: {handler} {target}"),
        PlannedAction::StopContainer {
            container,
            id,
            timeout_seconds,
            after,
        } => {
            let after = match after.is_empty() {
                true => String::new(),
                false => format!(", after the exit of {}", after.join(", ")),
            };
            format!(
                "stop container {container} ({}), SIGKILL after {timeout_seconds}s{after}",
                short(id)
            )
        }
        PlannedAction::StopSandbox { id } => format!("stop sandbox {}", short(id)),
        PlannedAction::UnprepareClaim { claim, drivers } => {
            format!("unprepare claim {claim} by {}", drivers.join(", "))
        }
        PlannedAction::KeepClaim { claim, used_by } => {
            format!("keep claim {claim} prepared: the pod with UID {used_by} uses it")
        }
        PlannedAction::ReportStatus { outcomes } => report(outcomes),
        PlannedAction::Unmount { path, fs_type } => format!("unmount {path} ({fs_type})"),
        PlannedAction::UnmapDevice { path } => format!("unmount device {path} and detach its loop device"),
        PlannedAction::UnpublishVolume { driver, handle, target } => format!(
            "NodeUnpublishVolume by {} of volume {} at {target}",
            driver.as_deref().unwrap_or("its driver, which is not known yet"),
            handle.as_deref().unwrap_or("?")
        ),
        PlannedAction::UnstageVolume { driver, handle, path } => format!(
            "NodeUnstageVolume by {} of volume {} at {path}, unless another pod uses it",
            driver.as_deref().unwrap_or("its driver"),
            handle.as_deref().unwrap_or("?")
        ),
        PlannedAction::LeaveVolume { path, why } => format!("leave {path}, which blocks the pod: {why}"),
        PlannedAction::ReleaseUserIds { path } => {
            format!("release the user IDs of its user namespace: remove file {path}")
        }
        PlannedAction::RemoveDirectory { path } => format!("remove directory {path}"),
        PlannedAction::RemoveCgroup { path, .. } => format!("remove cgroup {path}"),
        PlannedAction::DeleteObject { uid, kept_by } => {
            let kept = match kept_by.is_empty() {
                true => String::new(),
                false => format!("; it stays until these finalizers are removed: {}", kept_by.join(", ")),
            };
            format!("delete the object, grace period 0, precondition UID {uid}{kept}")
        }
        PlannedAction::RemoveContainer { container, id } => format!("remove container {container} ({})", short(id)),
        PlannedAction::RemoveSandbox { id } => format!("remove sandbox {}", short(id)),
        PlannedAction::NotKnown { fact } => format!("not known: could not read {fact}"),
    }
}

/// The status that would be reported; the conditions once, if they do not depend on the exit codes.
fn report(outcomes: &[PlannedStatus]) -> String {
    let Some(first) = outcomes.first() else {
        return "report the status".to_owned();
    };
    let has_same_conditions = outcomes.iter().all(|it| conditions(it) == conditions(first));
    let phases: Vec<String> = outcomes
        .iter()
        .map(|it| match has_same_conditions {
            true => phase(it),
            false => format!("{} with {}", phase(it), conditions(it)),
        })
        .collect();
    let common = if has_same_conditions {
        format!("; {}", conditions(first))
    } else {
        String::new()
    };
    format!("report {}{common}", phases.join(", or "))
}

fn phase(status: &PlannedStatus) -> String {
    let reason = status.reason.as_deref().map(|reason| format!(", reason {reason}"));
    format!(
        "phase {}{} (exit codes: {})",
        status.phase.as_deref().unwrap_or("?"),
        reason.unwrap_or_default(),
        status.if_exit_codes,
    )
}

fn conditions(status: &PlannedStatus) -> String {
    let conditions = status.conditions.iter().map(|it| format!("{}={}", it.name, it.status));
    conditions.collect::<Vec<_>>().join(" ")
}

/// The prefix of an ID that crictl shows.
fn short(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::teardown::plan::{PlannedWait, status::PlannedCondition};

    fn plan() -> Plan {
        let cgroup = |hierarchy: &str, pod: &str| PlannedAction::RemoveCgroup {
            cgroup: format!("kubepods/{pod}"),
            path: format!("/sys/fs/cgroup/{hierarchy}/kubepods/{pod}"),
        };
        let actions = vec![
            cgroup("cpu", "podu1"),
            cgroup("memory", "podu1"),
            cgroup("cpu", "other"),
        ];
        Plan::sample(Step::Cgroup, actions)
    }

    #[test]
    fn cgroup_is_one_line_for_all_hierarchies_and_wide_shows_each() {
        let steps = |is_wide| {
            let text = text(&plan(), is_wide);
            let steps = text.lines().filter_map(|line| line.trim().split_once(". cgroup   "));
            steps.map(|(_, words)| words.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            steps(false),
            [
                "remove cgroup kubepods/podu1 in 2 hierarchies",
                "remove cgroup /sys/fs/cgroup/cpu/kubepods/other",
            ]
        );
        assert_eq!(
            steps(true),
            [
                "remove cgroup /sys/fs/cgroup/cpu/kubepods/podu1",
                "remove cgroup /sys/fs/cgroup/memory/kubepods/podu1",
                "remove cgroup /sys/fs/cgroup/cpu/kubepods/other",
            ]
        );
    }

    #[test]
    fn two_statuses_are_alternatives_and_common_conditions_stand_once() {
        let status = |phase: &str, codes: &str, ready: &str| PlannedStatus {
            if_exit_codes: codes.to_owned(),
            phase: Some(phase.to_owned()),
            reason: None,
            conditions: vec![PlannedCondition {
                name: "Ready".to_owned(),
                status: ready.to_owned(),
                reason: None,
            }],
        };
        let good = status("Succeeded", "all are 0", "False");
        assert_eq!(
            report(&[good.clone(), status("Failed", "one is not 0", "False")]),
            "report phase Succeeded (exit codes: all are 0), or phase Failed (exit codes: one is not 0); Ready=False"
        );
        assert_eq!(
            report(&[good, status("Failed", "one is not 0", "Unknown")]),
            "report phase Succeeded (exit codes: all are 0) with Ready=False, or phase Failed (exit codes: one is not 0) with \
             Ready=Unknown"
        );
    }

    #[test]
    fn driver_waits_for_the_pods_that_need_it() {
        let line = |pods: &[&str]| {
            let wait = PlannedWait {
                needed_as: "a driver".to_owned(),
                pods: pods.iter().map(ToString::to_string).collect(),
                at_most_seconds: 600,
            };
            let waits_for = Some(wait);
            text(&Plan { waits_for, ..plan() }, false)
        };
        let begin = "Waits first, at most 600s, until the terminating pods that need it as a driver are gone: ";
        assert!(line(&["shop/web"]).contains(&format!("{begin}shop/web\n")));
        assert!(line(&[]).contains(&format!("{begin}none now\n")));
    }
}
