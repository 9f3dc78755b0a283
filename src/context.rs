//! What every worker works with.

use std::{path::PathBuf, sync::Arc};

use tokio_util::sync::CancellationToken;

use crate::{
    api::ApiClient,
    clock::BootClock,
    counters::Counters,
    guard::Guard,
    journal::Journal,
    node::{
        cgroups::{self, Cgroups, PodCgroup, Qos},
        cri::Cri,
        effects::Effects,
        kubelet_root::KubeletRoot,
        mounts::Mounts,
        pod_dir::PodDir,
    },
    pod::PodView,
    record::Step,
    report::events::Events,
    teardown::Failure,
    workers::quiet::Quiet,
};

/// Clients, paths and records, shared by all workers.
pub struct Context {
    /// The API server.
    pub api: ApiClient,
    /// The container runtime.
    pub cri: Cri,
    /// How the runtime calls itself: container ids in the API start with it.
    pub runtime_name: String,
    /// What survives a crash.
    pub journal: Journal,
    /// Moments that survive a restart.
    pub clock: BootClock,
    /// Where events go.
    pub events: Events,
    /// What happened how often.
    pub counters: Arc<Counters>,
    /// What may be concluded and done.
    pub guard: Guard,
    /// The gate for effects.
    pub effects: Effects,
    /// The cgroup hierarchies.
    pub cgroups: Cgroups,
    /// Root of the kubelet's cgroups, such as `/`.
    pub cgroup_root: String,
    /// The kubelet's root directory, resolved.
    pub kubelet_root: KubeletRoot,
    /// The mount table.
    pub mounts: Arc<Mounts>,
    /// Where the kubelet keeps the logs of pods.
    pub pod_logs_dir: PathBuf,
    /// Tells when no pod is waiting to be gone.
    pub quiet: Quiet,
    /// The agent stops: what waits for its next attempt waits no longer.
    pub stopping: CancellationToken,
}

// === impl Context ===

impl Context {
    /// The pod's cgroups that are there, below whichever QoS parent: the class in the API is what somebody wrote, and a
    /// look costs little.
    pub fn pod_cgroups(&self, view: &PodView) -> impl Iterator<Item = Result<PodCgroup, Vec<Failure>>> {
        let uid = view.pod.uid.clone();
        [Qos::Burstable, Qos::Guaranteed, Qos::BestEffort]
            .into_iter()
            .map(move |qos| {
                cgroups::pod_cgroup_name(&self.cgroup_root, qos, uid.as_str())
                    .map_err(|error| vec![Failure::new(Step::Cgroup, "", error)])
            })
            .filter(|cgroup| cgroup.as_ref().map_or(true, |it| self.cgroups.exists(it)))
    }

    /// The pod's directory, which need not exist.
    pub fn pod_dir(&self, view: &PodView) -> Result<PodDir, Vec<Failure>> {
        PodDir::new(&self.kubelet_root, view.pod.uid.as_str())
            .map_err(|error| vec![Failure::new(Step::Volumes, view.pod.uid.as_str(), error)])
    }
}
