//! What a user can do about a cause.

use std::{borrow::Cow, path::Path};

use super::kind::CauseKind;
use crate::{
    model::{step::Step, termination::Terminator},
    words::{shell_quoted, unmount_commands},
};

/// An instruction without a period at its end; empty if there is nothing to do.
pub(super) fn remedy(kind: &CauseKind, terminator: Terminator) -> Cow<'static, str> {
    match (kind, terminator) {
        (
            CauseKind::DriverMissing {
                driver_kind,
                mounted,
                pod,
                ..
            },
            Terminator::Agent,
        ) if driver_kind == "CSI" => {
            let approve = format!("pod-teardown approve pod/{pod}");
            let commands = match unmount_commands(mounted) {
                unmounts if unmounts.is_empty() => approve,
                unmounts => format!("{unmounts} && {approve}"),
            };
            format!("start the driver's pod on this node again; if it never returns: {commands}").into()
        }
        (CauseKind::FileSystemFrozen { command, .. }, _) => {
            format!("thaw it when the backup has ended: {command}").into()
        }
        (CauseKind::CgroupCovered { path, .. }, _) => format!(
            "this agent unmounts only a pod's own cgroups: umount {}",
            shell_quoted(Path::new(path))
        )
        .into(),
        _ => fixed_remedy(kind, terminator).into(),
    }
}

fn fixed_remedy(kind: &CauseKind, terminator: Terminator) -> &'static str {
    match kind {
        CauseKind::StepFailed { step, .. } => of_failed_step(*step),
        CauseKind::NotDeleted { .. }
        | CauseKind::KubeletTerminates { .. }
        | CauseKind::SidecarWaits { .. }
        | CauseKind::Reported { .. }
        // These have their commands.
        | CauseKind::FileSystemFrozen { .. }
        | CauseKind::CgroupCovered { .. } => "",
        CauseKind::EndedNotDeleted { .. } => "delete it, or wait for the controller that owns it",
        CauseKind::MirrorPod { .. } => "remove its manifest from the node to stop the static pod",
        CauseKind::AgentBlocked { .. } => "see pod-teardown status",
        CauseKind::AgentPaused { .. } => "pod-teardown resume",
        CauseKind::ApiServerUnreachable { .. } => {
            "check the API server and the network to it: pod-teardown check; this agent reports and deletes the pod when it answers"
        }
        CauseKind::NodeUnreachable { .. } => {
            "repair the node or its network, or start its kubelet or pod-teardown; do not delete the pod with force while its \
             processes may run"
        }
        CauseKind::NodeMissing { .. } => {
            "kube-controller-manager deletes such pods after about a minute, even if they run: shut the node down, or start its \
             kubelet, which registers the Node again"
        }
        CauseKind::NodeNotReady { .. } => {
            "repair what the condition Ready of the node names; do not delete the pod with force while its processes may run"
        }
        CauseKind::Frozen { .. } => {
            "thaw them: echo 0 > CGROUP/cgroup.freeze, or with cgroup v1 echo THAWED > CGROUP/freezer.state"
        }
        CauseKind::MountHidden { .. } => "remove the mount that hides it; the pod's own mounts and data stay",
        CauseKind::Uninterruptible { .. } => {
            "repair the disk, server or driver that it waits for (/proc/PID/stack shows it), or restart the node"
        }
        CauseKind::ContainerUnknown { .. } => {
            "read the log of the container runtime; the container's shim may have died"
        }
        CauseKind::ProcessesLeft { .. } => {
            "compare them with crictl ps -a; if the runtime has lost the container, kill these processes"
        }
        CauseKind::RuntimeNotReady { condition, .. } if condition == "NetworkReady" => {
            "repair the network plugin (its configuration in /etc/cni/net.d, its DaemonSet); without it the runtime may fail to stop sandboxes"
        }
        CauseKind::RuntimeNotReady { .. } => "read the log of the container runtime",
        CauseKind::RuntimeUnreachable { .. } => "start the container runtime, and read its log",
        CauseKind::ShimStopped { .. } => {
            "resume it: kill -CONT PID; or restart the container runtime, which drops the shim after about 10 seconds"
        }
        CauseKind::SandboxNotStopped { process: Some(_), .. } => {
            "read the runtime's log: its program may be missing, or the process may be outside of its cgroup"
        }
        CauseKind::SandboxNotStopped { .. } => {
            "read the runtime's log for the error of StopPodSandbox: often the DEL of the network plugin fails"
        }
        CauseKind::MountBusy { is_outside: false, .. } => {
            "find out whose processes they are: /proc/PID/cgroup names the pod; those of this pod exit with its containers"
        }
        CauseKind::MountBusy { holders, .. } if holders.iter().any(|holder| holder.pod.is_some()) => {
            "delete the pod of these processes, or let them close their files and leave the directory"
        }
        CauseKind::MountBusy { .. } => "stop these processes, or let them close their files and leave the directory",
        CauseKind::ServerMount { .. } => "check that the server answers",
        CauseKind::DriverMissing { .. } => {
            "start the driver's pod on this node again: only the driver can unpublish its volumes and unprepare its claims"
        }
        CauseKind::Finalizer { .. } => {
            "read the log of that controller; if you remove the finalizer by hand, the controller's work is skipped"
        }
        CauseKind::Unknown { .. } => "no conclusion is drawn; repeat the command, or inspect it manually",
        CauseKind::GracePeriod { .. }
        | CauseKind::PreStopHook { .. }
        | CauseKind::SigtermNotHandled { .. }
        | CauseKind::StillRuns { .. }
        | CauseKind::MountLeft { .. }
        | CauseKind::VolumeDirectoriesLeft { .. }
        | CauseKind::CgroupsLeft { .. }
        | CauseKind::PhaseNotTerminal { .. }
        | CauseKind::FinalDeletePending
        | CauseKind::NothingFound => match terminator {
            Terminator::Agent => by_agent(kind),
            Terminator::Kubelet => by_kubelet(kind),
            Terminator::NoProcess => "no process does it now: start the kubelet, or resolve what blocks this agent",
        },
    }
}

