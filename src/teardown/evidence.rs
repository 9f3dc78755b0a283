//! What may be concluded from what runtime, cgroups and directories show of a pod.

use std::ffi::OsStr;

use super::{Failure, places};
use crate::{
    context::Context,
    node::{
        cgroups::{Breadth, PodCgroup},
        cri::types::RuntimePod,
    },
    pod::PodView,
    record::Step,
};

/// Runtime, cgroups and the kubelet's directory must tell of the same pod. If they do not, this is the wrong runtime,
/// or one that has lost its memory, or these are the wrong cgroups or the wrong directory: nothing may be concluded
/// from what is not there. A kubelet removes the directory of a pod only after its object is gone; one that died between
/// making the cgroup and making the directory looks the same, and only a person can tell.
pub fn all_agree(context: &Context, view: &PodView, removed: bool, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
    let lives = observed.lives();
    let cgroups = places::cgroups(context, view).collect::<Result<Vec<_>, _>>()?;
    if lives && cgroups.is_empty() {
        let why = format!(
            "held: the pod runs, but has no cgroup below {}/kubepods; are --cgroup-root and --cgroup-driver the kubelet's? \
             If they are, stop the pod's containers and sandboxes by hand, and the rest of it goes on",
            context.cgroup_root.trim_end_matches('/')
        );
        return Err(vec![Failure::new(Step::Cgroup, "", why)]);
    }
    // Containers that run have a directory, whatever became of the object.
    if lives || (!removed && (!cgroups.is_empty() || !observed.is_gone())) {
        let dir = places::dir(context, view)?;
        let there = dir
            .open()
            .map_err(|fault| vec![Failure::new(Step::Volumes, "", fault)])?;
        if there.is_none() {
            let why = format!(
                "held: the pod is or was on this node, but there is no {}; is --kubelet-root the kubelet's --root-dir? \
                 If it is, make that directory, empty, and the pod goes on",
                dir.path().display()
            );
            return Err(vec![Failure::new(Step::Volumes, "", why)]);
        }
    }
    all_are_known(context, &cgroups, observed, Breadth::One)
}

/// Nothing of the pod runs after its stop.
pub fn nothing_runs(context: &Context, view: &PodView, stopped: &RuntimePod) -> Result<(), Vec<Failure>> {
    let dry_run = context.effects.dry_run();
    let running = still_running(stopped, Step::Kill);
    let ready = stopped.sandboxes.iter().filter(|sandbox| sandbox.is_ready());
    let ready = ready.map(|sandbox| Failure::new(Step::Sandbox, &sandbox.id, "still ready after its stop"));
    let failures: Vec<_> = running.chain(ready).filter(|_| !dry_run).collect();
    if !failures.is_empty() {
        return Err(failures);
    }
    // A runtime that has lost its memory meanwhile calls what it does not know stopped, too.
    let cgroups = places::cgroups(context, view).collect::<Result<Vec<_>, _>>()?;
    all_are_known(context, &cgroups, stopped, Breadth::Every)
}

/// What runs after its stop, as failures of this step.
pub(super) fn still_running(stopped: &RuntimePod, step: Step) -> impl Iterator<Item = Failure> {
    stopped.running().map(move |container| {
        let why = format_args!("still {:?} after its stop", container.state);
        Failure::new(step, &container.name, why)
    })
}

/// A terminal phase lets the claims be given to others, so it has to wait until the devices are released.
pub fn nothing_is_prepared(view: &PodView) -> Result<(), Vec<Failure>> {
    if view.dynamic_resources {
        let why = "the pod has dynamic resources (DRA), which this version cannot release; they and the pod wait for a kubelet";
        return Err(vec![Failure::new(Step::Sandbox, "", why)]);
    }
    Ok(())
}

fn all_are_known(
    context: &Context,
    cgroups: &[PodCgroup],
    observed: &RuntimePod,
    breadth: Breadth,
) -> Result<(), Vec<Failure>> {
    for cgroup in cgroups {
        let name = cgroup.path().display().to_string();
        let known = |child: &OsStr| is_known(observed, &child.to_string_lossy());
        let processes = context.cgroups.processes_but(cgroup, breadth, known);
        let processes = processes.map_err(|error| vec![Failure::new(Step::Cgroup, &name, error)])?;
        if let Some(first) = processes.first() {
            let why = format!(
                "held: it holds {} processes (first pid {first}) of which the runtime knows no container; \
                 is --cri-endpoint the runtime of this node's pods? If it is, end the processes by hand",
                processes.len()
            );
            return Err(vec![Failure::new(Step::Cgroup, &name, why)]);
        }
    }
    Ok(())
}

/// Whether the processes in this cgroup below the pod's, or with an empty name in the pod's own, are the pod's to end.
/// Runtimes name a cgroup by the id of what is in it. Who is in the pod's own was moved there by somebody: a runtime
/// that remembers containers of the pod is the right one to end the pod all the same.
fn is_known(observed: &RuntimePod, child: &str) -> bool {
    if child.is_empty() {
        return !observed.containers.is_empty();
    }
    let containers = observed.containers.iter().map(|container| &container.id);
    let mut ids = containers.chain(observed.sandboxes.iter().map(|sandbox| &sandbox.id));
    ids.any(|id| !id.is_empty() && child.contains(id.as_str()))
}
