//! Locates a pod's cgroups and directory on the node.

use std::sync::Arc;

use crate::{
    model::{
        failure::Failure,
        pod::{PodUid, PodView},
        trace::Step,
    },
    node::{
        cgroups::{Cgroups, PodCgroup},
        effects::{Effects, Outcome},
        pod_dir::PodDir,
    },
    teardown::{attempt::Worker, context::Context},
};

/// The pod's cgroups that exist. Blocks.
///
/// # Errors
/// If the UID cannot be part of a name.
pub fn cgroups(context: &Context, view: &PodView) -> Result<Vec<PodCgroup>, Vec<Failure>> {
    cgroups_of(&context.node.cgroups, &context.node.cgroup_root, &view.pod.uid)
}

fn cgroups_of(cgroups: &Cgroups, root: &str, uid: &PodUid) -> Result<Vec<PodCgroup>, Vec<Failure>> {
    let found = cgroups.of_pod(root, uid.as_str());
    found.map_err(|error| vec![Failure::new(Step::Cgroup, "", error)])
}

/// Thaws the pod's cgroups. Returns all failures: none keeps another cgroup frozen.
pub async fn thaw_cgroups(context: &Context, view: &PodView) -> (Outcome, Vec<Failure>) {
    let (cgroups, root) = (context.node.cgroups.clone(), context.node.cgroup_root.clone());
    let uid = view.pod.uid.clone();
    let thaw = move |effects: &Effects| {
        let mut done = Outcome::Nothing;
        let mut failures = Vec::new();
        for cgroup in cgroups_of(&cgroups, &root, &uid)? {
            let (thawed, faults) = cgroups.thaw(&cgroup, effects);
            done = done.and(thawed);
            failures.extend(faults.into_iter().map(|fault| fault.failure(Step::Cgroup)));
        }
        Ok((done, failures))
    };
    let thawed = context.node.effects.run_blocking(thaw).await;
    let thawed = thawed.unwrap_or_else(|why| Err(vec![Failure::new(Step::Cgroup, "", why)]));
    thawed.unwrap_or_else(|failures| (Outcome::Nothing, failures))
}

/// Kills all processes in the pod's cgroups. Returns all failures: none keeps those in another cgroup alive.
pub(super) async fn kill_cgroups(worker: &Worker, view: &Arc<PodView>) -> (Outcome, Vec<Failure>) {
    let (mut killed, mut failures) = (Outcome::Nothing, Vec::new());
    let node = &worker.context.node;
    match worker.on_node(view, Step::Cgroup, cgroups).await {
        Ok(found) => {
            for cgroup in found {
                match node.cgroups.kill(&cgroup, &node.effects).await {
                    Ok(done) => killed = killed.and(done),
                    Err(faults) => failures.extend(faults.iter().map(|fault| fault.failure(Step::Cgroup))),
                }
            }
        }
        Err(more) => failures = more,
    }
    (killed, failures)
}

/// The pod's directory, which need not exist.
///
/// # Errors
/// If the UID cannot be the name of a directory.
pub fn pod_dir(context: &Context, view: &PodView) -> Result<PodDir, Vec<Failure>> {
    PodDir::new(&context.node.storage.root, view.pod.uid.as_str())
        .map_err(|error| vec![Failure::new(Step::Volumes, view.pod.uid.as_str(), error)])
}
