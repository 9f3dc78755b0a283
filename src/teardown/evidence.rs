//! Checks what runtime, cgroups and directories show of a pod.

use std::{collections::BTreeSet, ffi::OsString, path::PathBuf};

use super::{locate, named_processes, runtime_state::Processes};
use crate::{
    model::{
        failure::{Failure, RUNNING, STATIC_POD},
        mismatch::{Mismatch, MismatchApproval, MismatchKind},
        pod::{PodUid, PodView},
        trace::Step,
    },
    node::{
        cgroups::PodCgroup,
        cri::types::{RuntimePod, Sandbox},
        processes::Process,
    },
    teardown::context::Context,
};

/// Checks that runtime, cgroups and the kubelet's directory show the same pod. Otherwise the runtime, the cgroups or the
/// directory may be wrong, or the runtime has lost its state: then absence proves nothing. A kubelet removes the directory of a
/// pod only after its object is deleted. A kubelet that crashed between the creation of cgroup and directory causes the same
/// mismatch: only a user can decide. An approved mismatch counts as long as it stays the same.
///
/// A failed read is a failure of `step`.
pub fn check_agreement(
    context: &Context,
    view: &PodView,
    step: Step,
    runtime_pod: &RuntimePod,
) -> Result<(), Vec<Failure>> {
    if let Some(sandbox) = runtime_pod.sandboxes.iter().find(|sandbox| sandbox.is_from_elsewhere()) {
        let why = format!(
            "blocked: the sandbox is of a static pod (config source {:?}) and has the UID of {}; the agent never stops a \
             static pod. Check metadata.uid in the manifests of static pods",
            sandbox.config_source.as_deref().unwrap_or_default(),
            view.pod
        );
        return Err(Failure::new(Step::Sandbox, &sandbox.id, why)
            .with_reason(STATIC_POD)
            .into());
    }
    let runs = runs(context, &view.pod.uid, runtime_pod);
    let cgroups = locate::cgroups(context, view)?;
    if runs && cgroups.is_empty() {
        let why = format!(
            "blocked: the pod runs, but has no cgroup below {}/kubepods. Check that --cgroup-root is the kubelet's. \
             If it is, stop the pod's containers and sandboxes by hand, or approve that the agent stops \
             the pod without a cgroup: pod-teardown approve pod/{}",
            context.node.cgroup_root.trim_end_matches('/'),
            view.pod
        );
        let mismatch = Mismatch::new(MismatchKind::NoCgroup, ids(runtime_pod));
        check_approved(context, view, mismatch, Failure::new(Step::Cgroup, "", why))?;
    }
    // A running container has a directory, even if the object is deleted.
    if runs || (!view.object.is_absent() && (!cgroups.is_empty() || !runtime_pod.is_empty())) {
        let dir = locate::pod_dir(context, view)?;
        let there = dir.open().map_err(|fault| Failure::new(step, "", fault))?;
        if there.is_none() {
            let why = format!(
                "blocked: the pod has containers, sandboxes or cgroups on this node, but {} does not exist. Check that \
                 --kubelet-root is the kubelet's --root-dir. If it is, create that directory, empty, or approve that the \
                 agent continues without it: pod-teardown approve pod/{}",
                dir.path().display(),
                view.pod
            );
            let facts = ids(runtime_pod).chain(cgroups.iter().map(|cgroup| cgroup.path().display().to_string()));
            let mismatch = Mismatch::new(MismatchKind::NoDirectory, facts);
            check_approved(context, view, mismatch, Failure::new(Step::Volumes, "", why))?;
        }
    }
    CgroupContent::read(context, &cgroups, step, runtime_pod)?.check_known(context, view)
}

/// What runs of a pod although the runtime reports that all has exited.
pub struct Survivors {
    /// Processes are in the cgroups of its containers and sandboxes.
    pub in_cgroups: bool,
    /// Those that the runtime has named before.
    pub known: Vec<(String, Process)>,
}

