//! Where on the node a pod's things are.

use super::Failure;
use crate::{
    context::Context,
    node::{
        cgroups::{PodCgroup, Qos},
        pod_dir::PodDir,
    },
    pod::PodView,
    record::Step,
};

/// The pod's cgroups that are there, below whichever QoS parent and made by whichever driver: the class in the API is what
/// somebody wrote, and a look costs little.
pub fn cgroups(context: &Context, view: &PodView) -> impl Iterator<Item = Result<PodCgroup, Vec<Failure>>> {
    let uid = view.pod.uid.clone();
    [Qos::Burstable, Qos::Guaranteed, Qos::BestEffort]
        .into_iter()
        .flat_map(
            move |qos| match context.cgroups.pod(&context.cgroup_root, qos, uid.as_str()) {
                Ok(names) => names.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(vec![Failure::new(Step::Cgroup, "", error)])],
            },
        )
        .filter(|cgroup| cgroup.as_ref().map_or(true, |it| context.cgroups.exists(it)))
}

/// The pod's directory, which need not exist.
pub fn dir(context: &Context, view: &PodView) -> Result<PodDir, Vec<Failure>> {
    PodDir::new(&context.kubelet_root, view.pod.uid.as_str())
        .map_err(|error| vec![Failure::new(Step::Volumes, view.pod.uid.as_str(), error)])
}
