//! Locates a pod's cgroups and directory on the node.

use crate::{
    model::{
        failure::Failure,
        pod::{PodUid, PodView},
        trace::Step,
    },
    node::{
        cgroups::{Cgroups, PodCgroup, Qos},
        effects::{Effects, Outcome},
        pod_dir::PodDir,
    },
    teardown::context::Context,
};

/// The pod's cgroups that exist, below any QoS parent and of either cgroup driver: the class in the API may be wrong. Blocks.
pub fn cgroups(context: &Context, view: &PodView) -> impl Iterator<Item = Result<PodCgroup, Vec<Failure>>> {
    cgroups_of(&context.node.cgroups, &context.node.cgroup_root, &view.pod.uid)
}

/// As [`cgroups`], without blocking.
pub async fn find_cgroups(context: &Context, view: &PodView) -> Result<Vec<PodCgroup>, Vec<Failure>> {
    let (cgroups, root) = (context.node.cgroups.clone(), context.node.cgroup_root.clone());
    let uid = view.pod.uid.clone();
    let find = move |_: &Effects| cgroups_of(&cgroups, &root, &uid).collect();
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
        for cgroup in possible_cgroups(&cgroups, &root, &uid) {
            match cgroup {
                Ok(cgroup) => {
                    let (thawed, faults) = cgroups.thaw(&cgroup, effects);
                    done = done.and(thawed);
                    failures.extend(faults.into_iter().map(|fault| fault.failure(Step::Cgroup)));
                }
                Err(more) => failures.extend(more),
            }
        }
        (done, failures)
    };
    let thawed = context.node.effects.run_blocking(thaw).await;
    thawed.unwrap_or_else(|why| (Outcome::Nothing, vec![Failure::new(Step::Cgroup, "", why)]))
}

fn cgroups_of(cgroups: &Cgroups, root: &str, uid: &PodUid) -> impl Iterator<Item = Result<PodCgroup, Vec<Failure>>> {
    possible_cgroups(cgroups, root, uid).filter(|cgroup| cgroup.as_ref().map_or(true, |it| cgroups.exists(it)))
}

/// All cgroups that the pod may have.
fn possible_cgroups(
    cgroups: &Cgroups,
    root: &str,
    uid: &PodUid,
) -> impl Iterator<Item = Result<PodCgroup, Vec<Failure>>> {
    [Qos::Burstable, Qos::Guaranteed, Qos::BestEffort]
        .into_iter()
        .flat_map(move |qos| match cgroups.pod_cgroups(root, qos, uid.as_str()) {
            Ok(names) => names.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(vec![Failure::new(Step::Cgroup, "", error)])],
        })
}

/// The pod's directory, which need not exist.
///
/// # Errors
/// If the UID cannot be the name of a directory.
pub fn pod_dir(context: &Context, view: &PodView) -> Result<PodDir, Vec<Failure>> {
    PodDir::new(&context.node.storage.root, view.pod.uid.as_str())
        .map_err(|error| vec![Failure::new(Step::Volumes, view.pod.uid.as_str(), error)])
}
