//! Builds an engine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::future::{FutureExt as _, ready};
use tokio::{sync::Notify, time::sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Engine, Running};
use crate::{
    cleanup_throttle::CleanupThrottle,
    journal::Journal,
    model::{problem::Problem, problems},
    node::{
        cgroups::Cgroups,
        cri::{Cri, CriEndpoint},
        effects::{Effects, EffectsBlocked},
        host::{Host, same_mount_namespace},
        identity::Identity,
        kubelet_root::KubeletRoot,
        lock::DirLock,
        threads::Threads,
    },
    teardown::{
        boundary::{EventSink, Gate, NoApi, NoEvents, OpenGate, PodApi},
        context::{Context, LocalNode},
        journal::PodJournal,
        large_object,
        pod_reads::PodReads,
        priority_gate::PriorityGate,
        stop_throttle::StopThrottle,
        volumes::storage::{NoCluster, Storage},
    },
};

/// Maximum number of concurrent file reads.
const MAX_READS: usize = 8;
/// How often the gate is checked for effects in progress.
const GATE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Builds an [`Engine`].
#[must_use = "nothing is taken down before it is started"]
pub struct Builder {
    endpoint: String,
    kubelet_root: PathBuf,
    cgroup_root: String,
    pod_logs_dir: PathBuf,
    driver_hold: Duration,
    state_dir: Option<PathBuf>,
    journal: Option<Arc<dyn PodJournal>>,
    gate: Arc<dyn Gate>,
    reporter: Option<Arc<dyn PodApi>>,
    events: Arc<dyn EventSink>,
}

// === impl Builder ===

