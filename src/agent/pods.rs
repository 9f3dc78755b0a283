//! Runs the teardown of this node's pods. All access to the outside is in [`Host`] and [`Outside`], so that tests can replace it.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt as _;
use k8s_cri::v1::VersionResponse;
use opentelemetry_otlp::SpanExporter;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    clock::BootClock,
    config::PodSettings,
    handover::{
        guard::{Guard, kubelet::KubeletSearch},
        report::RoleReport,
        role::Role,
    },
    journal::Journal,
    model::{problem::Problem, problems},
    node::{
        cgroups::Cgroups,
        cri::{CallDurations, Cri},
        effects::Effects,
        host::{Host, PROC},
        identity::Identity,
        lock::{DirLock, LockError},
        process_events::{KernelEvents, ProcessEvents},
        threads::Threads,
        unmounts::Unmounting,
    },
    observe::Observer,
    ops::{admin::PodsAdmin, service},
    otlp,
    outside::Outside,
    tasks::{finish_or_abort, run_with_restarts, spawn},
    watch::PodSource,
    workers::{PodWorkers, Request, WorkersHandle},
};

mod parts;

/// Maximum number of pod changes that wait for the workers.
const MAX_CHANGES: usize = 64;
/// How long a handover is valid without a kubelet, with `--mode always`.
const DEFAULT_HANDOVER_VALIDITY: Duration = Duration::from_secs(45);
/// Maximum time to send the last events when the agent stops.
const EVENT_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to send the last traces when the agent stops.
const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The teardown of this node's pods, before it runs.
pub struct PodAgent {
    host: Host,
    outside: Outside,
    settings: PodSettings,
    node_name: String,
    /// The exclusive lock on this node's pods.
    lock: DirLock,
    effects: Effects,
    /// The state that the admin socket serves, too.
    pub shared: PodsAdmin,
    requests: mpsc::Receiver<Request>,
    /// The search for kubelets, and the end of pauses.
    tasks: Vec<AbortOnDropHandle<()>>,
}

/// The container runtime of this node, and its cgroups.
struct LocalRuntime {
    cri: Cri,
    version: VersionResponse,
    cgroups: Cgroups,
}

/// The tasks of a running agent.
struct Tasks {
    /// The watch of the pods. The workers exit when it does.
    source: AbortOnDropHandle<()>,
    /// `None` if the agent only observes.
    housekeeping: Option<AbortOnDropHandle<()>>,
    event_sender: AbortOnDropHandle<()>,
    /// The workers of the pods, or the observer.
    workers: AbortOnDropHandle<()>,
    /// Tasks that end at any moment.
    background: Vec<AbortOnDropHandle<()>>,
    /// Reports the role in the cluster until the token is cancelled.
    reporter: Option<(CancellationToken, AbortOnDropHandle<()>)>,
    trace_sender: Option<AbortOnDropHandle<()>>,
}

// === impl PodAgent ===

