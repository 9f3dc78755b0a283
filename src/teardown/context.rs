//! What all workers share.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    boundary::{EventSink, Gate, PodApi, Terminating},
    journal::PodJournal,
};
use crate::{
    cleanup_throttle::CleanupThrottle,
    clock::BootClock,
    node::{cgroups::Cgroups, cri::Cri, effects::Effects, threads::Threads},
    teardown::volumes::storage::Storage,
};

/// What all workers share: the boundary to the caller, this node, and settings.
pub struct Context {
    /// The API server.
    pub(crate) api: Arc<dyn PodApi>,
    /// State that survives a crash.
    pub(crate) journal: Arc<dyn PodJournal>,
    /// Events and counters.
    pub(crate) events: Arc<dyn EventSink>,
    /// Whether pods may be touched.
    pub(crate) gate: Arc<dyn Gate>,
    /// The pods that are terminating.
    pub(crate) terminating: Terminating,
    /// This node.
    pub(crate) node: LocalNode,
    /// Delays cleanups while other pods are being stopped.
    pub(crate) cleanup_throttle: CleanupThrottle,
    /// `--driver-hold`: how long a driver or a node service waits for pods that need it.
    pub(crate) driver_hold: Duration,
    /// The agent stops.
    pub(crate) stopping: CancellationToken,
}

/// Access to this node.
pub struct LocalNode {
    /// The container runtime.
    pub(crate) cri: Cri,
    /// Name of the runtime: the prefix of container IDs in the API.
    pub(crate) runtime_name: String,
    /// Times that survive a restart.
    pub(crate) clock: BootClock,
    /// The gate for effects.
    pub(crate) effects: Effects,
    /// The cgroup hierarchies.
    pub(crate) cgroups: Cgroups,
    /// Root of the kubelet's cgroups, such as `/`.
    pub(crate) cgroup_root: String,
    /// The kubelet's root directory, mounts and drivers.
    pub(crate) storage: Arc<Storage>,
    /// The kubelet's directory for logs of pods.
    pub(crate) pod_logs_dir: PathBuf,
    /// Threads for reads that may hang.
    pub(crate) reads: Threads,
}
