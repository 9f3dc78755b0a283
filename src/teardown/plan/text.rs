//! Formats a plan as numbered steps.

use std::fmt::Write as _;

use super::{
    model::{Plan, PlannedAction},
    status::PlannedStatus,
};
use crate::words::escape_control_chars;

/// The plan as numbered steps.
pub fn text(plan: &Plan) -> String {
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
    line(format!(
        "Grace period {}s, {}s left",
        plan.grace_seconds, plan.grace_left_seconds
    ));
    line(String::new());
    for (index, (step, action)) in plan.actions().enumerate() {
        line(format!("{:>3}. {step:<8} {}", index + 1, words(action)));
    }
    for what in &plan.unknown {
        line(format!("Unknown: could not read {what}"));
    }
    line("\nNothing was touched.".trim_start().to_owned());
    out
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
        PlannedAction::ReportStatus { outcomes } => {
            let outcomes: Vec<String> = outcomes.iter().map(outcome).collect();
            format!(
                "report {}",
                if outcomes.is_empty() {
                    "the status".to_owned()
                } else {
                    outcomes.join("; ")
                }
            )
        }
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
        PlannedAction::RemoveDirectory { path } => format!("remove directory {path}"),
        PlannedAction::RemoveCgroup { path } => format!("remove cgroup {path}"),
        PlannedAction::DeleteObject { uid, kept_by } => {
            let kept = match kept_by.is_empty() {
                true => String::new(),
                false => format!("; it stays until these finalizers are removed: {}", kept_by.join(", ")),
            };
            format!("delete the object, grace period 0, precondition UID {uid}{kept}")
        }
        PlannedAction::RemoveContainer { container, id } => format!("remove container {container} ({})", short(id)),
        PlannedAction::RemoveSandbox { id } => format!("remove sandbox {}", short(id)),
    }
}

fn outcome(status: &PlannedStatus) -> String {
    let conditions: Vec<String> = status
        .conditions
        .iter()
        .map(|it| format!("{}={}", it.name, it.status))
        .collect();
    format!(
        "phase {}{} (exit codes: {}; {})",
        status.phase.as_deref().unwrap_or("?"),
        status
            .reason
            .as_deref()
            .map(|reason| format!(", reason {reason}"))
            .unwrap_or_default(),
        status.if_exit_codes,
        conditions.join(" ")
    )
}

/// The prefix of an ID that crictl shows.
fn short(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}