impl PodAgent {
    /// Takes the lock, opens the journal and detects a kubelet.
    ///
    /// # Errors
    /// When another agent has the lock, or the journal cannot be used.
    pub async fn new(
        host: Host,
        outside: Outside,
        settings: PodSettings,
        node_name: &str,
        state_dir: &Path,
    ) -> Result<Self, Problem> {
        let lock = lock(settings.kubelet_root.pods(), &host.root)?;
        let machine = host.identity();
        let journal = open_journal(state_dir, &machine, &outside)?;
        let expected_kubelet_settings = settings.expected_kubelet_settings(node_name);
        log_settings(&settings);
        // The kernel's events are about the processes of this node, as a test's directory is not.
        let is_of_kernel = host.proc == Path::new(PROC);
        let search = KubeletSearch {
            proc: host.proc.as_path().into(),
            ours: settings.local_kubelet(),
            blocking: outside.blocking,
            events: is_of_kernel.then(|| Arc::new(KernelEvents) as Arc<dyn ProcessEvents>),
            expected: Some(Arc::new(expected_kubelet_settings)),
        };
        let guard = Guard::new(machine, journal.clone(), search, settings.only_observes);
        guard.kubelet.probe().await;
        if settings.take_over_after.is_some() {
            guard.kubelet.set_role(Role::unknown(), None);
        }
        let (workers, requests) = WorkersHandle::new();
        let role = RoleReport::before_first_probe(settings.only_observes);
        Ok(Self {
            tasks: start_tasks_of_guard(&guard, &host.clock),
            node_name: node_name.to_owned(),
            lock,
            effects: Effects::new(Arc::new(guard.clone()))
                .with_threads(Threads::default().with_blocking(outside.blocking))
                .with_unmounting(Unmounting {
                    backend: outside.unmounts.clone(),
                    force: settings.flags.force_unmount,
                    ..Unmounting::default()
                }),
            outside,
            shared: PodsAdmin {
                runtime: watch::Sender::default(),
                guard,
                clock: host.clock.clone(),
                watch: watch::Sender::default(),
                leftovers: watch::Sender::default(),
                role: settings.take_over_after.map(|_| watch::Sender::new(role)),
                handover_validity: settings.take_over_after.unwrap_or(DEFAULT_HANDOVER_VALIDITY),
                workers,
                journal,
                counters: Arc::default(),
                runtime_calls: CallDurations::default(),
                api: Arc::default(),
                reader: Arc::default(),
            },
            host,
            requests,
            settings,
        })
    }

    /// Takes pods down until `stop` completes.
    ///
    /// # Errors
    /// When the runtime or the node is unsuitable, or the pod workers exit.
    pub async fn run(
        self,
        shutdown_timeout: Duration,
        collector_of_traces: Option<SpanExporter>,
        stop: &mut Pin<&mut impl Future<Output = Result<(), Problem>>>,
    ) -> Result<(), Problem> {
        let runtime = tokio::select! {
            biased;
            stopped = stop.as_mut() => return stopped,
            runtime = self.local_runtime() => runtime?,
        };
        let journal = self.shared.journal.clone();
        let (_lock, mut tasks) = self.start(runtime, shutdown_timeout, collector_of_traces)?;
        let result = tokio::select! {
            biased;
            stopped = stop.as_mut() => {
                service::report_stopping();
                tracing::info!(timeout = ?shutdown_timeout, "Stopping; terminating pods have until the timeout to finish");
                stopped
            }
            // A panic in the workers or in the watch: the service manager has to restart the agent.
            result = &mut tasks.workers => {
                Err(Problem::internal(format!("the task of the pod workers has exited: {result:?}")))
            }
        };
        tasks.stop(shutdown_timeout).await;
        if let Err(error) = journal.durable().await {
            tracing::error!(%error, "Cannot flush the journal");
        }
        result
    }

