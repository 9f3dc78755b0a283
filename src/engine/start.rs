//! Starts an engine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::future::{FutureExt as _, ready};
use tokio_util::sync::CancellationToken;

use super::{Engine, Running};
use crate::{
    journal::Journal,
    model::{problem::Problem, problems},
    node::{
        cgroups::Cgroups,
        cri::{Cri, CriEndpoint},
        effects::{Effects, Gate, OpenGate},
        host::Host,
        kubelet_root::KubeletRoot,
        lock::DirLock,
        mount_namespace,
        threads::Threads,
    },
    teardown::{
        boundary::{EventSink, NoApi, NoEvents, PodApi},
        context::{Context, LocalNode},
        limits::Limits,
        volumes::storage::{NoCluster, Storage},
        work::Work,
    },
};

/// Maximum number of concurrent file reads.
const MAX_READS: usize = 8;

/// Settings of an [`Engine`].
pub struct Settings {
    /// Where the container runtime listens, such as `unix:///run/containerd/containerd.sock`.
    pub endpoint: String,
    /// The kubelet's `--root-dir`, such as `/var/lib/kubelet`.
    pub kubelet_root: PathBuf,
    /// The kubelet's `cgroupRoot`.
    pub cgroup_root: String,
    /// The kubelet's `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// How long the termination of a CSI or DRA driver waits for pods that need it.
    pub driver_hold: Duration,
    /// Directory of the journal. Without it, the journal is in memory, and a crash loses it.
    pub state_dir: Option<PathBuf>,
    /// Checked before each effect, and whenever it has changed for effects in progress. [`OpenGate`] always allows effects, even while
    /// a kubelet runs.
    pub gate: Arc<dyn Gate>,
    /// Gets each pod's status and the final delete. Without it a termination ends when nothing is left on the node.
    pub reporter: Option<Arc<dyn PodApi>>,
    /// Gets the events.
    pub events: Arc<dyn EventSink>,
}

// === impl Settings ===

impl Settings {
    /// Defaults for all but these two.
    pub fn new(endpoint: impl Into<String>, kubelet_root: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: endpoint.into(),
            kubelet_root: kubelet_root.into(),
            cgroup_root: "/".to_owned(),
            pod_logs_dir: "/var/log/pods".into(),
            driver_hold: Duration::from_secs(600),
            state_dir: None,
            gate: Arc::new(OpenGate),
            reporter: None,
            events: Arc::new(NoEvents),
        }
    }

    fn open_journal(&self, host: &Host) -> Result<Journal, Problem> {
        let Some(dir) = &self.state_dir else {
            return Ok(Journal::in_memory());
        };
        Journal::open(dir, &host.identity()).map_err(|error| {
            Problem::configuration(
                format!("{}: {error}", dir.display()),
                "name a directory that can be written",
            )
        })
    }
}

// === impl Engine ===

impl Engine {
    /// Reads the node's configuration and takes the lock on its pods. It must be called in a tokio runtime. It waits while the
    /// container runtime restarts.
    ///
    /// # Errors
    /// When the endpoint or the kubelet's directory is wrong, the runtime does not answer, this process is not in its mount
    /// namespace, another process takes pods of this node down, or the journal cannot be used.
    pub async fn start(settings: Settings) -> Result<Self, Problem> {
        let endpoint: CriEndpoint = settings
            .endpoint
            .parse()
            .map_err(|error| Problem::usage(format!("endpoint: {error}"), "name the socket of containerd or CRI-O"))?;
        let kubelet_root = KubeletRoot::resolve(&settings.kubelet_root)
            .map_err(|error| Problem::configuration(error.to_string(), "name the kubelet's --root-dir"))?;
        let host = Host::local()?;
        let lock = DirLock::acquire(kubelet_root.pods(), &host.root)
            .map_err(|error| Problem::taken(error.to_string(), "stop the other process first"))?;
        let journal = settings.open_journal(&host)?;
        let effects = Effects::new(settings.gate);
        let cri = Cri::new(&endpoint, effects.clone());
        let runtime = cri.version().await.map_err(|error| {
            Problem::configuration(
                format!("{endpoint}: {error}"),
                "start the container runtime, or name its socket",
            )
        })?;
        mount_namespace::wait_for_check(&host.proc, endpoint.path()).await?;
        let cgroups = Cgroups::detect(&host.mountinfo, &host.cgroups).map_err(|error| problems::cgroups(&error))?;
        let storage = Storage::new(&host, &kubelet_root, &effects, Arc::new(NoCluster), journal.clone());
        let running = Arc::new(Running::default());
        let terminating = Arc::clone(&running);
        let has_reporter = settings.reporter.is_some();
        let context = Context {
            api: settings.reporter.unwrap_or_else(|| Arc::new(NoApi)),
            journal,
            events: settings.events,
            work: Work::default(),
            terminating: Arc::new(move || ready(terminating.views()).boxed()),
            node: LocalNode {
                cri,
                runtime_name: runtime.name,
                clock: host.clock,
                effects,
                cgroups,
                cgroup_root: settings.cgroup_root,
                storage: Arc::new(storage),
                pod_logs_dir: settings.pod_logs_dir,
                reads: Threads::with_slots(MAX_READS),
            },
            limits: Arc::new(Limits::new(host.processors)),
            driver_hold: settings.driver_hold,
            stopping: CancellationToken::new(),
        };
        Ok(Self {
            context: Arc::new(context),
            has_reporter,
            running,
            _lock: lock,
        })
    }
}
