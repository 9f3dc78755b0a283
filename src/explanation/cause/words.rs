//! Messages of causes.

use super::kind::{CauseKind, ProcessName, SigtermDisposition};
use crate::{
    model::termination::GraceStart,
    words::{format_count, some_of},
};

/// One sentence without a period at its end.
pub(super) fn message(kind: &CauseKind) -> String {
    match kind {
        CauseKind::StepFailed { step, target, text } => match target.is_empty() {
            true => format!("{step}: {text}"),
            false => format!("{step} {target}: {text}"),
        },
        CauseKind::NotDeleted { phase, running } => {
            let runs = match (running, phase.as_deref()) {
                (Some(0), Some(phase)) => format!("its phase is {phase}, and none of its containers runs"),
                (Some(running), _) if *running > 0 => {
                    format!("it runs, with {}", format_count(*running as u64, "running container"))
                }
                (_, Some(phase)) => format!("its phase is {phase}"),
                (_, None) => "its phase is not known".to_owned(),
            };
            format!("it is not being deleted: its object has no deletionTimestamp; {runs}")
        }
        CauseKind::EndedNotDeleted { phase, reason } => format!(
            "it has terminated{}{}, and it is not being deleted",
            with(" as ", phase.as_deref(), ""),
            with(" (", reason.as_deref(), ")"),
        ),
        CauseKind::MirrorPod { is_deleted: true } => {
            "it is the mirror of a static pod; its deletion does not stop the static pod".to_owned()
        }
        CauseKind::MirrorPod { is_deleted: false } => "it is the mirror of a static pod".to_owned(),
        CauseKind::KubeletTerminates { kubelet } => {
            format!("a kubelet runs and has to terminate the pod; this agent only reads: {kubelet}")
        }
        CauseKind::AgentBlocked { why } => format!("no kubelet terminates it, and this agent may not: {why}"),
        CauseKind::AgentPaused { why } => format!("this agent is paused, and no kubelet terminates it: {why}"),
        CauseKind::ApiServerUnreachable { error } => format!(
            "the API server does not answer this agent; the pod's object is shown as the watch last reported it: {error}"
        ),
        CauseKind::NodeUnreachable { node, kubelet, agent } => format!(
            "node {node} is unreachable, and no agent reports that it is active there; kubelet: {kubelet}; agent: {agent}"
        ),
        CauseKind::NodeMissing { node } => {
            format!("its Node {node} does not exist: no component reports what runs on that node")
        }
        CauseKind::NodeNotReady { node, kubelet, agent } => format!(
            "the kubelet of node {node} reports that it is not ready, and no agent reports that it is active there; \
             kubelet: {kubelet}; agent: {agent}"
        ),
        CauseKind::Reported {
            component,
            reason,
            text,
            ago_seconds,
        } => format!("{component} reported {reason} {ago_seconds}s ago: {text}"),
        CauseKind::GracePeriod {
            left_seconds,
            total_seconds,
            counted_from,
        } => {
            let total = total_seconds.map(|total| format!(" of {total}s")).unwrap_or_default();
            match counted_from {
                GraceStart::DeleteRequest => {
                    format!("its grace period has {left_seconds}s left{total}, by the API server's clock")
                }
                GraceStart::Termination => format!("its grace period has {left_seconds}s left{total}"),
                GraceStart::NotBegun => {
                    format!("its grace period of {left_seconds}s begins when this agent begins to terminate the pod")
                }
            }
        }
        CauseKind::PreStopHook { container, handler } => {
            format!("the preStop hook ({handler}) of container {container} may still run")
        }
        CauseKind::SidecarWaits { container, others } => {
            format!(
                "sidecar {container} is stopped after {}",
                some_of(others.iter().cloned())
            )
        }
        CauseKind::SigtermNotHandled {
            container,
            process,
            how,
            kill_in_seconds,
        } => {
            let how = match how {
                SigtermDisposition::Ignored => "ignores SIGTERM",
                SigtermDisposition::Blocked => "blocks SIGTERM",
                SigtermDisposition::InitWithoutHandler => {
                    "ignores SIGTERM: it is PID 1 of its container and has no handler for it"
                }
            };
            let kill = match kill_in_seconds {
                Some(seconds) => format!("SIGKILL follows after {seconds}s more of its grace period"),
                None => "its grace period has expired".to_owned(),
            };
            format!("{} of container {container} {how}; {kill}", name(process))
        }
        CauseKind::Frozen { cgroups } => {
            let cgroups = some_of(cgroups.iter().cloned());
            format!("its processes are frozen and handle no signal: {cgroups}")
        }
        CauseKind::Uninterruptible {
            process,
            container,
            waits_in,
        } => format!(
            "{}{} is in uninterruptible sleep (state D){}; no signal terminates it",
            name(process),
            with(" of container ", container.as_deref(), ""),
            with(" in ", waits_in.as_deref(), "")
        ),
        CauseKind::StillRuns {
            container,
            overdue_seconds,
            process,
            cgroup,
            kill_in_seconds,
        } => format!(
            "container {container} still runs {overdue_seconds}s after the grace period{}{}{}",
            with(" as ", process.as_ref().map(name).as_deref(), ""),
            with(" in cgroup ", cgroup.as_deref(), ""),
            kill(*kill_in_seconds)
        ),
        CauseKind::ShimStopped { sandbox, process } => format!(
            "{}, the shim of sandbox {}, is stopped (state T): the runtime can stop nothing of the pod",
            name(process),
            short(sandbox)
        ),
        CauseKind::ContainerUnknown { container } => {
            format!("the runtime does not know whether container {container} runs")
        }
        CauseKind::ProcessesLeft { processes, count } => format!(
            "the runtime shows no running container, and {} left in the pod's cgroups: {}",
            if *count == 1 {
                "1 process is".to_owned()
            } else {
                format!("{count} processes are")
            },
            some_of(processes.iter().map(name))
        ),
        CauseKind::RuntimeNotReady {
            condition,
            reason,
            text,
        } => {
            format!("the runtime reports {condition}=false: {reason}: {text}")
        }
        CauseKind::RuntimeUnreachable { error } => format!("the container runtime cannot be reached: {error}"),
        CauseKind::SandboxNotStopped {
            sandbox,
            process: Some(process),
            cgroup,
            kill_in_seconds,
        } => format!(
            "sandbox {} is not stopped: its {} runs{}{}",
            short(sandbox),
            name(process),
            with(" in cgroup ", cgroup.as_deref(), ""),
            kill(*kill_in_seconds)
        ),
        CauseKind::SandboxNotStopped {
            sandbox, process: None, ..
        } => {
            format!(
                "all containers have exited, and sandbox {} is not stopped",
                short(sandbox)
            )
        }
        CauseKind::MountBusy {
            path,
            is_outside,
            holders,
            more,
        } => {
            let more = match more {
                0 => String::new(),
                more => format!(" ({more} further users were not read)"),
            };
            let holders = some_of(holders.iter().map(name));
            match is_outside {
                true => format!("mount {path} is in use outside of the pod by {holders}{more}"),
                false => {
                    format!("mount {path} is in use by {holders}{more}; whether they are the pod's own is not known")
                }
            }
        }
        CauseKind::MountLeft { path, fs_type } => {
            format!("{fs_type} is still mounted at {path}; no process outside of the pod is known to use it")
        }
        CauseKind::MountHidden { path, cover } => format!("mount {path} is hidden: {cover}"),
        CauseKind::ServerMount { path, fs_type, source } => {
            format!("{path} is mounted from server {source} ({fs_type}): its unmount needs that server")
        }
        CauseKind::DriverMissing {
            driver_kind,
            driver,
            needed_by,
            pod: _,
            mounted: _,
            pods,
            why,
        } => {
            let pods = match pods.is_empty() {
                true => "no pod of this node seems to be that driver".to_owned(),
                false => format!("its pod seems to be {}", some_of(pods.iter().cloned())),
            };
            format!("{driver_kind} driver {driver} of {needed_by} is not available on this node: {why}; {pods}")
        }
        CauseKind::FileSystemFrozen { path, device, .. } => {
            format!("file system {device} at {path} is frozen, as by a backup: every write to it waits in the kernel")
        }
        CauseKind::CgroupCovered { path, cgroup } => {
            format!("its cgroup is hidden: cgroup {cgroup} is mounted at {path}")
        }
        CauseKind::VolumeDirectoriesLeft { paths } => {
            let paths = some_of(paths.iter().cloned());
            format!("directories of volumes are left, without mounts: {paths}")
        }
        CauseKind::CgroupsLeft { paths } => {
            format!(
                "its cgroups are left, without processes: {}",
                some_of(paths.iter().cloned())
            )
        }
        CauseKind::PhaseNotTerminal { phase } => format!(
            "none of its containers runs, and the API does not show that: its phase is {}",
            phase.as_deref().unwrap_or("not set")
        ),
        CauseKind::FinalDeletePending => {
            "nothing of it is left on this node; only the final delete is missing".to_owned()
        }
        CauseKind::Finalizer { finalizer, removed_by } => {
            format!("finalizer {finalizer} keeps its object; usually removed by {removed_by}")
        }
        CauseKind::Unknown { what, why } => format!("could not read {what}: {why}"),
        CauseKind::NothingFound => "nothing was found on this node that blocks it".to_owned(),
    }
}

fn name(process: &ProcessName) -> String {
    let pod = with(" of pod ", process.pod.as_deref(), "");
    format!("process {} {:?}{pod}", process.pid, process.command)
}

/// What this agent does, if it does.
fn kill(in_seconds: Option<u64>) -> String {
    in_seconds.map_or_else(String::new, |seconds| {
        format!("; this agent sends it SIGKILL in {seconds}s, unless the runtime stops it first")
    })
}

/// The text between these, or nothing.
fn with(before: &str, text: Option<&str>, after: &str) -> String {
    text.map(|text| format!("{before}{text}{after}")).unwrap_or_default()
}

/// The prefix of an ID that crictl shows.
fn short(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}
