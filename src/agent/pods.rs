//! Runs the teardown of this node's pods. All access to the outside is in [`Host`] and [`Outside`], so that tests can replace it.

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    agent::{node_condition::NodeConditionReporter, node_volumes::NodeVolumes, pod_api::ClusterPods},
    api::ApiClient,
    cleanup_throttle::CleanupThrottle,
    config::{PodSettings, TakeoverSettings},
    counters::Counters,
    events::{self, Events},
    handover::{guard::Guard, monitor::KubeletMonitor, report::RoleReport},
    housekeeping::{Housekeeping, LeftoverReport},
    journal::Journal,
    model::{
        problem::{Problem, ProblemKind},
        problems,
    },
    node::{
        cgroups::Cgroups,
        cri::{CallDurations, Cri, PodUids},
        effects::Effects,
        host::{Host, PROC, detect_cgroup_driver, same_mount_namespace},
        identity::Identity,
        kubelet_unit::on_this_node,
        lock::{DirLock, LockError},
        process_events::KernelEvents,
        runtime::{self, RuntimeReport},
        systemd::Systemd,
        threads::Threads,
    },
    observe::Observer,
    ops::{admin::PodsAdmin, service},
    otlp::{self, OtlpCollector},
    outside::Outside,
    tasks::{finish_or_abort, run_with_restarts, spawn},
    teardown::{
        boundary::Terminating,
        context::{Context, LocalNode},
        large_object,
        pod_reads::PodReads,
        stop_throttle::StopThrottle,
        volumes::storage::Storage,
    },
    watch::{PodSource, Relist, RuntimePods, WatchReport},
    workers::{PodWorkers, RequestReceiver, WorkersHandle, artifacts::named_pods},
};

/// Maximum number of pod changes that wait for the workers.
const MAX_CHANGES: usize = 64;
/// Maximum time to send the last events when the agent stops.
const EVENT_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to send the last traces when the agent stops.
const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a handover is valid without a kubelet, with `--mode always`.
const DEFAULT_HANDOVER_VALIDITY: Duration = Duration::from_secs(45);

