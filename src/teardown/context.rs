//! What every worker works with.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{ApiClient, ApiError},
    clock::BootClock,
    counters::Counters,
    events::Events,
    journal::Journal,
    model::pod::PodRef,
    node::{cgroups::Cgroups, cri::Cri, effects::Effects, kubelet_root::KubeletRoot, threads::Threads},
    quiet::Quiet,
    teardown::volumes::storage::Storage,
};

/// Proof that the API server has no object of a pod any more. A 404 alone is none: it may be the answer of another cluster.
pub trait Absence: Send + Sync {
    /// Whether the object of this UID is gone.
    ///
    /// # Errors
    /// When it cannot be known.
    fn is_gone<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<bool, ApiError>>;
}

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
    /// Proves that the API server has no object of a pod.
    pub absence: Arc<dyn Absence>,
    /// The gate for effects.
    pub effects: Effects,
    /// The cgroup hierarchies.
    pub cgroups: Cgroups,
    /// Root of the kubelet's cgroups, such as `/`.
    pub cgroup_root: String,
    /// The kubelet's root directory, resolved.
    pub kubelet_root: KubeletRoot,
    /// What volumes are taken away with.
    pub storage: Arc<Storage>,
    /// Where the kubelet keeps the logs of pods.
    pub pod_logs_dir: PathBuf,
    /// Reading what containers left, which must not wait for what hangs.
    pub reads: Threads,
    /// Tells when no pod is waiting to be gone.
    pub quiet: Quiet,
    /// How long the termination of a driver or a node service waits for pods that need it.
    pub driver_hold: Duration,
    /// The agent stops: what waits for its next attempt waits no longer.
    pub stopping: CancellationToken,
}
