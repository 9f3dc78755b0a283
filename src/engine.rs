//! Takes pods down for another program: a node agent, or a tool. It needs no API server.
//!
//! ```no_run
//! # async fn example(pod: k8s_openapi::api::core::v1::Pod) -> Result<(), Box<dyn std::error::Error>> {
//! use pod_teardown::engine::{Engine, Settings};
//!
//! let mut settings = Settings::new("unix:///run/containerd/containerd.sock", "/var/lib/kubelet");
//! settings.state_dir = Some("/var/lib/my-agent".into());
//! let engine = Engine::start(settings).await?;
//! for unfinished in engine.recover() {
//!     unfinished.finished().await;
//! }
//! println!("{:?}", engine.plan(&pod).await?);
//! let teardown = engine.begin(&pod, None)?;
//! teardown.finished().await;
//! # Ok(())
//! # }
//! ```
//!
//! A termination runs preStop hooks, stops containers and sandboxes within the grace period, unprepares devices, unmounts and
//! removes volumes, and removes cgroups, containers, sandboxes, logs and the pod's directory. A step that fails is repeated, after
//! 1 s at first and after a minute at last, until it succeeds. Interfaces that the program can implement are in
//! [`teardown::boundary`](crate::teardown::boundary).

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use futures::{
    future::{FutureExt as _, ready},
    stream::{Stream, unfold},
};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use parking_lot::Mutex;
use serde_json::value::to_raw_value;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    journal::Journal,
    model::{
        pod::{ApiObject, PodObject, PodRef, PodUid, PodView},
        problem::Problem,
        problems,
        termination::Cause,
        trace::Trace,
    },
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
        attempt::PodUpdate,
        begin::Termination,
        boundary::{EventSink, NoApi, NoEvents, PodApi},
        context::{Context, LocalNode},
        limits::Limits,
        plan::plan_view,
        volumes::storage::Storage,
        work::Work,
    },
    why::Why,
};

pub use crate::teardown::{WorkerResult, plan::Plan};

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
    /// Gets each pod's status and the final delete, and answers for PersistentVolumes and the Node's `volumesInUse`. Without it a
    /// termination ends when nothing is left on the node.
    pub reporter: Option<Arc<dyn PodApi>>,
    /// Gets the events.
    pub events: Arc<dyn EventSink>,
}

/// Takes pods of this node down. Dropping it is like a crash: nothing is cleaned up.
pub struct Engine {
    context: Arc<Context>,
    /// Whether a reporter sends the status and deletes the object.
    has_reporter: bool,
    running: Arc<Running>,
    _lock: DirLock,
}

/// Pods that are terminating, and the tasks that do it.
type Running = Mutex<BTreeMap<PodUid, (Teardown, AbortOnDropHandle<()>)>>;

