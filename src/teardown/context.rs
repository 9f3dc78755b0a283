//! What all workers share.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    boundary::{EventSink, Gate, NoEvents, PodApi, Terminating},
    journal::PodJournal,
    read_only::{ReadOnlyApi, ReadOnlyJournal},
};
use crate::{
    cleanup_throttle::CleanupThrottle,
    clock::BootClock,
    node::{cgroups::Cgroups, cri::Cri, effects::Effects, threads::Threads},
    teardown::{pod_reads::PodReads, stop_throttle::StopThrottle, volumes::storage::Storage},
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
    /// Limits how many stops the runtime works on.
    pub(crate) stop_throttle: StopThrottle,
    /// Delays cleanups while other pods are being stopped.
    pub(crate) cleanup_throttle: CleanupThrottle,
    /// Limits the memory for large objects: see [`super::large_object`].
    pub(crate) large_objects: Arc<Semaphore>,
    /// Bounds the reads of one pod for answers.
    pub(crate) pod_reads: PodReads,
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

/// Number of threads for reads of diagnoses and plans. A file system that hangs takes these, and no others.
const READ_ONLY_THREADS: usize = 64;
/// Why a diagnosis or plan is refused an effect.
const READ_ONLY: &str = "only reads are allowed here";

// === impl Context ===

impl Context {
    /// The same node and cluster for reads. Every effect on the node is refused, and so is every write to the API. The journal
    /// ignores changes, and events are dropped.
    pub(crate) fn read_only(&self) -> Self {
        let threads = Threads::with_slots(READ_ONLY_THREADS);
        let journal: Arc<dyn PodJournal> = Arc::new(ReadOnlyJournal(Arc::clone(&self.journal)));
        let node = &self.node;
        let effects = node.effects.refusing(READ_ONLY, threads.clone());
        Self {
            api: Arc::new(ReadOnlyApi(Arc::clone(&self.api))),
            journal: Arc::clone(&journal),
            events: Arc::new(NoEvents),
            gate: Arc::clone(&self.gate),
            terminating: Arc::clone(&self.terminating),
            stop_throttle: StopThrottle::new(1),
            cleanup_throttle: CleanupThrottle::default(),
            large_objects: Arc::clone(&self.large_objects),
            pod_reads: PodReads::default(),
            driver_hold: self.driver_hold,
            stopping: self.stopping.clone(),
            node: LocalNode {
                cri: node.cri.with_effects(effects.clone()),
                runtime_name: node.runtime_name.clone(),
                clock: node.clock.clone(),
                cgroups: node.cgroups.clone(),
                cgroup_root: node.cgroup_root.clone(),
                storage: Arc::new(node.storage.with_effects(&effects, journal)),
                pod_logs_dir: node.pod_logs_dir.clone(),
                reads: threads.with_blocking(node.effects.blocking()),
                effects,
            },
        }
    }
}
