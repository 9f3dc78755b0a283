//! Runs the teardown of this node's pods. All access to the outside is in [`Host`] and [`Outside`], so that tests can replace it.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::FutureExt as _;
use opentelemetry_otlp::SpanExporter;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    api::ApiClient,
    clock::BootClock,
    config::PodSettings,
    counters::Counters,
    events::{self, Events},
    handover::{
        guard::{Guard, kubelet::KubeletSearch},
        report::RoleReport,
        role::Role,
    },
    housekeeping::{Housekeeping, HousekeepingParts, LeftoverReport},
    journal::Journal,
    model::{
        problem::{Problem, ProblemKind},
        problems,
    },
    node::{
        cri::CallDurations,
        effects::Effects,
        host::{Host, PROC},
        identity::Identity,
        lock::{DirLock, LockError},
        process_events::{KernelEvents, ProcessEvents},
        runtime::RuntimeReport,
        threads::Threads,
        unmounts::Unmounting,
    },
    observe::Observer,
    ops::{admin::PodsAdmin, service},
    otlp,
    outside::Outside,
    tasks::{run_with_restarts, spawn},
    teardown::context::Context,
    watch::{PodSource, WatchReport},
    workers::{PodWorkers, RequestReceiver, WorkersHandle},
};

mod parts;
mod running;

use running::{LocalRuntime, Tasks};

/// Maximum number of pod changes that wait for the workers.
const MAX_CHANGES: usize = 64;
/// How long a handover is valid without a kubelet, with `--mode always`.
const DEFAULT_HANDOVER_VALIDITY: Duration = Duration::from_secs(45);

/// The teardown of this node's pods, before it runs.
pub struct PodAgent {
    host: Host,
    outside: Outside,
    settings: PodSettings,
    node_name: String,
    /// The exclusive lock on this node's pods.
    lock: DirLock,
    journal: Journal,
    guard: Guard,
    effects: Effects,
    counters: Arc<Counters>,
    runtime_calls: CallDurations,
    reports: Reports,
    handle: WorkersHandle,
    requests: RequestReceiver,
    api: Arc<OnceLock<ApiClient>>,
    reader: Arc<OnceLock<Arc<Context>>>,
    /// The search for kubelets, and the end of pauses.
    tasks: Vec<AbortOnDropHandle<()>>,
}