/// The teardown of this node's pods, before its tasks start.
pub struct PodAgent {
    host: Host,
    outside: Outside,
    settings: PodSettings,
    node_name: String,
    /// The exclusive lock on this node's pods.
    _lock: DirLock,
    journal: Journal,
    guard: Guard,
    effects: Effects,
    counters: Arc<Counters>,
    runtime_calls: Arc<CallDurations>,
    runtime_report: watch::Sender<RuntimeReport>,
    watch_report: watch::Sender<WatchReport>,
    leftover_report: watch::Sender<LeftoverReport>,
    /// `None` without `--mode auto`.
    role_report: Option<watch::Sender<RoleReport>>,
    handle: WorkersHandle,
    requests: RequestReceiver,
    api: Arc<OnceLock<ApiClient>>,
    reader: Arc<OnceLock<Arc<Context>>>,
    kubelet: AbortOnDropHandle<()>,
    pause: AbortOnDropHandle<()>,
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
            _lock: lock,
            journal,
            effects: guard
                .effects()
                .with_threads(Threads::default().with_blocking(outside.blocking))
                .with_unmount_backend(outside.unmounts.clone())
                .with_force_unmount(settings.force_unmount),
            outside,
            counters: Arc::default(),
            runtime_calls: Arc::default(),
            runtime_report: watch::Sender::new(RuntimeReport::default()),
            watch_report: watch::Sender::new(WatchReport::default()),
            leftover_report: watch::Sender::new(LeftoverReport::default()),
            role_report: settings
                .takeover
                .map(|_| watch::Sender::new(RoleReport::before_first_probe(settings.only_observes))),
            handle,
            requests,
            api: Arc::default(),
            reader: Arc::default(),
            kubelet: spawn(run_with_restarts("kubelet probe", {
                let guard = guard.clone();
                move || guard.clone().watch_for_kubelet(local_kubelet.clone())
            })),
            pause: spawn(run_with_restarts("pause timer", {
                let guard = guard.clone();
                move || guard.clone().end_expired_pauses(clock.clone())
            })),
            guard,
            settings,
        })
    }

    /// The state that the admin socket serves.
    pub fn admin(&self) -> PodsAdmin {
        PodsAdmin {
            runtime: self.runtime_report.subscribe(),
            guard: self.guard.clone(),
            clock: self.host.clock.clone(),
            watch: self.watch_report.subscribe(),
            leftovers: self.leftover_report.subscribe(),
            role: self.role_report.as_ref().map(watch::Sender::subscribe),
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
        let Self {
            host,
            outside,
            settings,
            node_name,
            _lock,
            journal,
            guard,
            effects,
            counters,
            runtime_calls,
            runtime_report,
            watch_report,
            leftover_report,
            role_report,
            handle,
            requests,
            api: api_slot,
            reader,
            kubelet,
            pause,
        } = self;
        let PodSettings {
            kube,
            kubeconfig,
            kubelet_config: _,
            kubelet_config_dir: _,
            kubelet_start: _,
            cri_endpoint,
            kubelet_root,
            cgroup_driver,
            kubelet_cgroup_driver,
            cgroup_root,
            pod_logs_dir,
            healthz,
            driver_hold,
            force_unmount: _,
            reports_node_condition,
            takeover,
            only_observes,
        } = settings;
        let Outside {
            dial,
            runtime,
            blocking,
            disk: _,
            kubelet_unit,
            unmounts: _,
        } = outside;
        let has_socket = runtime.is_none();
        let cri = match runtime {
            Some(runtime) => Cri::with_service(runtime, effects.clone()),
            None => Cri::new(&cri_endpoint, effects.clone()),
        }
        .with_durations(runtime_calls);
        let version = tokio::select! {
            biased;
            () = stop.as_mut() => return Ok(()),
            version = runtime::wait_until_ready(&cri, &cri_endpoint, &runtime_report) => version.map_err(|error| {
                problems::not_a_runtime(&cri_endpoint, &error)
            })?,
        };
        let runtime_probe = spawn(run_with_restarts("runtime probe", {
            let (cri, endpoint) = (cri.clone(), cri_endpoint.clone());
            move || runtime::monitor(cri.clone(), endpoint.clone(), runtime_report.clone())
        }));
        if has_socket {
            tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                same = same_mount_namespace(&host.proc, &cri_endpoint) => same?,
            }
        }
        let cgroups = Cgroups::detect(&host.mountinfo, &host.cgroups).map_err(|error| problems::cgroups(&error))?;
        // Only for the log: existing cgroups are found under the names of both drivers.
        let driver = detect_cgroup_driver(
            cgroup_driver,
            &cri,
            kubelet_cgroup_driver.as_deref(),
            &cgroups,
            &cgroup_root,
        )
        .await;
        let cgroups = match cgroup_driver {
            None => cgroups,
            Some(driver) => cgroups.with_driver(driver),
        };

        let kubelet_kubeconfig = kubeconfig.clone();
        let api = ApiClient::new(
            &kube,
            kubeconfig,
            effects.clone(),
            Some(guard.proof(&node_name)),
            dial,
            &node_name,
        )
        .map_err(|error| problems::api_client("--kubeconfig", &error))?;
        api_slot.set(api.clone()).ok();
        let reporter = reports_node_condition.then(|| {
            let api = api.clone().with_effects(guard.node_effects());
            // Events about pods wait while the kubelet works; these do not.
            let (events, sender) = Events::new(send_events(api.clone()), &node_name, Arc::clone(&counters));
            let reporter = NodeConditionReporter {
                api,
                guard: guard.clone(),
                events: events.with_clock(host.clock.wall().clone()),
                role: role_report.as_ref().map(watch::Sender::subscribe),
                wall: host.clock.wall().clone(),
            };
            reporter.start(sender)
        });
        let kubelet_monitor = takeover.zip(role_report).map(|(takeover, report)| {
            let TakeoverSettings {
                take_over_after,
                fences_kubelet,
            } = takeover;
            let monitor = KubeletMonitor {
                guard: guard.clone(),
                journal: journal.clone(),
                kubeconfig: kubelet_kubeconfig,
                reads: Threads::with_slots(1).with_blocking(blocking),
                api: api.clone(),
                healthz,
                take_over_after,
                clock: host.clock.clone(),
                fence: fences_kubelet.then(Systemd::of_host),
                // systemd knows the processes of this node, as a test's directory does not have.
                read_unit: kubelet_unit.or_else(|| (host.proc == Path::new(PROC)).then(|| on_this_node(&host.proc))),
                only_observes,
                report,
            };
            spawn(run_with_restarts("kubelet monitor", move || monitor.clone().run()))
        });
        let (changes_in, changes) = mpsc::channel(MAX_CHANGES);
        let leftovers = changes_in.downgrade();
        let (runtime_pods_sender, runtime_pods) = watch::channel(Arc::new(RuntimePods::none()));
        let (source, list) = PodSource::new(
            api.clone(),
            guard.clone(),
            journal.clone(),
            Arc::clone(&counters),
            runtime_pods.clone(),
            changes_in,
            watch_report,
        );
        let known_pods: PodUids = {
            let reads = Threads::with_slots(1).with_blocking(blocking);
            let (root, cgroups, cgroup_root) = (kubelet_root.clone(), cgroups.clone(), cgroup_root.clone());
            let journal = journal.clone();
            Arc::new(move || {
                let (reads, root, cgroups) = (reads.clone(), root.clone(), cgroups.clone());
                let (cgroup_root, journal) = (cgroup_root.clone(), journal.clone());
                let uids = async move {
                    let uids = reads.run_blocking(move || named_pods(&root, &cgroups, &cgroup_root, &journal));
                    uids.await.unwrap_or_default()
                };
                uids.boxed()
            })
        };
        let relist = (!only_observes).then(|| Relist::new(cri.clone(), runtime_pods_sender, known_pods));
        let (events, sender) = Events::new(send_events(api.clone()), &node_name, Arc::clone(&counters));
        let cluster = NodeVolumes {
            api: api.clone(),
            guard: guard.clone(),
            update_lock: Arc::default(),
        };
        let storage = Storage::new(
            &host,
            &kubelet_root,
            &effects,
            Arc::new(cluster),
            Arc::new(journal.clone()),
        );
        let pod_api = ClusterPods {
            api,
            guard: guard.clone(),
        };
        let workers_handle = handle.clone();
        let terminating: Terminating = Arc::new(move || {
            let workers_handle = workers_handle.clone();
            async move { workers_handle.terminating().await.unwrap_or_default() }.boxed()
        });
        let context = Arc::new(Context {
            api: Arc::new(pod_api),
            journal: Arc::new(journal.clone()),
            events: Arc::new(events.with_clock(host.clock.wall().clone())),
            gate: Arc::new(guard.clone()),
            terminating,
            node: LocalNode {
                cri,
                runtime_name: version.name.clone(),
                clock: host.clock,
                effects,
                cgroups,
                cgroup_root,
                pod_logs_dir,
                storage: Arc::new(storage),
                reads: Threads::with_slots(8).with_blocking(blocking),
            },
            stop_throttle: StopThrottle::new(host.processors),
            cleanup_throttle: CleanupThrottle::default(),
            large_objects: large_object::permits(),
            pod_reads: PodReads::default(),
            driver_hold,
            stopping: CancellationToken::new(),
        });
        let for_reads = Arc::new(context.read_only());
        reader.set(Arc::clone(&for_reads)).ok();
        let housekeeping = (!only_observes).then(|| {
            let (context, guard) = (Arc::clone(&context), guard.clone());
            let (journal, counters) = (journal.clone(), Arc::clone(&counters));
            move || {
                Housekeeping::new(
                    Arc::clone(&context),
                    (journal.clone(), Arc::clone(&counters)),
                    guard.clone(),
                    list.clone(),
                    handle.clone(),
                    leftovers.clone(),
                    leftover_report.clone(),
                )
                .run()
            }
        });
        let (exporter, trace_sender) = collector_of_traces
            .map(|collector| otlp::exporter(collector, &node_name, Arc::clone(&counters)))
            .unzip();
        let trace_sender = trace_sender.map(|sender| spawn(sender.run()));
        // An observer has no workers, and its context refuses every write.
        let work = if only_observes {
            drop((context, exporter));
            Observer::new(for_reads, (journal.clone(), counters), changes, requests)
                .run()
                .boxed()
        } else {
            let kept = (journal.clone(), counters);
            let workers = PodWorkers::new(context, guard, kept, changes, runtime_pods, requests);
            workers.with_exporter(exporter).run(shutdown_timeout).boxed()
        };
        tracing::info!(
            node = node_name,
            runtime = version.name,
            runtime_version = version.version,
            cgroup_driver = %driver,
            only_observes,
            "Agent is running"
        );
        // The workers exit when the source does.
        let source = spawn(source.run());
        let relist = relist.map(|relist| spawn(run_with_restarts("relist", move || relist.clone().run())));
        let housekeeping = housekeeping.map(|task| spawn(run_with_restarts("housekeeping", task)));
        let sender = spawn(sender);
        let mut workers = spawn(work);

        let problem = tokio::select! {
            biased;
            () = stop.as_mut() => {
                service::report_stopping();
                tracing::info!(timeout = ?shutdown_timeout, "Stopping; terminating pods have until the timeout to finish");
                None
            }
            // A panic in the workers or in the watch: the service manager has to restart the agent.
            result = &mut workers => Some(Problem {
                kind: ProblemKind::Internal,
                what: format!("the task of the pod workers has exited: {result:?}"),
                remedy: "start the agent again, and report this with its log".to_owned(),
            }),
        };
        source.abort();
        if let Some(housekeeping) = &housekeeping {
            housekeeping.abort();
        }
        if !workers.is_finished()
            && timeout(shutdown_timeout + Duration::from_secs(1), &mut workers)
                .await
                .is_err()
        {
            tracing::error!("Pod workers do not exit");
        }
        drop((runtime_probe, kubelet, pause, kubelet_monitor, relist, housekeeping));
        // Events are best effort, and so is the Node's condition.
        let report_stop = async {
            if let Some(reporter) = reporter {
                reporter.stop().await;
            }
        };
        tokio::join!(report_stop, finish_or_abort(sender, EVENT_FLUSH_TIMEOUT));
        // So are traces. The workers have dropped the exporter.
        if let Some(sender) = trace_sender {
            finish_or_abort(sender, TRACE_FLUSH_TIMEOUT).await;
        }
        if let Err(error) = journal.durable().await {
            tracing::error!(%error, "Cannot flush the journal");
        }
        problem.map_or(Ok(()), Err)
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