/// Where to look if no other cause explains the failed step.
fn of_failed_step(step: Step) -> &'static str {
    match step {
        Step::Hook | Step::Term | Step::Kill | Step::Sandbox | Step::Cleanup => {
            "remove what the message names; the runtime's log has more: journalctl -u containerd, or -u crio"
        }
        Step::Devices | Step::Volumes => "remove what the message names; the log of the driver's pod has more",
        Step::Cgroup => "remove what the message names: kill the processes, or unmount the path",
        Step::Status | Step::Delete => "check the API server and this agent's permissions: pod-teardown check",
    }
}

/// The next step is the agent's.
fn by_agent(kind: &CauseKind) -> &'static str {
    match kind {
        CauseKind::GracePeriod { .. } => "wait, or shorten it with pod-teardown stop POD --grace-period SECONDS",
        CauseKind::PreStopHook { .. } => "wait: the hook ends with the grace period at the latest",
        CauseKind::SigtermNotHandled {
            kill_in_seconds: Some(_),
            ..
        } => AFTER_SIGKILL,
        CauseKind::SigtermNotHandled { .. } | CauseKind::StillRuns { .. } => {
            "read why the runtime does not kill it: pod-teardown timeline POD, this agent's log, the runtime's log"
        }
        CauseKind::PhaseNotTerminal { .. } => {
            "this agent's next attempt reports the status; the last line says when it begins"
        }
        CauseKind::FinalDeletePending => {
            "this agent's next attempt deletes the object; the last line says when it begins"
        }
        CauseKind::NothingFound => "repeat the command; pod-teardown timeline POD shows what this agent does",
        _ => "this agent's next attempt removes it; the last line says when it begins",
    }
}

/// The next step is the kubelet's.
fn by_kubelet(kind: &CauseKind) -> &'static str {
    match kind {
        CauseKind::GracePeriod { .. } => "wait; a kubelet may be unable to shorten a stop in progress",
        CauseKind::PreStopHook { .. } => "wait: the hook ends with the grace period at the latest",
        CauseKind::SigtermNotHandled {
            kill_in_seconds: Some(_),
            ..
        } => AFTER_SIGKILL,
        CauseKind::SigtermNotHandled { .. } => {
            "read the errors of its stop in the kubelet's log; if the grace period was shortened, the kubelet may still wait for \
             its first StopContainer: interrupt it with crictl stop --timeout 0 CONTAINER"
        }
        CauseKind::StillRuns { .. } => {
            "read the errors of its stop: journalctl -u kubelet, the pod's events (FailedKillPod), the runtime's log"
        }
        CauseKind::MountLeft { .. } => {
            "wait for the next sync; if it stays, read the error of its unmount in the kubelet's log"
        }
        CauseKind::PhaseNotTerminal { .. } => {
            "wait for the kubelet's next status; if the phase stays, read its log for status patches that fail"
        }
        CauseKind::NothingFound => "repeat the command; read the kubelet's log",
        _ => "wait for the next sync; if it stays, read the kubelet's log",
    }
}

/// For a container that does not handle SIGTERM.
const AFTER_SIGKILL: &str = "wait for SIGKILL; then let the program handle SIGTERM, start it below an init such as tini, or \
    give the pod a shorter terminationGracePeriodSeconds (a container with another stopSignal is not affected)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_of_an_uninstalled_csi_driver_has_its_commands_in_their_order() {
        let remedy_of = |driver_kind: &str, mounted: &[&str], terminator| {
            let kind = CauseKind::DriverMissing {
                driver_kind: driver_kind.to_owned(),
                driver: "d".to_owned(),
                needed_by: "volume v".to_owned(),
                pod: "default/web".to_owned(),
                mounted: mounted.iter().map(|&path| path.to_owned()).collect(),
                pods: Vec::new(),
                why: String::new(),
            };
            remedy(&kind, terminator).into_owned()
        };
        let text = remedy_of("CSI", &["/pods/u/mount", "/csi/globalmount"], Terminator::Agent);
        let commands = "umount /pods/u/mount && umount /csi/globalmount && pod-teardown approve pod/default/web";
        assert!(text.ends_with(commands), "{text}");
        let text = remedy_of("CSI", &[], Terminator::Agent);
        assert!(
            text.ends_with("never returns: pod-teardown approve pod/default/web"),
            "{text}"
        );
        // Neither has an approval.
        for (kind, terminator) in [("DRA", Terminator::Agent), ("CSI", Terminator::Kubelet)] {
            let text = remedy_of(kind, &["/m"], terminator);
            assert!(
                text.contains("start the driver's pod") && !text.contains("approve"),
                "{text}"
            );
        }
    }
}
