//! The half that takes pods down. It knows the outside only by [`Host`] and [`Outside`].

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
    agent::{node_volumes::NodeVolumes, pod_api::ClusterPods},
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
        cri::{Cri, PodUids},
        effects::Effects,
        host::{Host, detect_cgroup_driver, same_mount_namespace},
        identity::Identity,
        lock::{LockError, PodsLock},
        runtime::{self, RuntimeReport},
        systemd::Systemd,
        threads::Threads,
    },
    ops::{admin::PodsAdmin, service},
    outside::Outside,
    tasks::{restarted, spawn},
    teardown::{boundary::Terminating, context::Context, volumes::storage::Storage},
    watch::{PodSource, Relist, RuntimePods, WatchReport},
    workers::{PodWorkers, Questions, WorkersHandle, traces::named_pods},
};

/// Changes that may wait while the map is busy; a longer queue would only hide that it is.
const CHANGES: usize = 64;
/// For events that are not told yet when the agent stops.
const LAST_EVENTS: Duration = Duration::from_secs(1);
/// How long a kubelet has to start that nobody stands by for.
const HANDED_BACK: Duration = Duration::from_secs(45);

/// Ready to be run.
pub struct PodAgent {
    host: Host,
    outside: Outside,
    settings: PodSettings,
    node_name: String,
    dry_run: bool,
    /// Only one agent may touch this node's pods; one that touches nothing is no other hand.
    _lock: Option<PodsLock>,
    journal: Journal,
    guard: Guard,
    effects: Effects,
    counters: Arc<Counters>,
    runtime_report: watch::Sender<RuntimeReport>,
    watch_report: watch::Sender<WatchReport>,
    house_report: watch::Sender<LeftoverReport>,
    /// Where the agent stands by for a kubelet.
    turn_report: Option<watch::Sender<RoleReport>>,
    handle: WorkersHandle,
    questions: Questions,
    api: Arc<OnceLock<ApiClient>>,
    kubelet: AbortOnDropHandle<()>,
}

// === impl PodAgent ===

impl PodAgent {
    /// Takes the lock, opens the journal and looks for a kubelet.
    pub async fn new(
        host: Host,
        outside: Outside,
        settings: PodSettings,
        node_name: &str,
        state_dir: &Path,
        dry_run: bool,
    ) -> Result<Self, Problem> {
        let lock = if dry_run {
            None
        } else {
            Some(lock(settings.kubelet_root.pods(), &host.proc)?)
        };
        let machine = Identity {
            boot_id: Some(host.clock.boot_id().to_owned()),
            ..Identity::read(&host.root)
        };
        let journal = if dry_run {
            Journal::forgetful()
        } else {
            open_journal(state_dir, &machine, &outside)?
        };
        let expected_kubelet_settings = settings.expected_kubelet_settings(node_name);
        tracing::info!(
            kubeconfig = %expected_kubelet_settings.kubeconfig.display(),
            kubelet_config = ?expected_kubelet_settings.kubelet_config,
            kubelet_config_dir = ?expected_kubelet_settings.kubelet_config_dir,
            kubelet_root = %expected_kubelet_settings.kubelet_root.display(),
            cri_endpoint = %settings.cri_endpoint,
            learned = settings.started.is_some(),
            "Settings are complete"
        );
        let guard = Guard::new(machine, journal.clone(), host.proc.clone())
            .with_blocking(outside.blocking)
            .with_expected_settings(expected_kubelet_settings);
        let ours = settings.ours();
        guard.probe(&ours).await;
        if settings.takeover.is_some() {
            guard.set_role(Some("it is not known yet whether the kubelet lives".to_owned()), false);
        }
        let (handle, questions) = WorkersHandle::new();
        Ok(Self {
            host,
            node_name: node_name.to_owned(),
            dry_run,
            _lock: lock,
            journal,
            effects: guard
                .effects(dry_run)
                .with_threads(Threads::default().with_blocking(outside.blocking))
                .with_unmount_backend(outside.unmounts.clone())
                .with_force_unmount(settings.force_unmount),
            outside,
            counters: Arc::new(Counters::default()),
            runtime_report: watch::Sender::new(RuntimeReport::default()),
            watch_report: watch::Sender::new(WatchReport::default()),
            house_report: watch::Sender::new(LeftoverReport::default()),
            turn_report: settings.takeover.map(|_| watch::Sender::new(RoleReport::default())),
            handle,
            questions,
            api: Arc::default(),
            kubelet: spawn(restarted("kubelet probe", {
                let guard = guard.clone();
                move || guard.clone().watch_for_kubelet(ours.clone())
            })),
            guard,
            settings,
        })
    }

