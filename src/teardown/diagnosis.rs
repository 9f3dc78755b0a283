//! Decides why a terminating pod still exists, from facts that were only read. Pure.
//!
//! `facts → {who terminates it, containers, sandbox, mounts, drivers, status, finalizers} → causes, most urgent first`

use jiff::Timestamp;

use self::facts::{Facts, TerminatedBy};
use crate::{
    explanation::cause::{Cause, CauseKind, Severity, next},
    model::{
        pod::Deletion,
        step::Step,
        termination::{GraceStart, Terminator},
    },
    node::{
        mounts::{Cover, Mount},
        plugins::Kind,
    },
    teardown::{
        bounded_read::{Fact, ObjectUnread},
        grace::CountedGrace,
    },
    words::{some_of, unmount_commands},
};

pub mod facts;
pub mod gather;
mod running;
#[cfg(test)]
mod tests;

/// Number of paths and processes that one cause names.
const MAX_NAMED: usize = 8;
const NEXT_ATTEMPT: &str = "this agent's next attempt does it; the last line says when it begins";
const NEXT_SYNC: &str = "wait for the next sync; if it stays, read the kubelet's log";

/// The causes, most urgent first. A fact that could not be read is a cause of its own, and nothing is concluded from it.
pub fn diagnose(facts: &Facts, now: Timestamp) -> Vec<Cause> {
    let runtime = facts.runtime.as_ref().ok();
    let mut diagnosis = Diagnosis {
        facts,
        now,
        terminator: facts.terminated_by.terminator(),
        may_run: runtime.map(|pod| pod.possibly_running().next().is_some()),
        causes: Vec::new(),
    };
    match (facts.view.mirror, facts.view.deletion) {
        (true, deletion) => diagnosis.mirror(deletion.is_some()),
        (false, None) => diagnosis.not_deleted(),
        (false, Some(deletion)) => diagnosis.terminating(deletion),
    }
    diagnosis.causes.sort_by_key(|cause| cause.severity);
    diagnosis.causes
}

/// One sentence about all causes.
pub fn conclusion(causes: &[Cause]) -> String {
    use CauseKind::{EndedNotDeleted, MirrorPod, NotDeleted, Reported};
    let count = |severity| causes.iter().filter(|cause| cause.severity == severity).count();
    let unknown = match count(Severity::Unknown) {
        0 => "",
        _ => " Some facts could not be read: see above.",
    };
    let first = causes.first().map(|first| first.kind);
    let is_living = first.is_some_and(|kind| [NotDeleted, EndedNotDeleted, MirrorPod].contains(&kind));
    let text = match (count(Severity::Blocking), count(Severity::Waiting)) {
        (0, 0) if is_living => "Nothing terminates it.",
        (0, 0) => "Nothing was found that blocks it now.",
        (0, _) if causes.iter().any(|cause| cause.kind == Reported) => {
            "A step has failed and is tried again: see what was reported above."
        }
        (0, _) => "Nothing blocks it yet: it waits for steps that complete by themselves.",
        (1, _) => "One cause blocks it: the first one above.",
        (blocking, _) => &format!("{blocking} causes block it; begin with the first."),
    };
    format!("{text}{unknown}")
}

/// The grace period of a pod whose containers run, as the process that terminates it counts it.
pub fn grace_period(severity: Severity, grace: CountedGrace, terminator: Terminator) -> Cause {
    let (left, total) = (grace.left.as_secs(), grace.total_seconds);
    let total = total.map_or_else(String::new, |total| format!(" of {total}s"));
    let message = match grace.counted_from {
        GraceStart::DeleteRequest => format!("its grace period has {left}s left{total}, by the API server's clock"),
        GraceStart::Termination => format!("its grace period has {left}s left{total}"),
        GraceStart::NotBegun => {
            format!("its grace period of {left}s begins when this agent begins to terminate the pod")
        }
    };
    let shorten = "wait, or shorten it with pod-teardown stop POD --grace-period SECONDS";
    let wait = "wait; a kubelet may be unable to shorten a stop in progress";
    Cause::new(severity, CauseKind::GracePeriod, message)
        .at(Step::Kill)
        .with_remedy(next(terminator, shorten, wait))
}

struct Diagnosis<'a> {
    facts: &'a Facts,
    now: Timestamp,
    terminator: Terminator,
    /// Whether containers of the pod may run, if known.
    may_run: Option<bool>,
    causes: Vec<Cause>,
}

