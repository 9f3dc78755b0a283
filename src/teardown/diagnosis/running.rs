//! What still runs, and how long it may.

use std::{path::Path, time::Duration};

use super::{Diagnosis, MAX_NAMED, grace_period};
use crate::{
    explanation::cause::{CauseKind, Severity, next},
    model::{
        step::Step,
        termination::{GraceStart, Terminator},
    },
    node::{
        cri::types::{Container, ContainerState, RuntimePod},
        process_state::{ProcessState, SigtermHandling},
    },
    teardown::{grace::CountedGrace, steps::stop::stop_order::StopPosition},
    words::{short_id, some_of},
};

/// The conditions that can hold a pod. Runtimes report others, such as warnings of deprecated settings.
const READY_CONDITIONS: [&str; 2] = ["RuntimeReady", NETWORK_READY];
/// The condition for networks of sandboxes.
const NETWORK_READY: &str = "NetworkReady";
/// For a container that does not handle SIGTERM.
const AFTER_SIGKILL: &str = "wait for SIGKILL; then let the program handle SIGTERM, start it below an init such as tini, or \
    give the pod a shorter terminationGracePeriodSeconds (a container with another stopSignal is not affected)";
const NOT_KILLED_BY_RUNTIME: &str =
    "read why the runtime does not kill it: pod-teardown timeline POD, this agent's log, the runtime's log";

