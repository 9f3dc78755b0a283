//! What all workers share.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::boundary::{EventSink, NoEvents, PodApi, Terminating};
use crate::{
    clock::BootClock,
    journal::Journal,
    node::{cgroups::Cgroups, cri::Cri, effects::Effects, threads::Threads},
    teardown::{limits::Limits, volumes::storage::Storage, work::Work},
};

/// What all workers share: the boundary to the caller, this node, and settings.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub(crate) api: Arc<dyn PodApi>,
    /// State that survives a crash.
    pub(crate) journal: Journal,
    /// Events and counters.
    pub(crate) events: Arc<dyn EventSink>,
    /// Work in progress.
    pub(crate) work: Work,
    /// The pods that are terminating.
    pub(crate) terminating: Terminating,
    /// This node.
    pub(crate) node: LocalNode,
    /// Limits how many calls the runtime works on.
    pub(crate) limits: Arc<Limits>,
    /// `--driver-hold`: how long a driver or a node service waits for pods that need it.
    pub(crate) driver_hold: Duration,
    /// The agent stops.
    pub(crate) stopping: CancellationToken,
}

/// Access to this node.
#[derive(Clone)]
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

/// Number of threads for reads of diagnoses and plans. A file system that hangs takes these, and no others.
const READ_ONLY_THREADS: usize = 64;

// === impl Context ===

impl Context {
    /// The same node and cluster for reads. Every effect on the node is refused, and events are dropped.
    pub(crate) fn read_only(&self) -> Self {
        let threads = Threads::with_slots(READ_ONLY_THREADS);
        let node = &self.node;
        let effects = node.effects.refusing(threads.clone());
        Self {
            events: Arc::new(NoEvents),
            node: LocalNode {
                cri: node.cri.with_effects(effects.clone()),
                storage: Arc::new(node.storage.with_effects(&effects)),
                reads: threads.with_blocking(node.effects.blocking()),
                effects,
                ..node.clone()
            },
            ..self.clone()
        }
    }
}
