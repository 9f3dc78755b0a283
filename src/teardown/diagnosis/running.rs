//! What still runs, and how long it may.

use std::{path::Path, time::Duration};

use super::{Diagnosis, MAX_NAMED, Running, facts::Facts};
use crate::{
    explanation::cause::{CauseKind, ProcessName, Severity, SigtermDisposition},
    model::termination::{GraceStart, Terminator},
    node::{
        cri::types::{Container, ContainerState, RuntimePod},
        frozen,
        process_state::{ProcessState, SigtermHandling},
    },
    teardown::{grace::CountedGrace, stop_order::StopPosition},
};

impl Diagnosis<'_> {
    /// What processes do, whatever the runtime shows of their containers.
    pub(super) fn processes(&mut self, runtime: Option<&RuntimePod>, running: Running) {
        let facts = self.facts;
        let Some(cgroups) = self.known("the pod's cgroups", &facts.cgroups) else {
            return;
        };
        for (path, cgroup) in cgroups.covers.iter().take(MAX_NAMED).cloned() {
            self.add(Severity::Blocking, CauseKind::CgroupCovered { path, cgroup });
        }
        let in_freezer = self.known("whether the pod's cgroups are frozen", &cgroups.frozen);
        let in_freezer = topmost(in_freezer.map_or(&[], Vec::as_slice));
        let is_frozen = !in_freezer.is_empty();
        if is_frozen {
            self.add(Severity::Blocking, CauseKind::Frozen { cgroups: in_freezer });
        }
        let Some(processes) = self.known("the processes in the pod's cgroups", &cgroups.processes) else {
            return;
        };
        // The frozen file system is the cause.
        let waits_for_thaw =
            |it: &ProcessState| !facts.frozen.is_empty() && it.uninterruptible_in.as_deref() == Some(frozen::WAITS_IN);
        for process in processes
            .all
            .iter()
            .filter(|it| it.uninterruptible_in.is_some() && !(is_frozen && is_in_freezer(it)) && !waits_for_thaw(it))
            .take(MAX_NAMED)
        {
            let container = process.container.as_deref();
            let container =
                container.and_then(|id| Some(runtime?.containers.iter().find(|it| it.id == id)?.name.clone()));
            let waits_in = process
                .uninterruptible_in
                .clone()
                .filter(|function| !function.is_empty());
            let kind = CauseKind::Uninterruptible {
                process: named(process),
                container,
                waits_in,
            };
            self.add(Severity::Blocking, kind);
        }
        // The process of a sandbox runs until the sandbox is stopped.
        let is_of_sandbox = |process: &&ProcessState| {
            let id = process.container.as_deref();
            runtime.is_some_and(|pod| {
                pod.sandboxes
                    .iter()
                    .any(|sandbox| sandbox.is_ready() && Some(&*sandbox.id) == id)
            })
        };
        let alive = processes.all.iter().filter(|it| !it.is_zombie);
        let left: Vec<&ProcessState> = alive.filter(|it| !is_of_sandbox(it)).collect();
        if running == Running::No && !left.is_empty() {
            let kind = CauseKind::ProcessesLeft {
                processes: left.iter().take(MAX_NAMED).map(|it| named(it)).collect(),
                count: left.len() + processes.more,
            };
            self.add(Severity::Blocking, kind);
        }
    }

    pub(super) fn containers(&mut self, pod: &RuntimePod, grace: CountedGrace) {
        let facts = self.facts;
        let left = grace.left;
        let in_grace = !left.is_zero();
        // Before a process terminates the pod, there is no hook and no signal to wait for.
        let is_idle = self.facts.terminated_by.terminator() == Terminator::NoProcess
            && grace.counted_from == GraceStart::NotBegun;
        let waiting = if is_idle { Severity::Later } else { Severity::Waiting };
        let explained = self
            .causes
            .iter()
            .any(|cause| matches!(cause.kind, CauseKind::Frozen { .. } | CauseKind::Uninterruptible { .. }));
        let mut waits = false;
        for container in pod.possibly_running() {
            if container.state == ContainerState::Unknown {
                let container = container.name.clone();
                self.add(Severity::Blocking, CauseKind::ContainerUnknown { container });
                continue;
            }
            waits = true;
            let others = others_before(facts, pod, container);
            if in_grace && !others.is_empty() {
                let container = container.name.clone();
                self.add(waiting, CauseKind::SidecarWaits { container, others });
                continue;
            }
            let spec = facts.view.container(&container.name);
            if let Some(hook) = spec.and_then(|spec| spec.pre_stop.as_ref()).filter(|_| in_grace) {
                let (container, handler) = (container.name.clone(), hook.kind().to_owned());
                self.add(waiting, CauseKind::PreStopHook { container, handler });
            }
            let lost = self.sigterm_not_handled(container, left);
            let is_explained = explained || lost.is_some();
            if let Some(lost) = lost {
                let severity = if in_grace { waiting } else { Severity::Blocking };
                self.add(severity, lost);
            }
            if !in_grace && !is_explained && !facts.named.exited.contains(&container.id) {
                let named = facts.named.processes.get(&container.id);
                let kind = CauseKind::StillRuns {
                    container: container.name.clone(),
                    overdue_seconds: grace.overdue.as_secs(),
                    process: named.map(|it| it.process.clone()),
                    cgroup: named.map(|it| it.cgroup.clone()),
                    kill_in_seconds: facts.kill_in_seconds,
                };
                self.add(Severity::Blocking, kind);
            }
        }
        if waits && in_grace {
            let kind = CauseKind::GracePeriod {
                left_seconds: left.as_secs(),
                total_seconds: grace.total_seconds,
                counted_from: grace.counted_from,
            };
            self.add(waiting, kind);
        }
    }

    fn sigterm_not_handled(&self, container: &Container, left: Duration) -> Option<CauseKind> {
        let cgroups = self.facts.cgroups.as_ref().ok()?;
        let processes = &cgroups.processes.as_ref().ok()?.all;
        let in_container = |it: &&ProcessState| it.container.as_deref() == Some(&*container.id);
        // Only the first process of a container gets the signal.
        let main = match self.facts.named.processes.get(&container.id) {
            Some(named) => processes.iter().find(|it| it.pid == named.process.pid),
            None => processes.iter().filter(in_container).find(|it| it.is_init),
        };
        let main = main.filter(|it| !it.is_zombie)?;
        let how = match main.sigterm {
            SigtermHandling::Ignored => SigtermDisposition::Ignored,
            SigtermHandling::Blocked => SigtermDisposition::Blocked,
            SigtermHandling::InitWithoutHandler => SigtermDisposition::InitWithoutHandler,
            SigtermHandling::Handler | SigtermHandling::Default => return None,
        };
        Some(CauseKind::SigtermNotHandled {
            container: container.name.clone(),
            process: named(main),
            how,
            kill_in_seconds: Some(left.as_secs()).filter(|_| !left.is_zero()),
        })
    }
}

