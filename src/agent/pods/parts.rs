//! The parts of the agent, each built from its settings.

use std::{path::Path, sync::Arc};

use futures::FutureExt as _;
use tokio::sync::{Mutex, mpsc};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{LocalRuntime, PodAgent};
use crate::{
    agent::{cluster::NodeCluster, node_condition::NodeConditionReporter},
    api::ApiClient,
    events::{Events, SendEvent},
    handover::{cluster::proof, monitor::KubeletMonitor},
    housekeeping::{Housekeeping, HousekeepingParts},
    model::{pod::PodView, problem::Problem, problems},
    node::{
        cgroups::Cgroups, cri::Cri, host::PROC, kubelet_unit::on_this_node, mount_namespace, runtime, systemd::Systemd,
        threads::Threads,
    },
    tasks::{run_with_restarts, spawn},
    teardown::{
        boundary::{PodApi, Terminating},
        context::{Context, LocalNode},
        limits::Limits,
        volumes::storage::Storage,
    },
    watch::SnapshotHandle,
};

/// Concurrent reads of the node for all workers.
const READS: usize = 8;

impl PodAgent {
    /// Waits until the runtime answers, and finds the cgroups.
    ///
    /// # Errors
    /// When the runtime is none, works in another mount namespace, or there are no usable cgroups.
    pub(super) async fn local_runtime(&self) -> Result<LocalRuntime, Problem> {
        let endpoint = &self.settings.cri_endpoint;
        let cri = match self.outside.runtime.clone() {
            Some(runtime) => Cri::with_service(runtime, self.effects.clone()),
            None => Cri::new(endpoint, self.effects.clone()),
        }
        .with_durations(self.shared.runtime_calls.clone());
        let version = runtime::wait_until_ready(&cri, endpoint, &self.shared.runtime).await;
        let version = version.map_err(|error| problems::not_a_runtime(endpoint, &error))?;
        if self.outside.runtime.is_none() {
            mount_namespace::wait_for_check(&self.host.proc, endpoint.path()).await?;
        }
        let cgroups = Cgroups::detect(&self.host.mountinfo, &self.host.cgroups);
        let cgroups = cgroups.map_err(|error| problems::cgroups(&error))?;
        Ok(LocalRuntime { cri, version, cgroups })
    }

    /// Starts to check, again and again, whether the runtime answers.
    pub(super) fn start_runtime_probe(&self, cri: &Cri) -> AbortOnDropHandle<()> {
        let (cri, endpoint) = (cri.clone(), self.settings.cri_endpoint.clone());
        let report = self.shared.runtime.clone();
        let monitor = move || runtime::monitor(cri.clone(), endpoint.clone(), report.clone());
        spawn(run_with_restarts("runtime probe", monitor))
    }

    /// The client of the API server. Every write needs the proof that the Node is this machine.
    pub(super) fn api_client(&self) -> Result<ApiClient, Problem> {
        let api = ApiClient::new(
            &self.settings.kube,
            self.settings.kubeconfig.clone(),
            self.effects.clone(),
            (&self.node_name, proof(&self.shared.guard, &self.node_name)),
            self.outside.dial.clone(),
        );
        let api = api.map_err(|error| problems::api_client("--kubeconfig", &error))?;
        self.shared.api.set(api.clone()).ok();
        Ok(api)
    }

    /// Starts to report the role as a condition of the Node.
    pub(super) fn start_reporter(&self, api: &ApiClient) -> (CancellationToken, AbortOnDropHandle<()>) {
        let api = api.clone().with_effects(self.shared.guard.node_effects());
        // Events about pods wait while the kubelet works; these do not.
        let (events, sender) = self.events(api.clone());
        let reporter = NodeConditionReporter {
            api,
            guard: self.shared.guard.clone(),
            events,
            role: self.shared.role.clone(),
            wall: self.host.clock.wall.clone(),
        };
        let stop = CancellationToken::new();
        (stop.clone(), spawn(reporter.run(stop, sender)))
    }

