//! Formats a plan as numbered steps.

use std::fmt::Write as _;

use super::model::{Plan, PlannedAction};
use crate::{
    model::termination::GraceStart,
    words::{escape_control_chars, short_id, some_of},
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
    for (index, (step, action)) in plan.actions().enumerate() {
        line(format!("{:>3}. {step:<8} {}", index + 1, words(action, is_wide)));
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

/// One arm for each action: long, and without logic.
fn words(action: &PlannedAction, is_wide: bool) -> String {
    let if_any = |begin: &str, names: &[String]| match names.is_empty() {
        true => String::new(),
        false => format!("{begin} {}", names.join(", ")),
    };
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
            let (id, after) = (short_id(id), if_any(", after the exit of", after));
            format!("stop container {container} ({id}), SIGKILL after {timeout_seconds}s{after}")
        }
        PlannedAction::StopSandbox { id } => format!("stop sandbox {}", short_id(id)),
        PlannedAction::UnprepareClaim { claim, drivers } => {
            format!("unprepare claim {claim} by {}", drivers.join(", "))
        }
        PlannedAction::KeepClaim { claim, used_by } => {
            format!("keep claim {claim} prepared: the pod with UID {used_by} uses it")
        }
        PlannedAction::ReportStatus => "report the status".to_owned(),
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
        PlannedAction::RemoveCgroup { cgroup, paths } => match paths.as_slice() {
            [_, _, ..] if !is_wide => format!("remove cgroup {cgroup} in {} hierarchies", paths.len()),
            paths => format!("remove cgroup {}", paths.join(", ")),
        },
        PlannedAction::DeleteObject { uid, kept_by } => {
            let kept = if_any("; it stays until these finalizers are removed:", kept_by);
            format!("delete the object, grace period 0, precondition UID {uid}{kept}")
        }
        PlannedAction::RemoveContainer { container, id } => format!("remove container {container} ({})", short_id(id)),
        PlannedAction::RemoveSandbox { id } => format!("remove sandbox {}", short_id(id)),
        PlannedAction::NotKnown { fact } => format!("not known: could not read {fact}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::step::Step,
        teardown::plan::{PlannedStep, PlannedWait},
    };

    impl Plan {
        /// The plan for a deleted pod, with one step.
        pub fn sample(step: Step, actions: Vec<PlannedAction>) -> Self {
            Self {
                is_deleted: true,
                grace_seconds: 30,
                steps: vec![PlannedStep { step, actions }],
                ..Self::default()
            }
        }
    }

    fn plan() -> Plan {
        let cgroup = |hierarchies: &[&str], pod: &str| PlannedAction::RemoveCgroup {
            cgroup: format!("kubepods/{pod}"),
            paths: hierarchies
                .iter()
                .map(|it| format!("/sys/fs/cgroup/{it}/kubepods/{pod}"))
                .collect(),
        };
        let actions = vec![cgroup(&["cpu", "memory"], "podu1"), cgroup(&["cpu"], "other")];
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
                "remove cgroup /sys/fs/cgroup/cpu/kubepods/podu1, /sys/fs/cgroup/memory/kubepods/podu1",
                "remove cgroup /sys/fs/cgroup/cpu/kubepods/other",
            ]
        );
    }

    #[test]
    fn grace_period_is_that_of_the_process_that_terminates_the_pod() {
        for (counted_from, left, line) in [
            (GraceStart::NotBegun, 30, "Grace period 30s, not begun by this agent\n"),
            (GraceStart::Termination, 12, "Grace period 30s, 12s left\n"),
            (
                GraceStart::DeleteRequest,
                20,
                "Grace period 30s, 20s left, as the kubelet counts it\n",
            ),
        ] {
            let plan = Plan {
                grace_counted_from: counted_from,
                grace_left_seconds: left,
                ..plan()
            };
            let text = text(&plan, false);
            assert!(text.contains(line), "{text}");
        }
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
