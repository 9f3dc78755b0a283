//! Decides why a terminating pod still exists, from facts that were only read. Pure.
//!
//! `facts → {who terminates it, containers, sandbox, mounts, drivers, status, finalizers} → causes, most urgent first`

use jiff::Timestamp;

use self::facts::{Facts, TerminatedBy};
use crate::{
    explanation::cause::{Cause, CauseKind, ProcessName, Severity},
    model::pod::Deletion,
    node::cri::types::RuntimePod,
    teardown::bounded_read::ObjectUnread,
};

pub mod facts;
mod finalizers;
pub mod gather;
mod running;
#[cfg(test)]
mod tests;

pub use finalizers::removed_by;

/// Number of paths and processes that one cause names.
const MAX_NAMED: usize = 8;
/// The conditions that can hold a pod. Runtimes report others, such as warnings of deprecated settings.
const READY_CONDITIONS: [&str; 2] = ["RuntimeReady", NETWORK_READY];
/// The condition for networks of sandboxes.
const NETWORK_READY: &str = "NetworkReady";

/// The causes, most urgent first. A fact that could not be read is a cause of its own, and nothing is concluded from it.
pub fn diagnose(facts: &Facts, now: Timestamp) -> Vec<Cause> {
    let mut diagnosis = Diagnosis {
        facts,
        now,
        causes: Vec::new(),
    };
    match (facts.view.mirror, facts.view.deletion) {
        (true, deletion) => diagnosis.add(
            Severity::Info,
            CauseKind::MirrorPod {
                is_deleted: deletion.is_some(),
            },
        ),
        (false, None) => diagnosis.not_deleted(),
        (false, Some(deletion)) => diagnosis.terminating(deletion),
    }
    diagnosis.causes.sort_by_key(|cause| cause.severity);
    diagnosis.causes
}

/// One sentence about all causes.
pub fn conclusion(causes: &[Cause]) -> String {
    let count = |severity| causes.iter().filter(|cause| cause.severity == severity).count();
    let unknown = match count(Severity::Unknown) {
        0 => "",
        _ => " Some facts could not be read: see above.",
    };
    let text = match (count(Severity::Blocking), count(Severity::Waiting), causes.first()) {
        (
            0,
            0,
            Some(Cause {
                kind: CauseKind::NotDeleted { .. } | CauseKind::EndedNotDeleted { .. } | CauseKind::MirrorPod { .. },
                ..
            }),
        ) => "Nothing terminates it.".to_owned(),
        (0, 0, _) => "Nothing was found that blocks it now.".to_owned(),
        (0, _, _)
            if causes
                .iter()
                .any(|cause| matches!(cause.kind, CauseKind::Reported { .. })) =>
        {
            "A step has failed and is tried again: see what was reported above.".to_owned()
        }
        (0, _, _) => "Nothing blocks it yet: it waits for steps that complete by themselves.".to_owned(),
        (1, _, _) => "One cause blocks it: the first one above.".to_owned(),
        (blocking, _, _) => format!("{blocking} causes block it; begin with the first."),
    };
    format!("{text}{unknown}")
}

/// Whether processes of the pod may run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Running {
    Yes,
    No,
    Unknown,
}

struct Diagnosis<'a> {
    facts: &'a Facts,
    now: Timestamp,
    causes: Vec<Cause>,
}