/// Reports for the admin socket.
struct Reports {
    runtime: watch::Sender<RuntimeReport>,
    watch: watch::Sender<WatchReport>,
    leftovers: watch::Sender<LeftoverReport>,
    /// `None` without `--mode auto`.
    role: Option<watch::Sender<RoleReport>>,
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
        if settings.takeover.is_some() {
            guard.kubelet.set_role(Role::unknown(), None);
        }
        let (handle, requests) = WorkersHandle::new();
        Ok(Self {
            tasks: start_tasks_of_guard(&guard, &host.clock),
            host,
            node_name: node_name.to_owned(),
            lock,
            journal,
            effects: Effects::new(Arc::new(guard.clone()))
                .with_threads(Threads::default().with_blocking(outside.blocking))
                .with_unmounting(Unmounting {
                    backend: outside.unmounts.clone(),
                    force: settings.flags.force_unmount,
                    ..Unmounting::default()
                }),
            outside,
            counters: Arc::default(),
            runtime_calls: CallDurations::default(),
            reports: Reports {
                runtime: watch::Sender::default(),
                watch: watch::Sender::default(),
                leftovers: watch::Sender::default(),
                role: settings
                    .takeover
                    .map(|_| watch::Sender::new(RoleReport::before_first_probe(settings.only_observes))),
            },
            handle,
            requests,
            api: Arc::default(),
            reader: Arc::default(),
            guard,
            settings,
        })
    }

    /// The state that the admin socket serves.
    pub fn admin(&self) -> PodsAdmin {
        PodsAdmin {
            runtime: self.reports.runtime.subscribe(),
            guard: self.guard.clone(),
            clock: self.host.clock.clone(),
            watch: self.reports.watch.subscribe(),
            leftovers: self.reports.leftovers.subscribe(),
            role: self.reports.role.as_ref().map(watch::Sender::subscribe),
            handover_validity: self
                .settings
                .takeover
                .map_or(DEFAULT_HANDOVER_VALIDITY, |takeover| takeover.take_over_after),
            workers: self.handle.clone(),
            journal: self.journal.clone(),
            counters: Arc::clone(&self.counters),
            runtime_calls: self.runtime_calls.clone(),
            api: Arc::clone(&self.api),
            reader: Arc::clone(&self.reader),
        }
    }

    /// Takes pods down until `stop` completes.
    ///
    /// # Errors
    /// When the runtime or the node is unsuitable, or the pod workers exit.
    pub async fn run(
        self,
        shutdown_timeout: Duration,
        collector_of_traces: Option<SpanExporter>,
        stop: &mut Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Problem> {
        let runtime = tokio::select! {
            biased;
            () = stop.as_mut() => return Ok(()),
            runtime = self.local_runtime() => runtime?,
        };
        let journal = self.journal.clone();
        let (_lock, mut tasks) = self.start(runtime, shutdown_timeout, collector_of_traces)?;
        let problem = tokio::select! {
            biased;
            () = stop.as_mut() => {
                service::report_stopping();
                tracing::info!(timeout = ?shutdown_timeout, "Stopping; terminating pods have until the timeout to finish");
                None
            }
            // A panic in the workers or in the watch: the service manager has to restart the agent.
            result = &mut tasks.workers => Some(Problem {
                kind: ProblemKind::Internal,
                what: format!("the task of the pod workers has exited: {result:?}"),
                remedy: "start the agent again, and report this with its log".to_owned(),
            }),
        };
        tasks.stop(shutdown_timeout).await;
        if let Err(error) = journal.durable().await {
            tracing::error!(%error, "Cannot flush the journal");
        }
        problem.map_or(Ok(()), Err)
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
            self.guard.clone(),
            Arc::clone(&self.counters),
            changes_in,
            self.reports.watch.clone(),
        );
        let (events, event_sender) = Events::new(send_events(api.clone()), &self.node_name, Arc::clone(&self.counters));
        let context = Arc::new(self.context(api, runtime, events));
        let for_reads = Arc::new(context.read_only());
        self.reader.set(Arc::clone(&for_reads)).ok();
        let (exporter, trace_sender) = collector_of_traces
            .map(|collector| otlp::exporter(collector, &self.node_name, Arc::clone(&self.counters)))
            .unzip();
        let trace_sender = trace_sender.map(|sender| spawn(sender.run()));
        // The workers exit when the source does.
        let source = spawn(source.run());
        let mut housekeeping = None;
        // An observer has no workers, and its context refuses every write.
        let work = if only_observes {
            drop((context, exporter));
            Observer::new(for_reads, (self.journal, self.counters), changes, self.requests)
                .run()
                .boxed()
        } else {
            let parts = HousekeepingParts {
                context: Arc::clone(&context),
                counters: Arc::clone(&self.counters),
                guard: self.guard.clone(),
                snapshots,
                workers: self.handle.clone(),
                changes: leftovers,
                report: self.reports.leftovers.clone(),
            };
            let start = move || Housekeeping::new(parts.clone()).run();
            housekeeping = Some(spawn(run_with_restarts("housekeeping", start)));
            let workers = PodWorkers::new(context, self.guard, self.counters, changes, self.requests);
            workers.with_exporter(exporter).run(shutdown_timeout).boxed()
        };
        tracing::info!(
            node = self.node_name,
            runtime = version.name,
            runtime_version = version.version,
            only_observes,
            "Agent is running"
        );
        let tasks = Tasks {
            source,
            housekeeping,
            event_sender: spawn(event_sender),
            workers: spawn(work),
            background,
            reporter,
            trace_sender,
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

fn send_events(api: ApiClient) -> events::SendEvent {
    Arc::new(move |event| {
        let api = api.clone();
        Box::pin(async move { api.write_event(event).await })
    })
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
