//! What every worker works with.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    boundary::{EventSink, Gate, PodApi, Terminating},
    journal::PodJournal,
};
use crate::{
    cleanup_throttle::CleanupThrottle,
    clock::BootClock,
    node::{cgroups::Cgroups, cri::Cri, effects::Effects, kubelet_root::KubeletRoot, threads::Threads},
    teardown::volumes::storage::Storage,
};

/// What every worker works with.
pub struct Context {
    /// The API server.
    pub(crate) api: Arc<dyn PodApi>,
    /// What survives a crash.
    pub(crate) journal: Arc<dyn PodJournal>,
    /// Where events go.
    pub(crate) events: Arc<dyn EventSink>,
    /// Whether pods may be touched.
    pub(crate) gate: Arc<dyn Gate>,
    /// Which other pods terminate.
    pub(crate) terminating: Terminating,
    /// The container runtime.
    pub(crate) cri: Cri,
    /// How the runtime calls itself: container ids in the API start with it.
    pub(crate) runtime_name: String,
    /// Moments that survive a restart.
    pub(crate) clock: BootClock,
    /// The gate for effects.
    pub(crate) effects: Effects,
    /// The cgroup hierarchies.
    pub(crate) cgroups: Cgroups,
    /// Root of the kubelet's cgroups, such as `/`.
    pub(crate) cgroup_root: String,
    /// The kubelet's root directory, resolved.
    pub(crate) kubelet_root: KubeletRoot,
    /// What volumes are taken away with.
    pub(crate) storage: Arc<Storage>,
    /// Where the kubelet keeps the logs of pods.
    pub(crate) pod_logs_dir: PathBuf,
    /// Reading what containers left, which must not wait for what hangs.
    pub(crate) reads: Threads,
    /// Tells when no pod is waiting to be gone.
    pub(crate) cleanup_throttle: CleanupThrottle,
    /// How long the termination of a driver or a node service waits for pods that need it.
    pub(crate) driver_hold: Duration,
    /// The agent stops: what waits for its next attempt waits no longer.
    pub(crate) stopping: CancellationToken,
}