/// What runs of the pod after its stop.
///
/// # Errors
/// If the runtime still reports something as running, or processes are of none of its containers.
pub fn survivors(context: &Context, view: &PodView, stopped: &RuntimePod) -> Result<Survivors, Vec<Failure>> {
    let running = still_running(stopped, Step::Kill);
    let ready = stopped.sandboxes.iter().filter(|sandbox| sandbox.is_ready);
    let ready = ready.map(|sandbox| Failure::new(Step::Sandbox, &sandbox.id, "still ready after its stop"));
    let failures: Vec<_> = running.chain(ready).collect();
    if !failures.is_empty() {
        return Err(failures);
    }
    let in_cgroups = match processes(context, view, stopped)? {
        Processes::NoCgroup | Processes::None => false,
        Processes::OfRuntime => true,
        // A runtime that has lost its state also reports an unknown container as stopped.
        Processes::Others => {
            let cgroups = locate::cgroups(context, view)?;
            CgroupContent::read(context, &cgroups, Step::Cgroup, stopped)?.check_known(context, view)?;
            true
        }
    };
    let known = named_processes::known(context, view)?;
    Ok(Survivors { in_cgroups, known })
}

/// Whether the runtime shows that anything of the pod runs, except recorded exits. After the kernel has overruled it, a runtime
/// still reports containers as running or their sandbox as ready. An exited container never runs again.
pub fn runs(context: &Context, uid: &PodUid, runtime_pod: &RuntimePod) -> bool {
    let exits = context.journal.exits(uid);
    let has_ended = |sandbox: &&Sandbox| exits.values().any(|exit| exit.container.sandbox_id == sandbox.id);
    let mut running = runtime_pod.possibly_running().filter(|it| !exits.contains_key(&it.id));
    let mut ready = runtime_pod.sandboxes.iter().filter(|it| it.is_ready && !has_ended(it));
    running.next().is_some() || ready.next().is_some()
}

/// The kinds of processes in the pod's cgroups. Unknown ones that a user has approved to be killed count as the runtime's.
pub fn processes(context: &Context, view: &PodView, runtime_pod: &RuntimePod) -> Result<Processes, Vec<Failure>> {
    let content = CgroupContent::read(context, &locate::cgroups(context, view)?, Step::Cgroup, runtime_pod)?;
    let is_approved = |approvals: Vec<MismatchApproval>| {
        let is_of_kind = |approval: &MismatchApproval| approval.mismatch.kind == MismatchKind::UnknownProcesses;
        approvals.iter().any(is_of_kind) && content.check_known(context, view).is_ok()
    };
    Ok(if content.unknown.is_empty() {
        content.known
    } else if is_approved(context.journal.approvals(&view.pod.uid)) {
        Processes::OfRuntime
    } else {
        Processes::Others
    })
}

/// Containers that run after their stop, as failures of this step.
pub(super) fn still_running(stopped: &RuntimePod, step: Step) -> impl Iterator<Item = Failure> {
    stopped.possibly_running().map(move |container| {
        let why = format!("still {:?} after its stop", container.state);
        Failure::new(step, &container.name, why).with_reason(RUNNING)
    })
}

/// The processes in a pod's cgroups, by the child cgroup that they are in.
struct CgroupContent {
    /// Those of containers and sandboxes of the runtime.
    known: Processes,
    /// Other child cgroups with processes, each with the pod's cgroup and the PIDs.
    unknown: Vec<(PathBuf, OsString, BTreeSet<i32>)>,
}

// === impl CgroupContent ===

impl CgroupContent {
    /// A failed read is a failure of `step`.
    fn read(
        context: &Context,
        cgroups: &[PodCgroup],
        step: Step,
        runtime_pod: &RuntimePod,
    ) -> Result<Self, Vec<Failure>> {
        let (mut unknown, mut known) = (Vec::new(), Processes::None);
        if cgroups.is_empty() {
            known = Processes::NoCgroup;
        }
        for cgroup in cgroups {
            let populated = context.node.cgroups.populated_children(cgroup);
            for (child, pids) in populated.map_err(|fault| fault.failure(step))? {
                if is_known(runtime_pod, &child.to_string_lossy()) {
                    known = Processes::OfRuntime;
                } else {
                    unknown.push((cgroup.path().to_owned(), child, pids));
                }
            }
        }
        Ok(Self { known, unknown })
    }