    /// The recorder of events that `api` sends, and the task that sends them.
    pub(super) fn events(&self, api: ApiClient) -> (Events, impl Future<Output = ()> + Send + use<>) {
        let send: SendEvent = Arc::new(move |event| {
            let api = api.clone();
            async move { api.write_event(event).await }.boxed()
        });
        let (events, sender) = Events::new(send, &self.node_name, Arc::clone(&self.shared.counters));
        (events.with_clock(self.host.clock.wall.clone()), sender)
    }

    /// Starts the search for leftovers, which are sent to `changes`.
    pub(super) fn start_housekeeping(
        &self,
        context: Arc<Context>,
        snapshots: SnapshotHandle,
        changes: mpsc::WeakSender<Arc<PodView>>,
    ) -> AbortOnDropHandle<()> {
        let parts = HousekeepingParts {
            context,
            counters: Arc::clone(&self.shared.counters),
            guard: self.shared.guard.clone(),
            snapshots,
            workers: self.shared.workers.clone(),
            changes,
            report: self.shared.leftovers.clone(),
        };
        let start = move || Housekeeping::new(parts.clone()).run();
        spawn(run_with_restarts("housekeeping", start))
    }

    /// Starts to observe whether the kubelet works, if the node may have one.
    pub(super) fn start_kubelet_monitor(&self, api: &ApiClient) -> Option<AbortOnDropHandle<()>> {
        let take_over_after = self.settings.take_over_after?;
        let fences_kubelet = self.settings.flags.fence_kubelet && !self.settings.only_observes;
        let proc = &self.host.proc;
        // systemd knows the processes of this node, as a test's directory does not have.
        let unit_of_node = || (proc == Path::new(PROC)).then(|| on_this_node(proc));
        let monitor = KubeletMonitor {
            guard: self.shared.guard.clone(),
            kubeconfig: self.settings.kubeconfig.clone(),
            reads: Threads::with_slots(1).with_blocking(self.outside.blocking),
            api: api.clone(),
            healthz: self.settings.healthz,
            take_over_after,
            clock: self.host.clock.clone(),
            fence: fences_kubelet.then(Systemd::default),
            read_unit: self.outside.kubelet_unit.clone().or_else(unit_of_node),
            report: self.shared.role.clone()?,
        };
        let run = move || monitor.clone().run();
        Some(spawn(run_with_restarts("kubelet monitor", run)))
    }

    /// What all workers share.
    pub(super) fn context(&self, api: ApiClient, runtime: LocalRuntime, events: Events) -> Context {
        let (host, settings, guard) = (&self.host, &self.settings, &self.shared.guard);
        let api: Arc<dyn PodApi> = Arc::new(NodeCluster {
            api,
            guard: guard.clone(),
            update_lock: Mutex::default(),
        });
        let (root, journal) = (&settings.kubelet_root, self.shared.journal.clone());
        let storage = Storage::new(host, root, &self.effects, Arc::clone(&api), journal.clone());
        let workers = self.shared.workers.clone();
        let terminating: Terminating = Arc::new(move || {
            let workers = workers.clone();
            async move { workers.ask(|pods| pods.terminating()).await.unwrap_or_default() }.boxed()
        });
        Context {
            api,
            journal,
            events: Arc::new(events),
            work: guard.work.clone(),
            terminating,
            node: LocalNode {
                cri: runtime.cri,
                runtime_name: runtime.version.runtime_name,
                clock: host.clock.clone(),
                effects: self.effects.clone(),
                cgroups: runtime.cgroups,
                cgroup_root: settings.cgroup_root.clone(),
                pod_logs_dir: settings.pod_logs_dir.clone(),
                storage: Arc::new(storage),
                reads: Threads::with_slots(READS).with_blocking(self.outside.blocking),
            },
            limits: Arc::new(Limits::new(host.processors)),
            driver_hold: settings.driver_hold,
            stopping: CancellationToken::new(),
        }
    }
}