    /// Starts all tasks. The lock is held until they have stopped.
    fn start(
        mut self,
        runtime: LocalRuntime,
        shutdown_timeout: Duration,
        collector_of_traces: Option<SpanExporter>,
    ) -> Result<(DirLock, Tasks), Problem> {
        let only_observes = self.settings.only_observes;
        let version = runtime.version.clone();
        let api = self.api_client()?;
        let reporter = self.settings.flags.node_condition.then(|| self.start_reporter(&api));
        let mut background = std::mem::take(&mut self.tasks);
        background.push(self.start_runtime_probe(&runtime.cri));
        background.extend(self.start_kubelet_monitor(&api));

        let (changes_in, changes) = mpsc::channel(MAX_CHANGES);
        let leftovers = changes_in.downgrade();
        let (source, snapshots) = PodSource::new(
            api.clone(),
            self.shared.guard.clone(),
            Arc::clone(&self.shared.counters),
            changes_in,
            self.shared.watch.clone(),
        );
        let (events, event_sender) = self.events(api.clone());
        let context = Arc::new(self.context(api, runtime, events));
        let for_reads = Arc::new(context.read_only());
        self.shared.reader.set(Arc::clone(&for_reads)).ok();
        let (exporter, trace_sender) = collector_of_traces
            .map(|collector| otlp::exporter(collector, &self.node_name, Arc::clone(&self.shared.counters)))
            .unzip();
        // An observer has no workers, and its context refuses every write.
        let (housekeeping, work) = if only_observes {
            let records = (self.shared.journal, self.shared.counters);
            let observer = Observer::new(for_reads, records, changes, self.requests);
            (None, observer.run().boxed())
        } else {
            let housekeeping = self.start_housekeeping(Arc::clone(&context), snapshots, leftovers);
            let PodsAdmin { guard, counters, .. } = self.shared;
            let workers = PodWorkers::new(context, guard, counters, exporter, (changes, self.requests));
            (Some(housekeeping), workers.run(shutdown_timeout).boxed())
        };
        tracing::info!(
            node = self.node_name,
            runtime = version.runtime_name,
            runtime_version = version.runtime_version,
            only_observes,
            "Agent is running"
        );
        let tasks = Tasks {
            source: spawn(source.run()),
            housekeeping,
            event_sender: spawn(event_sender),
            workers: spawn(work),
            background,
            reporter,
            trace_sender: trace_sender.map(|sender| spawn(sender.run())),
        };
        Ok((self.lock, tasks))
    }
}

fn log_settings(settings: &PodSettings) {
    let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    tracing::info!(
        kubeconfig = %settings.kubeconfig.display(),
        kubelet_config = shown(&settings.flags.kubelet_config),
        kubelet_config_dir = shown(&settings.flags.kubelet_config_dir),
        kubelet_root = %settings.kubelet_root.given().display(),
        cri_endpoint = %settings.cri_endpoint,
        learned = settings.flags.kubelet_start.is_some(),
        "Settings are complete"
    );
}

fn start_tasks_of_guard(guard: &Guard, clock: &BootClock) -> Vec<AbortOnDropHandle<()>> {
    let kubelet = Arc::clone(&guard.kubelet);
    let (guard, clock) = (guard.clone(), clock.clone());
    let probe = move || Arc::clone(&kubelet).watch();
    let end_pauses = move || guard.clone().end_expired_pauses(clock.clone());
    vec![
        spawn(run_with_restarts("kubelet probe", probe)),
        spawn(run_with_restarts("pause timer", end_pauses)),
    ]
}

fn lock(pods: &Path, root: &Path) -> Result<DirLock, Problem> {
    let problem = |error: LockError| problems::node_lock(&error, matches!(error, LockError::Taken { .. }));
    DirLock::acquire(pods, root).map_err(problem)
}

fn open_journal(state_dir: &Path, machine: &Identity, outside: &Outside) -> Result<Journal, Problem> {
    if let Some(disk) = &outside.disk {
        return Ok(Journal::open_simulated(disk.clone(), outside.blocking, machine));
    }
    Journal::open(state_dir, machine).map_err(|error| problems::journal(state_dir, &error, error.is_in_use()))
}

// === impl Tasks ===

impl Tasks {
    /// Stops all tasks; pods in progress have `shutdown_timeout`.
    pub async fn stop(mut self, shutdown_timeout: Duration) {
        self.source.abort();
        drop(self.housekeeping);
        if !self.workers.is_finished() {
            let exit = timeout(shutdown_timeout + Duration::from_secs(1), &mut self.workers);
            if exit.await.is_err() {
                tracing::error!("Pod workers do not exit");
            }
        }
        drop(self.background);
        // Events are best effort, and so is the Node's condition.
        let report_stop = async {
            if let Some((stop, reporter)) = self.reporter {
                stop.cancel();
                reporter.await.ok();
            }
        };
        tokio::join!(report_stop, finish_or_abort(self.event_sender, EVENT_FLUSH_TIMEOUT));
        // So are traces. The workers have dropped the exporter.
        if let Some(sender) = self.trace_sender {
            finish_or_abort(sender, TRACE_FLUSH_TIMEOUT).await;
        }
    }
}
