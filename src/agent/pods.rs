//! Runs the teardown of this node's pods. All access to the outside is in [`Host`] and [`Outside`], so that tests can replace it.

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    api::ApiClient,
    config::PodSettings,
    counters::Counters,
    events::{self, Events},
    handover::{guard::Guard, report::RoleReport},
    housekeeping::{Housekeeping, LeftoverReport},
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
        process_events::KernelEvents,
        runtime::RuntimeReport,
        threads::Threads,
    },
    observe::Observer,
    ops::{admin::PodsAdmin, service},
    otlp::{self, OtlpCollector},
    outside::Outside,
    tasks::{run_with_restarts, spawn},
    teardown::context::Context,
    watch::{PodSource, Relist, RuntimePods, WatchReport},
    workers::{PodWorkers, RequestReceiver, WorkersHandle},
};

mod local_runtime;
mod parts;
mod running;

use local_runtime::LocalRuntime;
use running::Tasks;

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
    runtime_calls: Arc<CallDurations>,
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
        let machine = Identity {
            boot_id: Some(host.clock.boot_id().to_owned()),
            ..Identity::read(&host.root)
        };
        let journal = open_journal(state_dir, &machine, &outside)?;
        let expected_kubelet_settings = settings.expected_kubelet_settings(node_name);
        tracing::info!(
            kubeconfig = %expected_kubelet_settings.kubeconfig.display(),
            kubelet_config = expected_kubelet_settings.kubelet_config.as_deref().map(|it| tracing::field::display(it.display())),
            kubelet_config_dir = expected_kubelet_settings.kubelet_config_dir.as_deref().map(|it| tracing::field::display(it.display())),
            kubelet_root = %expected_kubelet_settings.kubelet_root.display(),
            cri_endpoint = %settings.cri_endpoint,
            learned = settings.kubelet_start.is_some(),
            "Settings are complete"
        );
        let mut guard = Guard::new(machine, journal.clone(), host.proc.clone())
            .with_blocking(outside.blocking)
            .with_only_observing(settings.only_observes)
            .with_expected_settings(expected_kubelet_settings);
        // The kernel's events are about the processes of this node, as a test's directory is not.
        if host.proc == Path::new(PROC) {
            guard = guard.with_process_events(Arc::new(KernelEvents));
        }
        let local_kubelet = settings.local_kubelet();
        guard.probe(&local_kubelet).await;
        if settings.takeover.is_some() {
            guard.set_role(
                Some("it is not known yet whether the kubelet is alive".to_owned()),
                None,
            );
        }
        let (handle, requests) = WorkersHandle::new();
        let clock = host.clock.clone();
        Ok(Self {
            host,
            node_name: node_name.to_owned(),
            lock,
            journal,
            effects: guard
                .effects()
                .with_threads(Threads::default().with_blocking(outside.blocking))
                .with_unmount_backend(outside.unmounts.clone())
                .with_force_unmount(settings.force_unmount),
            outside,
            counters: Arc::default(),
            runtime_calls: Arc::default(),
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
            tasks: vec![
                spawn(run_with_restarts("kubelet probe", {
                    let guard = guard.clone();
                    move || guard.clone().watch_for_kubelet(local_kubelet.clone())
                })),
                spawn(run_with_restarts("pause timer", {
                    let guard = guard.clone();
                    move || guard.clone().end_expired_pauses(clock.clone())
                })),
            ],
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
            runtime_calls: Arc::clone(&self.runtime_calls),
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
        collector_of_traces: Option<OtlpCollector>,
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
        collector_of_traces: Option<OtlpCollector>,
    ) -> Result<(DirLock, Tasks), Problem> {
        let only_observes = self.settings.only_observes;
        let (version, driver) = (runtime.version.clone(), runtime.driver);
        let api = self.api_client()?;
        let reporter = self.settings.reports_node_condition.then(|| self.start_reporter(&api));
        let mut background = std::mem::take(&mut self.tasks);
        background.push(self.start_runtime_probe(&runtime.cri));
        background.extend(self.start_kubelet_monitor(&api));

        let (changes_in, changes) = mpsc::channel(MAX_CHANGES);
        let leftovers = changes_in.downgrade();
        let (runtime_pods_sender, runtime_pods) = watch::channel(Arc::new(RuntimePods::none()));
        let (source, snapshots) = PodSource::new(
            api.clone(),
            self.guard.clone(),
            self.journal.clone(),
            Arc::clone(&self.counters),
            runtime_pods.clone(),
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
        let kept = (self.journal.clone(), Arc::clone(&self.counters));
        // An observer has no workers, and its context refuses every write.
        let work = if only_observes {
            drop((context, exporter));
            Observer::new(for_reads, kept, changes, self.requests).run().boxed()
        } else {
            let known = self.known_pods(&context.node.cgroups);
            let relist = Relist::new(context.node.cri.clone(), runtime_pods_sender, known);
            background.push(spawn(run_with_restarts("relist", move || relist.clone().run())));
            let start = {
                let (context, guard, kept) = (Arc::clone(&context), self.guard.clone(), kept.clone());
                let (workers, report) = (self.handle.clone(), self.reports.leftovers.clone());
                move || {
                    let (context, guard, kept) = (Arc::clone(&context), guard.clone(), kept.clone());
                    let (snapshots, changes) = (snapshots.clone(), leftovers.clone());
                    Housekeeping::new(
                        context,
                        kept,
                        guard,
                        snapshots,
                        workers.clone(),
                        changes,
                        report.clone(),
                    )
                    .run()
                }
            };
            housekeeping = Some(spawn(run_with_restarts("housekeeping", start)));
            let workers = PodWorkers::new(context, self.guard, kept, changes, runtime_pods, self.requests);
            workers.with_exporter(exporter).run(shutdown_timeout).boxed()
        };
        tracing::info!(
            node = self.node_name,
            runtime = version.name,
            runtime_version = version.version,
            cgroup_driver = %driver,
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