impl Builder {
    pub(super) fn new(endpoint: &str, kubelet_root: PathBuf) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            kubelet_root,
            cgroup_root: "/".to_owned(),
            pod_logs_dir: "/var/log/pods".into(),
            driver_hold: Duration::from_secs(600),
            state_dir: None,
            journal: None,
            gate: Arc::new(OpenGate),
            reporter: None,
            events: Arc::new(NoEvents),
        }
    }

    /// The kubelet's `cgroupRoot`; else `/`.
    pub fn cgroup_root(self, cgroup_root: impl Into<String>) -> Self {
        let cgroup_root = cgroup_root.into();
        Self { cgroup_root, ..self }
    }

    /// The kubelet's `podLogsDir`; else `/var/log/pods`.
    pub fn pod_logs_dir(self, dir: impl Into<PathBuf>) -> Self {
        let pod_logs_dir = dir.into();
        Self { pod_logs_dir, ..self }
    }

    /// How long the termination of a CSI or DRA driver waits for pods that need it; else 10 minutes.
    pub fn driver_hold(self, driver_hold: Duration) -> Self {
        Self { driver_hold, ..self }
    }

    /// Keeps the journal in a file in this directory. Without it, and without [`Self::journal`], it is in memory, and a crash
    /// loses it.
    pub fn state_dir(self, dir: impl Into<PathBuf>) -> Self {
        let state_dir = Some(dir.into());
        Self { state_dir, ..self }
    }

    /// Uses this journal.
    pub fn journal(self, journal: impl PodJournal + 'static) -> Self {
        let journal: Option<Arc<dyn PodJournal>> = Some(Arc::new(journal));
        Self { journal, ..self }
    }

    /// Checks this gate before each effect, and every second for effects in progress. Without it effects are always allowed, even
    /// while a kubelet runs.
    pub fn gate(self, gate: impl Gate + 'static) -> Self {
        let gate = Arc::new(gate);
        Self { gate, ..self }
    }

    /// Sends each pod's status and the final delete to this API. Without it a termination ends when nothing is left on the node.
    pub fn reporter(self, reporter: impl PodApi + 'static) -> Self {
        let reporter: Option<Arc<dyn PodApi>> = Some(Arc::new(reporter));
        Self { reporter, ..self }
    }

    /// Sends events to this sink.
    pub fn events(self, events: impl EventSink + 'static) -> Self {
        let events = Arc::new(events);
        Self { events, ..self }
    }

    /// Reads the node's configuration and takes the lock on its pods. It must be called in a tokio runtime. It waits while the
    /// container runtime restarts.
    ///
    /// # Errors
    /// When the endpoint or the kubelet's directory is wrong, the runtime does not answer, this process is not in its mount
    /// namespace, another process takes pods of this node down, or the journal cannot be used.
    pub async fn start(self) -> Result<Engine, Problem> {
        let endpoint: CriEndpoint = self
            .endpoint
            .parse()
            .map_err(|error| Problem::usage(format!("endpoint: {error}"), "name the socket of containerd or CRI-O"))?;
        let kubelet_root = KubeletRoot::resolve(&self.kubelet_root)
            .map_err(|error| Problem::configuration(error.to_string(), "name the kubelet's --root-dir"))?;
        let host = Host::local()?;
        let lock = DirLock::acquire(kubelet_root.pods(), &host.root)
            .map_err(|error| Problem::taken(error.to_string(), "stop the other process first"))?;
        let journal = match (self.journal, &self.state_dir) {
            (Some(journal), _) => journal,
            (None, None) => Arc::new(Journal::in_memory()),
            (None, Some(dir)) => {
                let machine = Identity {
                    boot_id: Some(host.clock.boot_id().to_owned()),
                    ..Identity::read(&host.root)
                };
                let journal = Journal::open(dir, &machine).map_err(|error| {
                    Problem::configuration(
                        format!("{}: {error}", dir.display()),
                        "name a directory that can be written",
                    )
                })?;
                Arc::new(journal) as Arc<dyn PodJournal>
            }
        };
        let gate_poll = Arc::new(Notify::new());
        let gate = Arc::clone(&self.gate);
        let why_blocked = move || {
            gate.why_blocked()
                .map_or(Ok(()), |reason| Err(EffectsBlocked { reason }))
        };
        let effects = Effects::new(Arc::new(why_blocked)).with_block_signal(Arc::clone(&gate_poll));
        let poll = async move {
            loop {
                sleep(GATE_POLL_INTERVAL).await;
                gate_poll.notify_waiters();
            }
        };
        let cri = Cri::new(&endpoint, effects.clone());
        let runtime = cri.identify(&endpoint).await.map_err(|error| {
            Problem::configuration(
                format!("{endpoint}: {error}"),
                "start the container runtime, or name its socket",
            )
        })?;
        same_mount_namespace(&host.proc, &endpoint).await?;
        let cgroups = Cgroups::detect(&host.mountinfo, &host.cgroups).map_err(|error| problems::cgroups(&error))?;
        let storage = Storage::new(
            &host,
            &kubelet_root,
            &effects,
            Arc::new(NoCluster),
            Arc::clone(&journal),
        );
        let running = Arc::new(Running::default());
        let terminating = Arc::clone(&running);
        let has_reporter = self.reporter.is_some();
        let context = Context {
            api: self.reporter.unwrap_or_else(|| Arc::new(NoApi)),
            journal,
            events: self.events,
            gate: self.gate,
            terminating: Arc::new(move || ready(terminating.views()).boxed()),
            node: LocalNode {
                cri,
                runtime_name: runtime.name,
                clock: host.clock,
                effects,
                cgroups,
                cgroup_root: self.cgroup_root,
                storage: Arc::new(storage),
                pod_logs_dir: self.pod_logs_dir,
                reads: Threads::with_slots(MAX_READS),
            },
            stop_throttle: StopThrottle::new(host.processors),
            cleanup_throttle: CleanupThrottle::default(),
            large_objects: large_object::permits(),
            pod_reads: PodReads::default(),
            driver_hold: self.driver_hold,
            stopping: CancellationToken::new(),
        };
        Ok(Engine {
            context: Arc::new(context),
            has_reporter,
            running,
            priority_gate: PriorityGate::default(),
            _lock: lock,
            _gate_poll: AbortOnDropHandle::new(tokio::spawn(poll)),
        })
    }
}