    /// What questions about pods are answered from.
    pub fn answers(&self) -> PodsAdmin {
        PodsAdmin {
            runtime: self.runtime_report.subscribe(),
            guard: self.guard.clone(),
            watch: self.watch_report.subscribe(),
            house: self.house_report.subscribe(),
            turn: self.turn_report.as_ref().map(watch::Sender::subscribe),
            hands_back_for: self
                .settings
                .takeover
                .map_or(HANDED_BACK, |takeover| takeover.take_over_after),
            workers: self.handle.clone(),
            journal: self.journal.clone(),
            counters: Arc::clone(&self.counters),
            api: Arc::clone(&self.api),
        }
    }

    /// Takes pods down until it is told to stop.
    pub async fn run(
        self,
        shutdown_timeout: Duration,
        stop: &mut Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Problem> {
        let Self {
            host,
            outside,
            settings,
            node_name,
            dry_run,
            _lock,
            journal,
            guard,
            effects,
            counters,
            runtime_report,
            watch_report,
            house_report,
            turn_report,
            handle,
            questions,
            api: told,
            kubelet,
        } = self;
        let PodSettings {
            kube,
            kubeconfig,
            kubelet_config: _,
            kubelet_config_dir: _,
            started: _,
            cri_endpoint,
            kubelet_root,
            cgroup_driver,
            kubelet_cgroup_driver,
            cgroup_root,
            pod_logs_dir,
            healthz,
            driver_hold,
            force_unmount: _,
            takeover,
        } = settings;
        let Outside {
            dial,
            runtime,
            blocking,
            disk: _,
            unmounts: _,
        } = outside;
        let listens = runtime.is_none();
        let cri = match runtime {
            Some(runtime) => Cri::with_service(runtime, effects.clone()),
            None => Cri::new(&cri_endpoint, effects.clone()),
        };
        let version = tokio::select! {
            biased;
            () = stop.as_mut() => return Ok(()),
            version = runtime::wait_until_ready(&cri, &cri_endpoint, &runtime_report) => version.map_err(|error| {
                problems::not_a_runtime(&cri_endpoint, &error)
            })?,
        };
        let asking = spawn(restarted("runtime probe", {
            let (cri, endpoint) = (cri.clone(), cri_endpoint.clone());
            move || runtime::monitor(cri.clone(), endpoint.clone(), runtime_report.clone())
        }));
        if listens {
            tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                same = same_mount_namespace(&host.proc, &cri_endpoint) => same?,
            }
        }
        let cgroups = Cgroups::detect(&host.mountinfo, &host.cgroups).map_err(|error| problems::cgroups(&error))?;
        // For people: what is there is found under the names of either.
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

        let api = ApiClient::new(
            &kube,
            kubeconfig,
            effects.clone(),
            Some(guard.proof(&node_name)),
            dial,
            &node_name,
        )
        .map_err(|error| problems::api_client("--kubeconfig", &error))?;
        // Once, since this is done once.
        told.set(api.clone()).ok();
        let lookout = takeover.zip(turn_report).map(|(takeover, report)| {
            let TakeoverSettings {
                take_over_after,
                fences,
            } = takeover;
            let monitor = KubeletMonitor {
                guard: guard.clone(),
                journal: journal.clone(),
                api: api.clone(),
                healthz,
                take_over_after,
                clock: host.clock.clone(),
                fence: fences.then(Systemd::of_host),
                report,
            };
            spawn(restarted("kubelet monitor", move || monitor.clone().run()))
        });
        let (changes_in, changes) = mpsc::channel(CHANGES);
        let leftovers = changes_in.downgrade();
        let (sighted, runtime_pods) = watch::channel(Arc::new(RuntimePods::none()));
        let (source, roll) = PodSource::new(
            api.clone(),
            guard.clone(),
            journal.clone(),
            Arc::clone(&counters),
            runtime_pods.clone(),
            changes_in,
            watch_report,
        );
        let known: PodUids = {
            let reads = Threads::with_slots(1).with_blocking(blocking);
            let (root, cgroups, cgroup_root) = (kubelet_root.clone(), cgroups.clone(), cgroup_root.clone());
            let journal = journal.clone();
            Arc::new(move || {
                let (reads, root, cgroups) = (reads.clone(), root.clone(), cgroups.clone());
                let (cgroup_root, journal) = (cgroup_root.clone(), journal.clone());
                let look = async move {
                    let look = reads.run_blocking(move || named_pods(&root, &cgroups, &cgroup_root, &journal));
                    look.await.unwrap_or_default()
                };
                look.boxed()
            })
        };
        let relist = Relist::new(cri.clone(), sighted, known);
        let (events, sender) = Events::new(bring_events(api.clone()), &node_name, Arc::clone(&counters));
        let cluster = NodeVolumes {
            api: api.clone(),
            guard: guard.clone(),
            turn: Arc::default(),
        };
        let storage = Storage::new(&host, &kubelet_root, &effects, Arc::new(cluster));
        let pod_api = ClusterPods {
            api,
            guard: guard.clone(),
        };
        let asked = handle.clone();
        let terminating: Terminating = Arc::new(move || {
            let asked = asked.clone();
            async move { asked.terminating().await.unwrap_or_default() }.boxed()
        });
        let context = Arc::new(Context {
            api: Arc::new(pod_api),
            journal: Arc::new(journal.clone()),
            events: Arc::new(events.with_clock(host.clock.wall().clone())),
            gate: Arc::new(guard.clone()),
            terminating,
            cri,
            runtime_name: version.name.clone(),
            clock: host.clock,
            effects,
            cgroups,
            cgroup_root,
            kubelet_root: kubelet_root.clone(),
            pod_logs_dir,
            storage: Arc::new(storage),
            reads: Threads::with_slots(8).with_blocking(blocking),
            cleanup_throttle: CleanupThrottle::default(),
            driver_hold,
            stopping: CancellationToken::new(),
        });
        let (housed, calls) = (Arc::clone(&context), roll);
        let (guarded, remembered, counted) = (guard.clone(), journal.clone(), Arc::clone(&counters));
        let housekeeping = move || {
            let (context, calls, workers) = (Arc::clone(&housed), calls.clone(), handle.clone());
            Housekeeping::new(
                context,
                (remembered.clone(), Arc::clone(&counted)),
                guarded.clone(),
                calls,
                workers,
                leftovers.clone(),
                house_report.clone(),
            )
            .run()
        };
        let workers = PodWorkers::new(
            context,
            guard,
            (journal.clone(), counters),
            changes,
            runtime_pods,
            questions,
        );
        tracing::info!(
            node = node_name,
            runtime = version.name,
            runtime_version = version.version,
            cgroup_driver = %driver,
            dry_run,
            "Agent is running"
        );
        // Its end is that of the workers.
        let source = spawn(source.run());
        let relist = spawn(restarted("relist", move || relist.clone().run()));
        let housekeeping = spawn(restarted("housekeeping", housekeeping));
        let mut sender = spawn(sender);
        let mut workers = spawn(workers.run(shutdown_timeout));

        let broken = tokio::select! {
            biased;
            () = stop.as_mut() => {
                service::stopping();
                tracing::info!(timeout = ?shutdown_timeout, "Told to stop; pods that are being taken down may come to an end");
                None
            }
            // By a panic, or because the watch ended by one. Whoever started the agent shall start it again.
            ended = &mut workers => Some(Problem {
                kind: ProblemKind::Internal,
                what: format!("the map of workers has ended: {ended:?}"),
                remedy: "start the agent again, and report this with its log".to_owned(),
            }),
        };
        source.abort();
        housekeeping.abort();
        if !workers.is_finished()
            && timeout(shutdown_timeout + Duration::from_secs(1), &mut workers)
                .await
                .is_err()
        {
            tracing::error!("The map of workers does not end");
        }
        drop((asking, kubelet, lookout, relist, housekeeping));
        // An API that does not answer is not waited for any more. Nothing depends on what it is told here.
        timeout(LAST_EVENTS, &mut sender).await.ok();
        if let Err(error) = journal.durable().await {
            tracing::error!(%error, "Journal is not on the disk");
        }
        broken.map_or(Ok(()), Err)
    }
}

fn bring_events(api: ApiClient) -> events::SendEvent {
    Arc::new(move |event| {
        let api = api.clone();
        Box::pin(async move { api.record(event).await })
    })
}

fn lock(pods: &Path, proc: &Path) -> Result<PodsLock, Problem> {
    let problem = |error: LockError| problems::node_lock(&error, matches!(error, LockError::Taken { .. }));
    PodsLock::acquire(pods, proc).map_err(problem)
}

fn open_journal(state_dir: &Path, machine: &Identity, outside: &Outside) -> Result<Journal, Problem> {
    if let Some(disk) = &outside.disk {
        return Ok(Journal::open_on(disk.clone(), outside.blocking, machine));
    }
    Journal::open(state_dir, machine).map_err(|error| problems::journal(state_dir, &error, error.is_in_use()))
}
