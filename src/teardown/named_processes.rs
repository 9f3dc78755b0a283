//! The processes that the runtime names for what it reports as running of a pod, as the kernel shows them.

use std::{io, path::Path, time::Duration};

use futures::future::{join, join_all};

use super::{context::Context, runtime_state::NamedProcess};
use crate::{
    journal::KnownProcess,
    model::{
        failure::Failure,
        pod::{PodUid, PodView},
        trace::Step,
    },
    node::{
        cri::types::RuntimePod,
        grpc::GrpcError,
        processes::{Owner, Process, Shim, shims},
    },
};

/// Longest wait for the status of a sandbox: containerd asks its shim, which may hang.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(2);

/// What the runtime names.
pub struct NamedPids {
    /// IDs, and what they are of.
    pids: Vec<NamedPid>,
    owner: Owner,
    sandboxes: Vec<String>,
}

struct NamedPid {
    id: String,
    what: String,
    is_sandbox: bool,
    pid: Result<Option<i32>, GrpcError>,
}

/// What the runtime reports as running, with its processes.
pub struct NamedProcesses {
    /// Containers before sandboxes.
    pub all: Vec<Named>,
    /// The shims of the pod's sandboxes and containers.
    pub shims: Vec<Shim>,
    /// What identifies the pod's processes.
    pub owner: Owner,
}

/// A container or sandbox with its process.
pub struct Named {
    /// Its ID.
    #[cfg(feature = "agent")]
    pub id: String,
    /// Such as `container main`.
    pub what: String,
    /// The decision depends on it.
    pub process: NamedProcess,
    /// The process, if it runs and is proven to be the pod's. Another one may have got the PID of a process that has exited.
    pub proven: Option<Process>,
    /// The runtime itself names it. Otherwise it is a child of the shim, which may leave the pod.
    pub is_named: bool,
}

// === impl NamedPids ===

impl NamedPids {
    /// Asks the runtime for the processes of running containers and ready sandboxes.
    pub async fn query(context: &Context, uid: &PodUid, runtime_pod: &RuntimePod, container_timeout: Duration) -> Self {
        let cri = &context.node.cri;
        let containers = runtime_pod.possibly_running().map(async |container| NamedPid {
            id: container.id.clone(),
            what: format!("container {}", container.name),
            is_sandbox: false,
            pid: cri.container_pid(&container.id, container_timeout).await,
        });
        let ready = runtime_pod.sandboxes.iter().filter(|sandbox| sandbox.is_ready);
        let sandboxes = ready.map(async |sandbox| NamedPid {
            id: sandbox.id.clone(),
            what: format!("sandbox {}", sandbox.id.get(..13).unwrap_or(&sandbox.id)),
            is_sandbox: true,
            pid: cri.sandbox_pid(&sandbox.id, SANDBOX_TIMEOUT).await,
        });
        let (mut pids, sandboxes) = join(join_all(containers), join_all(sandboxes)).await;
        pids.extend(sandboxes);
        let sandboxes: Vec<_> = runtime_pod.sandboxes.iter().map(|it| it.id.clone()).collect();
        let containers = runtime_pod.containers.iter().map(|it| it.id.clone());
        let ids = sandboxes.iter().cloned().chain(containers).collect();
        Self {
            pids,
            owner: Owner {
                uid: uid.to_string(),
                ids,
            },
            sandboxes,
        }
    }