impl Diagnosis<'_> {
    fn add(&mut self, severity: Severity, kind: CauseKind) {
        let terminator = self.facts.terminated_by.terminator();
        self.causes.push(Cause::new(severity, kind, terminator));
    }

    /// Adds the reason if the fact is unknown.
    fn known<'f, T>(&mut self, what: &str, fact: &'f Result<T, String>) -> Option<&'f T> {
        match fact {
            Ok(fact) => Some(fact),
            Err(why) => {
                let (what, why) = (what.to_owned(), why.clone());
                self.add(Severity::Unknown, CauseKind::Unknown { what, why });
                None
            }
        }
    }

    fn not_deleted(&mut self) {
        let facts = self.facts;
        let (phase, reason) = (facts.phase(), facts.reason());
        self.add_unread_object(Severity::Unknown);
        let runtime = self.known("the pod in the container runtime", &facts.runtime);
        let running = runtime.map(|pod| pod.possibly_running().count());
        let kind = match facts.view.terminal_phase {
            true => CauseKind::EndedNotDeleted { phase, reason },
            false => CauseKind::NotDeleted { phase, running },
        };
        self.add(Severity::Info, kind);
    }

    /// Adds the reason if the object could not be read. `no_answer`: severity if the API server does not answer this agent.
    fn add_unread_object(&mut self, no_answer: Severity) {
        match self.facts.object_unread.clone() {
            None => {}
            Some(ObjectUnread::NotShown(why)) => {
                let what = "its object in the API server (it is known as the watch last showed it)".to_owned();
                self.add(Severity::Unknown, CauseKind::Unknown { what, why });
            }
            Some(ObjectUnread::NoAnswer(error)) => self.add(no_answer, CauseKind::ApiServerUnreachable { error }),
        }
    }

    fn terminating(&mut self, deletion: Deletion) {
        let facts = self.facts;
        match &facts.terminated_by {
            TerminatedBy::Agent => {}
            TerminatedBy::Kubelet(kubelet) => self.add(
                Severity::Info,
                CauseKind::KubeletTerminates {
                    kubelet: kubelet.clone(),
                },
            ),
            TerminatedBy::Blocked(why) => self.add(Severity::Blocking, CauseKind::AgentBlocked { why: why.clone() }),
            TerminatedBy::Paused(why) => self.add(Severity::Blocking, CauseKind::AgentPaused { why: why.clone() }),
        }
        let terminator = facts.terminated_by.terminator();
        let grace = facts.grace.counted_by(terminator, Some(deletion), self.now);
        if facts.is_runtime_unreachable
            && let Err(error) = &facts.runtime
        {
            let error = error.clone();
            self.add(Severity::Blocking, CauseKind::RuntimeUnreachable { error });
        } else {
            self.known("the pod in the container runtime", &facts.runtime);
        }
        let runtime = facts.runtime.as_ref().ok();
        let running = match runtime.map(|pod| pod.possibly_running().next().is_some()) {
            Some(true) => Running::Yes,
            Some(false) => Running::No,
            None => Running::Unknown,
        };
        self.add_unread_object(match &facts.terminated_by {
            // A kubelet has its own connection.
            TerminatedBy::Kubelet(_) => Severity::Unknown,
            TerminatedBy::Agent | TerminatedBy::Blocked(_) | TerminatedBy::Paused(_) => Self::after_stop(running),
        });
        for frozen in &facts.frozen {
            let kind = CauseKind::FileSystemFrozen {
                path: frozen.path.display().to_string(),
                device: frozen.device.clone(),
                command: frozen.command(),
            };
            self.add(Severity::Blocking, kind);
        }
        if let Some(pod) = runtime {
            self.shims(pod);
        }
        self.processes(runtime, running);
        if let Some(pod) = runtime {
            self.containers(pod, grace);
            self.sandboxes(pod, running);
        }
        self.runtime_conditions(runtime, running);
        self.mounts(running);
        self.drivers(running);
        self.object(running);
        let reported = [Severity::Blocking, Severity::Waiting, Severity::Unknown];
        if !self.causes.iter().any(|cause| reported.contains(&cause.severity)) {
            self.add(Severity::Info, CauseKind::NothingFound);
        }
    }

    /// Severity of what a running container does not wait for.
    fn after_stop(running: Running) -> Severity {
        match running {
            Running::No => Severity::Blocking,
            Running::Yes | Running::Unknown => Severity::Later,
        }
    }

    fn sandboxes(&mut self, pod: &RuntimePod, running: Running) {
        for sandbox in pod
            .sandboxes
            .iter()
            .filter(|it| it.is_ready() && running == Running::No)
        {
            let named = self.facts.named.processes.get(&sandbox.id);
            let kind = CauseKind::SandboxNotStopped {
                sandbox: sandbox.id.clone(),
                process: named.map(|it| it.process.clone()),
                cgroup: named.map(|it| it.cgroup.clone()),
                kill_in_seconds: self.facts.kill_in_seconds,
            };
            self.add(Severity::Blocking, kind);
        }
    }

    /// A shim that is stopped answers nothing, so that the runtime can neither stop nor kill anything below it.
    fn shims(&mut self, pod: &RuntimePod) {
        for (sandbox, process) in self.facts.named.stopped_shims.iter().filter(|_| pod.may_run()) {
            let (sandbox, process) = (sandbox.clone(), process.clone());
            self.add(Severity::Blocking, CauseKind::ShimStopped { sandbox, process });
        }
    }

    fn runtime_conditions(&mut self, runtime: Option<&RuntimePod>, running: Running) {
        let facts = self.facts;
        if facts.is_runtime_unreachable {
            return;
        }
        let Some(conditions) = self.known("the conditions of the container runtime", &facts.conditions) else {
            return;
        };
        let is_sandbox_ready = runtime.is_some_and(|pod| pod.sandboxes.iter().any(|sandbox| sandbox.is_ready()));
        let unmet = conditions.iter().filter(|it| !it.is_met);
        for condition in unmet.filter(|it| READY_CONDITIONS.contains(&it.name.as_str())) {
            let severity = match (condition.name.as_str(), running) {
                (NETWORK_READY, Running::No) if is_sandbox_ready => Severity::Blocking,
                (NETWORK_READY, Running::No) => Severity::Info,
                (NETWORK_READY, _) => Severity::Later,
                _ => Severity::Blocking,
            };
            let kind = CauseKind::RuntimeNotReady {
                condition: condition.name.clone(),
                reason: condition.reason.clone(),
                text: condition.message.clone(),
            };
            self.add(severity, kind);
        }
    }

    fn mounts(&mut self, running: Running) {
        let facts = self.facts;
        let after_stop = Self::after_stop(running);
        let Some(mounts) = self.known("the mount table", &facts.mounts) else {
            return;
        };
        if !mounts.is_empty() {
            self.known("the holders of the pod's mounts", &facts.holders);
        }
        for mount in mounts {
            let path = mount.path.clone();
            if let Some(cover) = &mount.cover {
                let cover = cover.to_string();
                self.add(after_stop, CauseKind::MountHidden { path, cover });
                continue;
            }
            let holders = facts.holders.as_ref().ok().and_then(|all| all.get(&mount.id));
            let outside: Vec<ProcessName> = holders.map(|it| it.outside.clone()).unwrap_or_default();
            if let Some(holders) = holders.filter(|_| !outside.is_empty()) {
                let kind = CauseKind::MountBusy {
                    path,
                    is_outside: !holders.may_be_own,
                    more: holders.more,
                    holders: outside,
                };
                self.add(after_stop, kind);
                continue;
            }
            if holders.is_some_and(|it| it.is_incomplete) {
                let what = format!("all users of mount {path}");
                let why = "the search took too long".to_owned();
                self.add(Severity::Unknown, CauseKind::Unknown { what, why });
            }
            let fs_type = mount.fs_type.clone();
            if mount.has_server {
                let source = mount.source.clone();
                self.add(after_stop, CauseKind::ServerMount { path, fs_type, source });
            } else if running == Running::No && facts.holders.is_ok() && !facts.waits_for_driver(&path) {
                self.add(Severity::Waiting, CauseKind::MountLeft { path, fs_type });
            }
        }
        let Some(disk) = self.known("the pod's directory", &facts.volume_paths) else {
            return;
        };
        let is_mounted = |path: &String| mounts.iter().any(|mount| mount.path.starts_with(path.as_str()));
        let paths: Vec<String> = disk
            .iter()
            .filter(|path| !is_mounted(path))
            .take(MAX_NAMED)
            .cloned()
            .collect();
        if running == Running::No && !paths.is_empty() {
            self.add(Severity::Waiting, CauseKind::VolumeDirectoriesLeft { paths });
        }
    }

    fn drivers(&mut self, running: Running) {
        let facts = self.facts;
        let after_stop = Self::after_stop(running);
        for missing in self
            .known("the drivers of its volumes and claims", &facts.drivers)
            .into_iter()
            .flatten()
        {
            let kind = CauseKind::DriverMissing {
                driver_kind: missing.kind.clone(),
                driver: missing.driver.clone(),
                needed_by: missing.needed_by.clone(),
                pod: format!("{}/{}", facts.view.pod.namespace, facts.view.pod.name),
                mounted: missing.mounted.clone(),
                pods: missing.pods.clone(),
                why: missing.why.clone(),
            };
            if missing.is_certain {
                self.add(after_stop, kind);
            } else {
                let what = format!("whether {} driver {} is registered", missing.kind, missing.driver);
                let why = missing.why.clone();
                self.add(Severity::Unknown, CauseKind::Unknown { what, why });
            }
        }
    }

    /// The object in the API: its phase and finalizers.
    fn object(&mut self, running: Running) {
        let facts = self.facts;
        // The watch keeps neither the phase nor the finalizers of every pod.
        if facts.object_unread.is_some() {
            return;
        }
        // Whether all that was read shows that only cgroups are left of it on the node.
        let cgroups = facts.cgroups.as_ref();
        let is_almost_clean = running == Running::No
            && facts.runtime.as_ref().is_ok_and(|pod| !pod.may_run())
            && facts.mounts.as_ref().is_ok_and(Vec::is_empty)
            && facts.volume_paths.as_ref().is_ok_and(Vec::is_empty)
            && cgroups.is_ok_and(|it| it.processes.as_ref().is_ok_and(|all| all.all.is_empty()));
        let cgroup_paths = cgroups.map(|it| it.paths.as_slice()).unwrap_or_default();
        let is_node_clean = is_almost_clean && cgroup_paths.is_empty();
        if is_almost_clean && !cgroup_paths.is_empty() {
            let paths = cgroup_paths.iter().take(MAX_NAMED).cloned().collect();
            self.add(Severity::Waiting, CauseKind::CgroupsLeft { paths });
        }
        let is_terminal = facts.view.terminal_phase;
        if running == Running::No && !is_terminal {
            let severity = if is_node_clean {
                Severity::Waiting
            } else {
                Severity::Later
            };
            let phase = facts.phase();
            self.add(severity, CauseKind::PhaseNotTerminal { phase });
        }
        let finalizers = facts.finalizers();
        if is_node_clean && is_terminal && finalizers.is_empty() {
            self.add(Severity::Waiting, CauseKind::FinalDeletePending);
        }
        let severity = if is_node_clean && is_terminal {
            Severity::Blocking
        } else {
            Severity::Later
        };
        for finalizer in finalizers {
            let removed_by = removed_by(finalizer);
            let finalizer = finalizer.clone();
            self.add(severity, CauseKind::Finalizer { finalizer, removed_by });
        }
    }
}