    /// Checks that there is no process of a container that the runtime does not know, unless a user has approved to kill it.
    fn check_known(&self, context: &Context, view: &PodView) -> Result<(), Vec<Failure>> {
        let unknown = || self.unknown.iter().filter(|(.., pids)| !pids.is_empty());
        let Some((first, ..)) = unknown().next() else {
            return Ok(());
        };
        let in_first = unknown().filter(|(cgroup, ..)| cgroup == first);
        let pids: BTreeSet<i32> = in_first.flat_map(|(.., pids)| pids.iter().copied()).collect();
        let why = format!(
            "blocked: {} processes in this cgroup (first PID {}) belong to no container of the runtime. Check that \
             --cri-endpoint is the runtime of this node's pods. If it is, kill the processes by hand, or approve that the \
             agent kills them: pod-teardown approve pod/{}",
            pids.len(),
            pids.first().copied().unwrap_or_default(),
            view.pod
        );
        let facts = unknown().map(|(cgroup, child, _)| cgroup.join(child).display().to_string());
        let mismatch = Mismatch::new(MismatchKind::UnknownProcesses, facts);
        let failure = Failure::new(Step::Cgroup, &first.display().to_string(), why);
        check_approved(context, view, mismatch, failure)
    }
}

fn ids(runtime_pod: &RuntimePod) -> impl Iterator<Item = String> {
    let containers = runtime_pod.containers.iter().map(|it| format!("container {}", it.id));
    containers.chain(runtime_pod.sandboxes.iter().map(|it| format!("sandbox {}", it.id)))
}

fn check_approved(context: &Context, view: &PodView, mismatch: Mismatch, failure: Failure) -> Result<(), Vec<Failure>> {
    let approvals = context.journal.approvals(&view.pod.uid);
    if mismatch.is_approved_by(&approvals, &context.node.clock.boot_id) {
        return Ok(());
    }
    let mismatch = Some(mismatch);
    Err(vec![Failure { mismatch, ..failure }])
}

/// Whether the processes in this child cgroup of the pod are of its containers. An empty name is the pod's own cgroup. Runtimes
/// name a cgroup by the ID of its container or sandbox. Processes directly in the pod's cgroup were moved there by a user. They
/// count as known if the runtime has containers of the pod.
fn is_known(runtime_pod: &RuntimePod, child: &str) -> bool {
    if child.is_empty() {
        return !runtime_pod.containers.is_empty();
    }
    let containers = runtime_pod.containers.iter().map(|container| &container.id);
    let mut ids = containers.chain(runtime_pod.sandboxes.iter().map(|sandbox| &sandbox.id));
    ids.any(|id| !id.is_empty() && child.contains(id.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::cri::types::{Container, ContainerState};

    #[test]
    fn cgroups_named_after_a_container_id_are_known() {
        let id = "0123456789abcdef".repeat(4);
        let observed = RuntimePod {
            containers: vec![Container {
                id: id.clone(),
                ..Container::listed("main", ContainerState::Running)
            }],
            ..RuntimePod::default()
        };
        for known in [
            id.clone(),
            format!("cri-containerd-{id}.scope"),
            format!("crio-{id}"),
            format!("crio-{id}.scope"),
            format!("crio-conmon-{id}.scope"),
        ] {
            assert!(is_known(&observed, &known), "{known}");
        }
        for other in [
            "crio-.scope".to_owned(),
            format!("crio-{}", "f".repeat(64)),
            "container".to_owned(),
        ] {
            assert!(!is_known(&observed, &other), "{other}");
        }
    }
}