    /// Reads the processes. `started_by`: when the process of this ID had started at the latest, since boot. Blocks.
    pub fn read(self, proc: &Path, started_by: impl Fn(&str) -> Duration) -> NamedProcesses {
        let Self { pids, owner, sandboxes } = self;
        let shims = shims(proc, &owner.ids);
        let named_pids: Vec<i32> = pids.iter().filter_map(|it| *it.pid.as_ref().ok()?).collect();
        let other_shim = shims.iter().flatten().find(|shim| !shim.is_of_processes());
        let runs = |what: &str, found: Process| match (&shims, other_shim) {
            (Err(error), _) => (unreadable(what, found.pid, error), None),
            (Ok(_), Some(shim)) => (may_be_virtual(what, &format!("{found} below {shim}")), None),
            (Ok(_), None) => {
                let (process, is_proven) = (found.to_string(), found.is_of(proc, &owner));
                (NamedProcess::Runs { process, is_proven }, is_proven.then_some(found))
            }
        };
        let mut all = Vec::new();
        for it in pids {
            let (what, is_named) = (&it.what, it.pid.is_ok());
            let only = |process| vec![(process, None)];
            let found = match it.pid {
                // A sandbox needs no process: CRI-O has none by default.
                Ok(None) if it.is_sandbox => Vec::new(),
                Ok(None) => only(NamedProcess::Unknown(format!(
                    "the runtime reports {what} as running and names no process of it, as VM-based runtimes do: the runtime's \
                     state counts"
                ))),
                Ok(Some(pid)) => match Process::find(proc, pid, started_by(&it.id)) {
                    Ok(Some(found)) => vec![runs(what, found)],
                    Ok(None) => only(NamedProcess::Exited(format!("process {pid}"))),
                    Err(error) => only(unreadable(what, pid, &error)),
                },
                Err(why) => match shims.iter().flatten().find(|shim| it.is_sandbox && shim.id == it.id) {
                    Some(shim) if !shim.is_of_processes() => {
                        only(may_be_virtual(what, &format!("a process of {shim}")))
                    }
                    Some(shim) => below(shim, &named_pids, &owner, |child| runs(what, child)),
                    None => only(not_known(what, &why.to_string())),
                },
            };
            all.extend(found.into_iter().map(|(process, proven)| Named {
                #[cfg(feature = "agent")]
                id: it.id.clone(),
                what: what.clone(),
                process,
                proven,
                is_named,
            }));
        }
        let mut shims = shims.unwrap_or_default();
        // CRI-O has a monitor for each container, and these are not of interest.
        shims.retain(|shim| sandboxes.contains(&shim.id));
        NamedProcesses { all, shims, owner }
    }
}

// === impl NamedProcesses ===

impl NamedProcesses {
    /// Records the running processes that the runtime itself names, with proof: when a shim dies, the runtime reports its containers
    /// as exited, although their processes may run.
    pub fn record(&self, context: &Context, uid: &PodUid) {
        let boot_id = &context.node.clock.boot_id;
        let known = self.all.iter().filter(|named| named.is_named).filter_map(|named| {
            let process = named.proven.as_ref()?;
            Some(KnownProcess {
                what: named.what.clone(),
                pid: process.pid,
                start: process.start,
                boot_id: boot_id.to_owned(),
            })
        });
        context.journal.record_processes(uid, known.collect());
    }
}

/// The recorded processes of this pod that run, each with what it is of, such as `container main`. Blocks.
///
/// # Errors
/// When one of them cannot be read.
pub fn known(context: &Context, view: &PodView) -> Result<Vec<(String, Process)>, Vec<Failure>> {
    let (proc, boot_id) = (&context.node.storage.proc, &context.node.clock.boot_id);
    let mut running = Vec::new();
    let known = context.journal.read(&view.pod.uid, |entry| entry.processes.clone());
    for known in known.into_iter().filter(|known| known.boot_id == *boot_id) {
        let found = Process::find(proc, known.pid, Duration::MAX).map_err(|error| {
            let why = format!("process {} of {} cannot be read: {error}", known.pid, known.what);
            Failure::new(Step::Kill, "", why)
        })?;
        let same = found.filter(|process| process.start == known.start);
        running.extend(same.map(|process| (known.what, process)));
    }
    Ok(running)
}