impl Diagnosis<'_> {
    /// Adds the reason if the fact is unknown.
    fn known<'f, T>(&mut self, what: &str, fact: &'f Fact<T>) -> Option<&'f T> {
        let known = fact.as_ref();
        known
            .map_err(|why| self.causes.push(Cause::unknown(what, &why.to_string())))
            .ok()
    }

    /// Adds a cause. `remedy` is empty if there is nothing to do.
    fn add(&mut self, severity: Severity, kind: CauseKind, step: Option<Step>, message: impl AsRef<str>, remedy: &str) {
        let cause = Cause::new(severity, kind, message).with_remedy(remedy);
        self.causes.push(Cause { step, ..cause });
    }

    /// Adds a cause that the next attempt or sync removes.
    fn add_transient(&mut self, severity: Severity, kind: CauseKind, step: Step, message: impl AsRef<str>) {
        let remedy = next(self.terminator, NEXT_ATTEMPT, NEXT_SYNC);
        self.add(severity, kind, Some(step), message, remedy);
    }

    /// Severity of what a running container does not wait for.
    fn after_stop(&self) -> Severity {
        match self.may_run {
            Some(false) => Severity::Blocking,
            Some(true) | None => Severity::Later,
        }
    }

    fn mirror(&mut self, is_deleted: bool) {
        let deletion = match is_deleted {
            true => "; its deletion does not stop the static pod",
            false => "",
        };
        let message = format!("it is the mirror of a static pod{deletion}");
        let remedy = "remove its manifest from the node to stop the static pod";
        self.add(Severity::Info, CauseKind::MirrorPod, None, message, remedy);
    }

    fn not_deleted(&mut self) {
        let facts = self.facts;
        self.unread_object(Severity::Unknown);
        let runtime = self.known("the pod in the container runtime", &facts.runtime);
        let running = runtime.map(|pod| pod.possibly_running().count());
        let status = facts.view.object.status();
        let phase = status.and_then(|status| status.phase.as_deref());
        self.causes.push(match facts.view.terminal_phase {
            true => Cause::ended_not_deleted(phase, status.and_then(|status| status.reason.as_deref())),
            false => Cause::not_deleted(phase, running),
        });
    }

    /// Adds the reason if the object could not be read. `no_answer`: severity if the API server does not answer this agent.
    fn unread_object(&mut self, no_answer: Severity) {
        match &self.facts.object_unread {
            None => {}
            Some(ObjectUnread::NotShown(why)) => {
                let what = "its object in the API server (it is known as the watch last showed it)";
                self.causes.push(Cause::unknown(what, why));
            }
            Some(ObjectUnread::NoAnswer(error)) => {
                let message = format!(
                    "the API server does not answer this agent; the pod's object is shown as the watch last reported it: {error}"
                );
                let remedy = "check the API server and the network to it: pod-teardown check; this agent reports and deletes the \
                    pod when it answers";
                self.add(no_answer, CauseKind::ApiServerUnreachable, None, message, remedy);
            }
        }
    }

    fn terminating(&mut self, deletion: Deletion) {
        let facts = self.facts;
        self.terminated_by();
        if facts.is_runtime_unreachable
            && let Err(error) = &facts.runtime
        {
            let message = format!("the container runtime cannot be reached: {error}");
            let remedy = "start the container runtime, and read its log";
            self.add(Severity::Blocking, CauseKind::RuntimeUnreachable, None, message, remedy);
        } else {
            self.known("the pod in the container runtime", &facts.runtime);
        }
        self.unread_object(match self.terminator {
            // A kubelet has its own connection.
            Terminator::Kubelet => Severity::Unknown,
            Terminator::Agent | Terminator::NoProcess => self.after_stop(),
        });
        let grace = facts.grace.counted_by(self.terminator, Some(deletion), self.now);
        self.running(grace);
        self.mounts();
        self.drivers();
        self.object();
        let reported = [Severity::Blocking, Severity::Waiting, Severity::Unknown];
        if !self.causes.iter().any(|cause| reported.contains(&cause.severity)) {
            let repeat = "repeat the command; pod-teardown timeline POD shows what this agent does";
            let remedy = next(self.terminator, repeat, "repeat the command; read the kubelet's log");
            let message = "nothing was found on this node that blocks it";
            self.add(Severity::Info, CauseKind::NothingFound, None, message, remedy);
        }
    }

    /// Who terminates the pod, unless it is this agent.
    fn terminated_by(&mut self) {
        let (severity, kind, message, remedy) = match &self.facts.terminated_by {
            TerminatedBy::Agent => return,
            TerminatedBy::Kubelet(kubelet) => {
                let message = format!("a kubelet runs and has to terminate the pod; this agent only reads: {kubelet}");
                (Severity::Info, CauseKind::KubeletTerminates, message, "")
            }
            TerminatedBy::Blocked(why) => {
                let message = format!("no kubelet terminates it, and this agent may not: {why}");
                let remedy = "see pod-teardown status";
                (Severity::Blocking, CauseKind::AgentBlocked, message, remedy)
            }
            TerminatedBy::Paused(why) => {
                let message = format!("this agent is paused, and no kubelet terminates it: {why}");
                let remedy = "pod-teardown resume";
                (Severity::Blocking, CauseKind::AgentPaused, message, remedy)
            }
        };
        self.add(severity, kind, None, message, remedy);
    }

    fn mounts(&mut self) {
        let facts = self.facts;
        let Some(mounts) = self.known("the mount table", &facts.mounts) else {
            return;
        };
        if !mounts.is_empty() {
            self.known("the holders of the pod's mounts", &facts.holders);
        }
        for (mount, cover) in mounts {
            self.mount(mount, cover.as_ref());
        }
        let Some(disk) = self.known("the pod's directory", &facts.volume_paths) else {
            return;
        };
        let is_mounted = |path: &str| mounts.iter().any(|(mount, _)| mount.path.starts_with(path));
        let mut left = disk.iter().filter(|path| !is_mounted(path)).peekable();
        if self.may_run == Some(false) && left.peek().is_some() {
            let left = some_of(left.cloned());
            let message = format!("directories of volumes are left, without mounts: {left}");
            let kind = CauseKind::VolumeDirectoriesLeft;
            self.add_transient(Severity::Waiting, kind, Step::Volumes, message);
        }
    }

    /// Adds what is wrong with a mount that is left.
    fn mount(&mut self, mount: &Mount, cover: Option<&Cover>) {
        let (facts, severity, step) = (self.facts, self.after_stop(), Some(Step::Volumes));
        let (path, fs_type) = (mount.path.display(), mount.fs_type.to_string_lossy());
        if let Some(cover) = cover {
            let message = format!("mount {path} is hidden: {cover}");
            let remedy = "remove the mount that hides it; the pod's own mounts and data stay";
            return self.add(severity, CauseKind::MountHidden, step, message, remedy);
        }
        let holders = facts.holders.as_ref().ok().and_then(|all| all.get(&mount.id));
        if let Some(holders) = holders.filter(|it| !it.processes.is_empty()) {
            let (outside, whose) = match facts.are_own_processes_known() {
                true => ("outside of the pod ", ""),
                false => ("", "; whether they are the pod's own is not known"),
            };
            let unread = match holders.more {
                0 => String::new(),
                more => format!(" ({more} further users were not read)"),
            };
            let of_pod = |pod: &String| format!(" of pod {pod}");
            let pod_of = |pid| facts.pods.get(&pid).map(of_pod).unwrap_or_default();
            let users = holders.processes.iter();
            let users = some_of(users.map(|it| format!("process {} {:?}{}", it.pid, it.command, pod_of(it.pid))));
            let is_of_pod = holders.processes.iter().any(|it| facts.pods.contains_key(&it.pid));
            let remedy = match (facts.are_own_processes_known(), is_of_pod) {
                (false, _) => {
                    "find out whose processes they are: /proc/PID/cgroup names the pod; those of this pod exit with its containers"
                }
                (true, true) => {
                    "delete the pod of these processes, or let them close their files and leave the directory"
                }
                (true, false) => "stop these processes, or let them close their files and leave the directory",
            };
            let message = format!("mount {path} is in use {outside}by {users}{unread}{whose}");
            return self.add(severity, CauseKind::MountBusy, step, message, remedy);
        }
        if holders.is_some_and(|it| it.is_incomplete) {
            let what = format!("all users of mount {path}");
            self.causes.push(Cause::unknown(&what, "the search took too long"));
        }
        if has_server(&fs_type) {
            let source = mount.source.to_string_lossy();
            let message = format!("{path} is mounted from server {source} ({fs_type}): its unmount needs that server");
            let remedy = "check that the server answers";
            self.add(severity, CauseKind::ServerMount, step, message, remedy);
        } else if self.may_run == Some(false) && facts.holders.is_ok() && !facts.waits_for_driver(&mount.path) {
            let message =
                format!("{fs_type} is still mounted at {path}; no process outside of the pod is known to use it");
            self.add_transient(Severity::Waiting, CauseKind::MountLeft, Step::Volumes, message);
        }
    }

    fn drivers(&mut self) {
        let facts = self.facts;
        let drivers = self.known("the drivers of its volumes and claims", &facts.drivers);
        for missing in drivers.into_iter().flatten() {
            let facts::MissingDriver { kind, driver, why, .. } = missing;
            if !missing.is_certain {
                let what = format!("whether {kind} driver {driver} is registered");
                self.causes.push(Cause::unknown(&what, why));
                continue;
            }
            let drivers_pod = match missing.pods.is_empty() {
                true => "no pod of this node seems to be that driver".to_owned(),
                false => format!("its pod seems to be {}", some_of(missing.pods.iter().cloned())),
            };
            let needed_by = &missing.needed_by;
            let message =
                format!("{kind} driver {driver} of {needed_by} is not available on this node: {why}; {drivers_pod}");
            let (step, can_be_approved) = match kind {
                Kind::Dra => (Step::Devices, false),
                Kind::Csi => (Step::Volumes, self.terminator == Terminator::Agent),
            };
            let or = match (can_be_approved, unmount_commands(&missing.mounted)) {
                (true, unmounts) => {
                    let and = if unmounts.is_empty() { "" } else { " && " };
                    let pod = &facts.view.pod;
                    format!("; if it never returns: {unmounts}{and}pod-teardown approve pod/{pod}")
                }
                (false, _) => ": only the driver can unpublish its volumes and unprepare its claims".to_owned(),
            };
            let (severity, step) = (self.after_stop(), Some(step));
            let remedy = format!("start the driver's pod on this node again{or}");
            self.add(severity, CauseKind::DriverMissing, step, message, &remedy);
        }
    }

    /// The object in the API: its phase and finalizers.
    fn object(&mut self) {
        let facts = self.facts;
        // The watch keeps neither the phase nor the finalizers of every pod.
        if facts.object_unread.is_some() {
            return;
        }
        // Whether all that was read shows that only cgroups are left of it on the node.
        let cgroups = facts.cgroups.as_ref();
        let has_stopped = self.may_run == Some(false);
        let is_almost_clean = facts.runtime.as_ref().is_ok_and(|pod| !pod.may_run())
            && facts.mounts.as_ref().is_ok_and(Vec::is_empty)
            && facts.volume_paths.as_ref().is_ok_and(Vec::is_empty)
            && cgroups.is_ok_and(|it| it.processes.as_ref().is_ok_and(|all| all.all.is_empty()));
        let cgroup_paths = cgroups.map(|it| it.paths.as_slice()).unwrap_or_default();
        let is_node_clean = is_almost_clean && cgroup_paths.is_empty();
        let is_terminal = facts.view.terminal_phase;
        let finalizers = facts.finalizers();
        if is_almost_clean && !cgroup_paths.is_empty() {
            let paths = some_of(cgroup_paths.iter().cloned());
            let message = format!("its cgroups are left, without processes: {paths}");
            self.add_transient(Severity::Waiting, CauseKind::CgroupsLeft, Step::Cgroup, message);
        }
        if has_stopped && !is_terminal {
            let severity = match is_node_clean {
                true => Severity::Waiting,
                false => Severity::Later,
            };
            let phase = facts.view.object.status().and_then(|status| status.phase.as_deref());
            let phase = phase.unwrap_or("not set");
            let message = format!("none of its containers runs, and the API does not show that: its phase is {phase}");
            self.add_transient(severity, CauseKind::PhaseNotTerminal, Step::Status, message);
        }
        if is_node_clean && is_terminal && finalizers.is_empty() {
            let message = "nothing of it is left on this node; only the final delete is missing";
            self.add_transient(Severity::Waiting, CauseKind::FinalDeletePending, Step::Delete, message);
        }
        let is_last = is_node_clean && is_terminal;
        let severity = if is_last { Severity::Blocking } else { Severity::Later };
        let finalizers = finalizers.iter().map(|it| Cause::finalizer(severity, it));
        self.causes.extend(finalizers);
    }
}

/// Whether the data of such a file system is behind a server or a process of the node.
fn has_server(fs_type: &str) -> bool {
    let exact = "nfs nfs4 cifs smb3 ceph 9p glusterfs lustre afs beegfs";
    exact.split(' ').any(|exact| exact == fs_type) || fs_type.starts_with("fuse.")
}