impl Diagnosis<'_> {
    /// Shims, processes, containers, sandboxes, and the state of the runtime.
    pub(super) fn running(&mut self, grace: CountedGrace) {
        let runtime = self.facts.runtime.as_ref().ok();
        if let Some(pod) = runtime {
            self.shims(pod);
        }
        self.processes(runtime);
        if let Some(pod) = runtime {
            self.containers(pod, grace);
            self.sandboxes(pod);
        }
        self.runtime_conditions(runtime);
    }

    /// Adds a cause that the stop waits for.
    fn add_to_stop(&mut self, severity: Severity, kind: CauseKind, message: impl AsRef<str>, remedy: &str) {
        self.add(severity, kind, Some(Step::Kill), message, remedy);
    }

    /// A shim that is stopped answers nothing, so that the runtime can neither stop nor kill anything below it.
    fn shims(&mut self, pod: &RuntimePod) {
        for shim in self.facts.named.stopped_shims.iter().filter(|_| pod.may_run()) {
            let (pid, program, sandbox) = (shim.pid, &shim.program, short_id(&shim.id));
            let message = format!(
                "process {pid} {program:?}, the shim of sandbox {sandbox}, is stopped (state T): the runtime can stop nothing of \
                 the pod"
            );
            let remedy = "resume it: kill -CONT PID; or restart the container runtime, which drops the shim after about 10 seconds";
            self.add_to_stop(Severity::Blocking, CauseKind::ShimStopped, message, remedy);
        }
    }

    /// What processes do, whatever the runtime shows of their containers.
    fn processes(&mut self, runtime: Option<&RuntimePod>) {
        let facts = self.facts;
        let Some(cgroups) = self.known("the pod's cgroups", &facts.cgroups) else {
            return;
        };
        let in_freezer = self.known("whether the pod's cgroups are frozen", &cgroups.frozen);
        let in_freezer = topmost(in_freezer.map_or(&[], Vec::as_slice));
        let is_frozen = !in_freezer.is_empty();
        if is_frozen {
            let message = format!("its processes are frozen and handle no signal: {}", some_of(in_freezer));
            let remedy =
                "thaw them: echo 0 > CGROUP/cgroup.freeze, or with cgroup v1 echo THAWED > CGROUP/freezer.state";
            self.add_to_stop(Severity::Blocking, CauseKind::Frozen, message, remedy);
        }
        let Some(processes) = self.known("the processes in the pod's cgroups", &cgroups.processes) else {
            return;
        };
        let all = processes.all.iter();
        let asleep = all.filter_map(|it| Some((it, it.uninterruptible_in.as_deref()?)));
        let asleep = asleep.filter(|(_, function)| !(is_frozen && is_in_freezer(function)));
        for (process, function) in asleep.take(MAX_NAMED) {
            let container = process.container.as_deref();
            let container = container.and_then(|id| runtime?.containers.iter().find(|it| it.id == id));
            let container = container.map_or_else(String::new, |it| format!(" of container {}", it.name));
            let waits = match function {
                "" => String::new(),
                function => format!(" in {function}"),
            };
            let named = named(process);
            let message =
                format!("{named}{container} is in uninterruptible sleep (state D){waits}; no signal terminates it");
            let remedy = "repair the disk, server or driver that it waits for (/proc/PID/stack shows it; in percpu_rwsem_wait, \
                thaw the file system: fsfreeze -u MOUNTPOINT), or restart the node";
            self.add_to_stop(Severity::Blocking, CauseKind::Uninterruptible, message, remedy);
        }
        // The process of a sandbox runs until the sandbox is stopped.
        let ready = runtime.iter().flat_map(|pod| &pod.sandboxes).filter(|it| it.is_ready);
        let ready: Vec<&str> = ready.map(|it| &*it.id).collect();
        let is_of_sandbox = |it: &&ProcessState| it.container.as_deref().is_some_and(|id| ready.contains(&id));
        let alive = processes.all.iter().filter(|it| !it.is_zombie);
        let left: Vec<&ProcessState> = alive.filter(|it| !is_of_sandbox(it)).collect();
        if self.may_run == Some(false) && !left.is_empty() {
            let are = match left.len() + processes.more {
                1 => "1 process is".to_owned(),
                count => format!("{count} processes are"),
            };
            let left = some_of(left.into_iter().map(named));
            let message =
                format!("the runtime shows no running container, and {are} left in the pod's cgroups: {left}");
            let remedy = "compare them with crictl ps -a; if the runtime has lost the container, kill these processes";
            self.add_to_stop(Severity::Blocking, CauseKind::ProcessesLeft, message, remedy);
        }
    }

    fn containers(&mut self, pod: &RuntimePod, grace: CountedGrace) {
        let facts = self.facts;
        let in_grace = !grace.left.is_zero();
        // Before a process terminates the pod, there is no hook and no signal to wait for.
        let is_idle = self.terminator == Terminator::NoProcess && grace.counted_from == GraceStart::NotBegun;
        let waiting = if is_idle { Severity::Later } else { Severity::Waiting };
        let explains = [CauseKind::Frozen, CauseKind::Uninterruptible];
        let explained = self.causes.iter().any(|cause| explains.contains(&cause.kind));
        let mut waits = false;
        for container in pod.possibly_running() {
            let name = &container.name;
            if container.state == ContainerState::Unknown {
                let message = format!("the runtime does not know whether container {name} runs");
                let remedy = "read the log of the container runtime; the container's shim may have died";
                self.add_to_stop(Severity::Blocking, CauseKind::ContainerUnknown, message, remedy);
                continue;
            }
            waits = true;
            let others = self.others_before(pod, container);
            if in_grace && !others.is_empty() {
                let message = format!("sidecar {name} is stopped after {}", some_of(others));
                self.add_to_stop(waiting, CauseKind::SidecarWaits, message, "");
                continue;
            }
            let hook = facts.view.container(name).and_then(|spec| spec.pre_stop.as_ref());
            if let Some(hook) = hook.filter(|_| in_grace) {
                let message = format!("the preStop hook ({}) of container {name} may still run", hook.kind());
                let wait = "wait: the hook ends with the grace period at the latest";
                let remedy = next(self.terminator, wait, wait);
                self.add_to_stop(waiting, CauseKind::PreStopHook, message, remedy);
            }
            let lost = self.sigterm_not_handled(container);
            let is_explained = explained || lost.is_some();
            if let Some(how) = lost {
                self.lost_sigterm(&how, waiting, grace.left);
            }
            if !in_grace && !is_explained && !facts.named.exited.contains(&container.id) {
                self.still_runs(container, grace.overdue);
            }
        }
        if waits && in_grace {
            self.causes.push(grace_period(waiting, grace, self.terminator));
        }
    }

    fn still_runs(&mut self, container: &Container, overdue: Duration) {
        let named = self.facts.named.processes.get(&container.id);
        let process = named.map_or_else(String::new, |(_, process)| format!(" as {process}"));
        let message = format!(
            "container {} still runs {}s after the grace period{process}{}",
            container.name,
            overdue.as_secs(),
            self.kill()
        );
        let of_kubelet =
            "read the errors of its stop: journalctl -u kubelet, the pod's events (FailedKillPod), the runtime's log";
        let remedy = next(self.terminator, NOT_KILLED_BY_RUNTIME, of_kubelet);
        // It explains every step of the stop that fails.
        let step = Some(Step::Term);
        self.add(Severity::Blocking, CauseKind::StillRuns, step, message, remedy);
    }

    /// The main process of a container, with why SIGTERM does not terminate it, if so.
    fn sigterm_not_handled(&self, container: &Container) -> Option<String> {
        let cgroups = self.facts.cgroups.as_ref().ok()?;
        let processes = &cgroups.processes.as_ref().ok()?.all;
        let in_container = |it: &&ProcessState| it.container.as_deref() == Some(&*container.id);
        // Only the first process of a container gets the signal.
        let main = match self.facts.named.processes.get(&container.id) {
            Some((pid, _)) => processes.iter().find(|it| it.pid == *pid),
            None => processes.iter().filter(in_container).find(|it| it.is_init),
        };
        let main = main.filter(|it| !it.is_zombie)?;
        let how = match main.sigterm {
            SigtermHandling::Ignored => "ignores SIGTERM",
            SigtermHandling::Blocked => "blocks SIGTERM",
            SigtermHandling::InitWithoutHandler => {
                "ignores SIGTERM: it is PID 1 of its container and has no handler for it"
            }
            SigtermHandling::Handler | SigtermHandling::Default => return None,
        };
        Some(format!("{} of container {} {how}", named(main), container.name))
    }

    fn lost_sigterm(&mut self, how: &str, waiting: Severity, left: Duration) {
        let (severity, then, remedy) = match left.is_zero() {
            false => (
                waiting,
                &*format!("SIGKILL follows after {}s more of its grace period", left.as_secs()),
                next(self.terminator, AFTER_SIGKILL, AFTER_SIGKILL),
            ),
            true => (
                Severity::Blocking,
                "its grace period has expired",
                next(
                    self.terminator,
                    NOT_KILLED_BY_RUNTIME,
                    "read the errors of its stop in the kubelet's log; if the grace period was shortened, the kubelet may still \
                     wait for its first StopContainer: interrupt it with crictl stop --timeout 0 CONTAINER",
                ),
            ),
        };
        self.add_to_stop(severity, CauseKind::SigtermNotHandled, format!("{how}; {then}"), remedy);
    }

    /// Names of the running containers that stop before this one.
    fn others_before(&self, pod: &RuntimePod, container: &Container) -> Vec<String> {
        let view = &self.facts.view;
        let position = StopPosition::of(view, &container.name);
        let others = pod.possibly_running().filter(|other| other.id != container.id);
        let others = others.filter(|other| position.waits_for(StopPosition::of(view, &other.name)));
        others.map(|other| other.name.clone()).collect()
    }

    fn sandboxes(&mut self, pod: &RuntimePod) {
        let has_stopped = self.may_run == Some(false);
        for sandbox in pod.sandboxes.iter().filter(|it| it.is_ready && has_stopped) {
            let id = short_id(&sandbox.id);
            let (message, remedy) = match self.facts.named.processes.get(&sandbox.id) {
                Some((_, process)) => (
                    format!("sandbox {id} is not stopped: its {process} runs{}", self.kill()),
                    "read the runtime's log: its program may be missing, or the process may be outside of its cgroup",
                ),
                None => (
                    format!("all containers have exited, and sandbox {id} is not stopped"),
                    "read the runtime's log for the error of StopPodSandbox: often the DEL of the network plugin fails",
                ),
            };
            let step = Some(Step::Sandbox);
            self.add(Severity::Blocking, CauseKind::SandboxNotStopped, step, message, remedy);
        }
    }

    fn runtime_conditions(&mut self, runtime: Option<&RuntimePod>) {
        let facts = self.facts;
        if facts.is_runtime_unreachable {
            return;
        }
        let Some(conditions) = self.known("the conditions of the container runtime", &facts.conditions) else {
            return;
        };
        let is_sandbox_ready = runtime.is_some_and(|pod| pod.sandboxes.iter().any(|sandbox| sandbox.is_ready));
        let unmet = conditions.iter().filter(|it| !it.status);
        for condition in unmet.filter(|it| READY_CONDITIONS.contains(&it.r#type.as_str())) {
            let is_network = condition.r#type == NETWORK_READY;
            let severity = match self.may_run {
                Some(false) if is_network && !is_sandbox_ready => Severity::Info,
                Some(true) | None if is_network => Severity::Later,
                _ => Severity::Blocking,
            };
            let remedy = match is_network {
                true => {
                    "repair the network plugin (its configuration in /etc/cni/net.d, its DaemonSet); without it the runtime may fail to stop sandboxes"
                }
                false => "read the log of the container runtime",
            };
            let message = format!(
                "the runtime reports {}=false: {}: {}",
                condition.r#type, condition.reason, condition.message
            );
            let step = Some(Step::Sandbox);
            self.add(severity, CauseKind::RuntimeNotReady, step, message, remedy);
        }
    }

    /// When this agent kills a process, if it does.
    fn kill(&self) -> String {
        self.facts.kill_in_seconds.map_or_else(String::new, |seconds| {
            format!("; this agent sends it SIGKILL in {seconds}s, unless the runtime stops it first")
        })
    }
}

/// The paths that are not below another one.
fn topmost(paths: &[String]) -> Vec<String> {
    let contains = |other: &String, path: &Path| path != Path::new(other) && path.starts_with(other);
    let is_below = |path: &&String| paths.iter().any(|other| contains(other, Path::new(path)));
    paths.iter().filter(|path| !is_below(path)).cloned().collect()
}

/// Whether a process that sleeps in this function waits in the kernel's freezer: with cgroup v1 a frozen process is in uninterruptible
/// sleep.
fn is_in_freezer(function: &str) -> bool {
    // The kernel may hide the function.
    function.is_empty() || function.contains("refrigerator") || function.contains("freezer")
}

fn named(process: &ProcessState) -> String {
    format!("process {} {:?}", process.pid, process.command)
}