/// What runs below the shim of a sandbox that hangs: the runtime then names no process of the sandbox. A child that has left the
/// pod's cgroups is not killed: in a pod with the host's PIDs, it may be a service that the node needs.
fn below(
    shim: &Shim,
    named_pids: &[i32],
    owner: &Owner,
    runs: impl Fn(Process) -> (NamedProcess, Option<Process>),
) -> Vec<(NamedProcess, Option<Process>)> {
    let children = shim.children.iter().filter(|child| !named_pids.contains(&child.pid));
    let found = children.cloned().map(|child| match child.is_in_cgroup_of(owner) {
        true => runs(child),
        false => {
            let (process, is_proven) = (child.to_string(), false);
            (NamedProcess::Runs { process, is_proven }, None)
        }
    });
    let running: Vec<_> = found.collect();
    match running.is_empty() {
        true => vec![(NamedProcess::Exited(format!("no child of {shim} runs")), None)],
        false => running,
    }
}

fn may_be_virtual(what: &str, process: &str) -> NamedProcess {
    NamedProcess::Unknown(format!(
        "{what} runs as {process}, which may be a virtual machine: the runtime's state counts"
    ))
}

fn unreadable(what: &str, pid: i32, error: &io::Error) -> NamedProcess {
    not_known(what, &format!("process {pid} cannot be read: {error}"))
}

fn not_known(what: &str, why: &str) -> NamedProcess {
    NamedProcess::Unknown(format!("whether the process of {what} runs is unknown: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::node::grpc::{Call, CallFailure};

    const UID: &str = "5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a01";

    /// What is found if the runtime does not answer about a sandbox with this shim, which has a child in this cgroup.
    fn below_hanging(shim: &str, child: Option<&str>) -> Vec<Named> {
        let proc = tempfile::tempdir().unwrap();
        let id = "0123456789abcdef".repeat(4);
        let add = |pid: i32, name: &str, parent: i32, cgroup: &str, command: &str| {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir_all(dir.join("task")).unwrap();
            let stat = format!("{pid} ({name}) S {parent} 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n");
            fs::write(dir.join("stat"), stat).unwrap();
            fs::write(dir.join("cgroup"), cgroup).unwrap();
            fs::write(dir.join("cmdline"), command.replace(' ', "\0")).unwrap();
        };
        add(500, "containerd-shim", 1, "0::/", &format!("/usr/bin/{shim} -id {id}"));
        if let Some(cgroup) = child {
            add(501, "app", 500, cgroup, "app");
        }
        let pids = NamedPids {
            pids: vec![NamedPid {
                id: id.clone(),
                what: "sandbox".to_owned(),
                is_sandbox: true,
                pid: Err(Call::to_runtime("PodSandboxStatus", &id).failed(CallFailure::Timeout(SANDBOX_TIMEOUT))),
            }],
            owner: Owner {
                uid: UID.to_owned(),
                ids: vec![id.clone()],
            },
            sandboxes: vec![id],
        };
        pids.read(proc.path(), |_| Duration::MAX).all
    }

    #[test]
    fn child_of_a_hanging_shim_is_killed_only_in_a_cgroup_of_the_pod() {
        for (cgroup, is_killed) in [
            (format!("0::/kubepods/pod{UID}/x"), true),
            ("0::/system.slice/run-upgrade.scope".to_owned(), false),
        ] {
            let found = below_hanging("containerd-shim-runc-v2", Some(&cgroup));
            let [found] = &found[..] else { panic!("one process") };
            let NamedProcess::Runs { is_proven, .. } = found.process else {
                panic!("{:?}", found.process)
            };
            assert_eq!((is_proven, found.proven.is_some()), (is_killed, is_killed), "{cgroup}");
        }
    }

    #[test]
    fn hanging_shim_of_a_virtual_machine_proves_no_exit() {
        for (shim, child, has_exited) in [
            ("containerd-shim-runc-v2", None, true),
            ("containerd-shim-kata-v2", None, false),
            ("containerd-shim-kata-v2", Some("0::/kata_overhead"), false),
        ] {
            let found = below_hanging(shim, child);
            let is_exit = |it: &Named| matches!(it.process, NamedProcess::Exited(_));
            let is_virtual =
                |it: &Named| matches!(&it.process, NamedProcess::Unknown(why) if why.contains("virtual machine"));
            assert!(
                found.iter().all(if has_exited { is_exit } else { is_virtual }),
                "{shim}"
            );
        }
    }
}