/// The termination of one pod. Dropping this does not stop it.
#[derive(Clone)]
pub struct Teardown {
    termination: Termination,
    outcome: watch::Receiver<Option<WorkerResult>>,
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
            let what = format!("{}: {error}", dir.display());
            Problem::configuration(what, "name a directory that can be written")
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
        let endpoint = settings.endpoint.parse::<CriEndpoint>();
        let endpoint = endpoint
            .map_err(|error| Problem::usage(format!("endpoint: {error}"), "name the socket of containerd or CRI-O"))?;
        let kubelet_root = KubeletRoot::resolve(&settings.kubelet_root)
            .map_err(|error| Problem::configuration(error.to_string(), "name the kubelet's --root-dir"))?;
        let host = Host::local()?;
        let dir_lock = DirLock::acquire(kubelet_root.pods(), &host.root)
            .map_err(|error| Problem::taken(error.to_string(), "stop the other process first"))?;
        let journal = settings.open_journal(&host)?;
        let effects = Effects::new(settings.gate);
        let cri = Cri::new(&endpoint, effects.clone());
        let runtime = cri.version().await.map_err(|error| {
            let remedy = "start the container runtime, or name its socket";
            Problem::configuration(format!("{endpoint}: {error}"), remedy)
        })?;
        mount_namespace::wait_for_check(&host.proc, endpoint.path()).await?;
        let cgroups = Cgroups::detect(&host.mountinfo, &host.cgroups).map_err(|error| problems::cgroups(&error))?;
        let has_reporter = settings.reporter.is_some();
        let api = settings.reporter.unwrap_or_else(|| Arc::new(NoApi));
        let storage = Storage::new(&host, &kubelet_root, &effects, Arc::clone(&api), journal.clone());
        let running = Arc::new(Running::default());
        let terminating = Arc::clone(&running);
        let context = Context {
            api,
            journal,
            events: settings.events,
            work: Work::default(),
            terminating: Arc::new(move || {
                let running = terminating.lock();
                let view = |(teardown, _): &(Teardown, _)| Arc::clone(&teardown.termination.updates.borrow().view);
                let views = running.iter().map(|(uid, entry)| (uid.clone(), view(entry)));
                ready(views.collect()).boxed()
            }),
            node: LocalNode {
                cri,
                runtime_name: runtime.runtime_name,
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
            _lock: dir_lock,
        })
    }

    /// Lists what [`Self::begin`] would do now, step by step, without changes. What cannot be read is part of the plan.
    ///
    /// # Errors
    /// When the pod has no name, namespace or UID.
    pub async fn plan(&self, pod: &Pod) -> Result<Plan, Problem> {
        let view = view_of(pod)?;
        let blocked = self.context.node.effects.check().err();
        let blocked = blocked.iter().map(ToString::to_string).collect();
        let context = Arc::new(self.context.read_only());
        Ok(plan_view(&context, Arc::new(view), blocked).await)
    }

    /// Begins the pod's termination. A termination in progress is not changed; an earlier one is resumed from the journal. The
    /// pod's spec is written to the journal, for [`Self::recover`].
    ///
    /// The grace period is the shortest of `grace`, the pod's `deletionGracePeriodSeconds` and what the journal has; without
    /// any, that of its spec. It is at least a second.
    ///
    /// # Errors
    /// When the pod has no name, namespace or UID, or mirrors a static pod.
    pub fn begin(&self, pod: &Pod, grace: Option<Duration>) -> Result<Teardown, Problem> {
        let view = view_of(pod)?;
        if view.mirror {
            return Err(Problem::usage(
                format!("pod {} mirrors a static pod", view.pod),
                "remove the static pod's manifest from the node",
            ));
        }
        let manifest = serde_json::to_string(pod).ok();
        Ok(self.terminate(view, grace, manifest))
    }

    /// Resumes all terminations that an earlier run has begun and not finished. Grace periods that have begun do not begin again,
    /// and hooks that have ended do not run again.
    pub fn recover(&self) -> Vec<Teardown> {
        let pods = self.context.journal.unfinished().into_iter().map(|view| view.pod);
        let resume = |pod: PodRef| {
            let manifest = self.context.journal.pod(&pod.uid).and_then(|entry| entry.manifest);
            let known = manifest.and_then(|manifest| view_of(&serde_json::from_str(&manifest).ok()?).ok());
            self.terminate(known.unwrap_or_else(|| PodView::identity_only(pod)), None, None)
        };
        pods.map(resume).collect()
    }

    fn terminate(&self, view: PodView, grace: Option<Duration>, manifest: Option<String>) -> Teardown {
        let mut running = self.running.lock();
        let uid = view.pod.uid.clone();
        if let Some((teardown, _)) = running.get(&uid) {
            return teardown.clone();
        }
        let context = &self.context;
        let grace = grace.map(|grace| grace.as_secs().try_into().unwrap_or(i64::MAX));
        let object = match self.has_reporter {
            true => view.object.clone(),
            false => ApiObject::NoServer,
        };
        let update = PodUpdate::new(Arc::new(PodView { object, ..view }), None);
        let termination = Termination::begin(Arc::clone(context), update, Cause::Deleted, grace);
        if let Some(manifest) = manifest {
            context.journal.update(&uid, |entry| entry.manifest = Some(manifest));
        }
        let worker = termination.run();
        let outcome = watch::Sender::new(None);
        let teardown = Teardown {
            termination,
            outcome: outcome.subscribe(),
        };
        let (running_pods, context) = (Arc::clone(&self.running), Arc::clone(context));
        let updates = teardown.termination.updates.clone();
        let key = uid.clone();
        let run = async move {
            let result = worker.await;
            // The program may keep its handle, and the object is large.
            updates.send_modify(|update| update.view = Arc::new(update.view.without_object()));
            if result == WorkerResult::Finished {
                context.journal.forget(&uid);
            }
            running_pods.lock().remove(&uid);
            outcome.send_replace(Some(result));
        };
        let task = AbortOnDropHandle::new(tokio::spawn(run));
        running.insert(key, (teardown.clone(), task));
        teardown
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.context.stopping.cancel();
        self.running.lock().clear();
    }
}

/// The pod with a deletion timestamp, which is added if it is missing.
fn view_of(pod: &Pod) -> Result<PodView, Problem> {
    let mut pod = pod.clone();
    let deletion = &mut pod.metadata.deletion_timestamp;
    deletion.get_or_insert_with(|| Time(Timestamp::now()));
    let json = to_raw_value(&pod).map_err(Why::new);
    let object = json.and_then(|json| PodObject::read(&json));
    let object =
        object.map_err(|why| Problem::usage(format!("pod: {why}"), "give the pod as the API server shows it"))?;
    Ok(PodView::whole(object, true))
}

// === impl Teardown ===

impl Teardown {
    /// The pod.
    pub fn pod(&self) -> &PodRef {
        self.termination.recorder.pod()
    }

    /// The trace up to now: stage, steps, failures. Times are in milliseconds.
    pub fn trace(&self) -> Trace {
        self.termination.recorder.trace()
    }

    /// Yields the trace now and after each change, until the termination or the engine ends. Fast changes are merged.
    pub fn progress(&self) -> impl Stream<Item = Trace> + Send + use<> {
        let (record, outcome) = (Arc::clone(&self.termination.recorder), self.outcome.clone());
        let mut changes = record.subscribe();
        changes.mark_changed();
        unfold((record, changes, outcome), |(record, mut changes, mut outcome)| async {
            tokio::select! {
                biased;
                Ok(()) = changes.changed() => Some((record.trace(), (record, changes, outcome))),
                _ = outcome.changed() => None,
            }
        })
    }

    /// Shortens the grace period to `grace`, counted from its beginning and rounded to seconds. A longer one changes nothing.
    pub async fn shorten(&self, grace: Duration) {
        let grace = Duration::from_secs(grace.as_secs().max(1));
        if grace < self.termination.period.grace() {
            // Durable first, because a grace period must not grow after a crash.
            self.termination.record_grace(grace, None);
            self.termination.shorten_durably(grace).await;
        }
    }

    /// Returns when the termination has ended; [`WorkerResult::Finished`] if nothing is left of the pod on this node. `None` if the
    /// engine was dropped before: [`Engine::recover`] resumes it.
    pub async fn finished(&self) -> Option<WorkerResult> {
        let mut outcome = self.outcome.clone();
        let result = outcome.wait_for(Option::is_some).await;
        result.ok().and_then(|outcome| *outcome)
    }
}