/// The paths that are not below another one.
fn topmost(paths: &[String]) -> Vec<String> {
    let is_below = |path: &Path| {
        paths
            .iter()
            .any(|other| path != Path::new(other) && path.starts_with(other))
    };
    let topmost = paths.iter().filter(|path| !is_below(Path::new(path)));
    topmost.take(MAX_NAMED).cloned().collect()
}

/// Whether the process waits in the kernel's freezer: with cgroup v1 a frozen process is in uninterruptible sleep.
fn is_in_freezer(process: &ProcessState) -> bool {
    let function = process.uninterruptible_in.as_deref().unwrap_or_default();
    // The kernel may hide the function.
    function.is_empty() || function.contains("refrigerator") || function.contains("freezer")
}

/// Names of the running containers that stop before this one.
fn others_before(facts: &Facts, pod: &RuntimePod, container: &Container) -> Vec<String> {
    let position = StopPosition::of(&facts.view, &container.name);
    let running = pod.possibly_running().filter(|other| other.id != container.id);
    running
        .filter(|other| position.waits_for(StopPosition::of(&facts.view, &other.name)))
        .map(|other| other.name.clone())
        .collect()
}

fn named(process: &ProcessState) -> ProcessName {
    ProcessName {
        pid: process.pid,
        command: process.command.clone(),
        pod: None,
    }
}
