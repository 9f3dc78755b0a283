//! Locates a pod's cgroups and directory on the node.

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
    teardown::context::Context,
};

/// The pod's cgroups that exist. Blocks.
///
/// # Errors
/// If the UID cannot be part of a name.
pub fn cgroups(context: &Context, view: &PodView) -> Result<Vec<PodCgroup>, Vec<Failure>> {
    cgroups_of(&context.node.cgroups, &context.node.cgroup_root, &view.pod.uid)
}

/// As [`cgroups`], without blocking.
pub async fn find_cgroups(context: &Context, view: &PodView) -> Result<Vec<PodCgroup>, Vec<Failure>> {
    let (cgroups, root) = (context.node.cgroups.clone(), context.node.cgroup_root.clone());
    let uid = view.pod.uid.clone();
    let find = move |_: &Effects| cgroups_of(&cgroups, &root, &uid);
    let found = context.node.effects.run_blocking(find).await;
    found.unwrap_or_else(|why| Err(vec![Failure::new(Step::Cgroup, "", why)]))
}

/// Thaws the pod's cgroups. Returns all failures: none keeps another cgroup frozen.
pub async fn thaw_cgroups(context: &Context, view: &PodView) -> (Outcome, Vec<Failure>) {
    let (cgroups, root) = (context.node.cgroups.clone(), context.node.cgroup_root.clone());
    let uid = view.pod.uid.clone();
    let thaw = move |effects: &Effects| {
        let mut done = Outcome::Nothing;
        let mut failures = Vec::new();
        match possible_cgroups(&cgroups, &root, &uid) {
            Ok(possible) => {
                for cgroup in possible {
                    let (thawed, faults) = cgroups.thaw(&cgroup, effects);
                    done = done.and(thawed);
                    failures.extend(faults.into_iter().map(|fault| fault.failure(Step::Cgroup)));
                }
            }
            Err(more) => failures = more,
        }
        (done, failures)
    };
    let thawed = context.node.effects.run_blocking(thaw).await;
    thawed.unwrap_or_else(|why| (Outcome::Nothing, vec![Failure::new(Step::Cgroup, "", why)]))
}

fn cgroups_of(cgroups: &Cgroups, root: &str, uid: &PodUid) -> Result<Vec<PodCgroup>, Vec<Failure>> {
    let mut found = possible_cgroups(cgroups, root, uid)?;
    found.retain(|cgroup| cgroups.exists(cgroup));
    Ok(found)
}

fn possible_cgroups(cgroups: &Cgroups, root: &str, uid: &PodUid) -> Result<Vec<PodCgroup>, Vec<Failure>> {
    let possible = cgroups.possible_pod_cgroups(root, uid.as_str());
    possible.map_err(|error| vec![Failure::new(Step::Cgroup, "", error)])
}

/// The pod's directory, which need not exist.
///
/// # Errors
/// If the UID cannot be the name of a directory.
pub fn pod_dir(context: &Context, view: &PodView) -> Result<PodDir, Vec<Failure>> {
    PodDir::new(&context.node.storage.root, view.pod.uid.as_str())
        .map_err(|error| vec![Failure::new(Step::Volumes, view.pod.uid.as_str(), error)])
}
