//! The agent's node: directories, a scripted runtime and an in-memory API server.

use std::{
    fmt::{Debug, Display},
    ops::Range,
};

use pod_teardown::{
    agent,
    cli::{NodeFlags, SocketFlag},
    clock::BootClock,
    collector::Mode,
    config,
    journal::{self, Journal},
    model::{pod::PodRef, problem::Problem},
    node::{host::Host, identity::Identity, unmounts::ForceUnmount},
    ops::{admin, status::StatusReport},
    outside::Outside,
};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use testbed::{api::ApiServer as _, host_files, network, rest::Client, scripted_cri::ScriptedCri};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::prelude::*;

/// The node's name.
pub const NODE: &str = "n1";
/// Longest wait of a test, on the virtual clock.
const WAIT_LIMIT: Duration = secs(900);
/// First pause of [`wait_until`].
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause of [`wait_until`].
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The agent's environment. On drop, the runtime's calls are compared with the script.
pub struct Node {
    pub cri: ScriptedCri,
    pub api: MemApiServer,
    pub admin: Client,
    pub flags: NodeFlags,
    pub boot_id: String,
    /// The API server is reached in memory by default, the runtime by its socket.
    pub outside: Outside,
    /// A moment, and the uptime then.
    uptime: (Instant, Duration),
    agent: Option<Running>,
    dir: TempDir,
}

struct Running {
    task: JoinHandle<Result<(), Problem>>,
    stop: oneshot::Sender<()>,
}

/// Behavior of the runtime: CRI-O's with `RUNTIME_MANNERS=cri-o`.
fn manners() -> Manners {
    match std::env::var("RUNTIME_MANNERS").as_deref() {
        Ok("cri-o") => Manners::CriO,
        _ => Manners::Containerd,
    }
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Whether it took a time in this range since then.
#[track_caller]
pub fn assert_took(began: Instant, range: Range<Duration>) {
    assert!(
        range.contains(&began.elapsed()),
        "{:?} is not in {range:?}",
        began.elapsed()
    );
}

/// Whether the text has all these parts.
#[track_caller]
pub fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// Whether the object has these fields, where null stands for none.
#[track_caller]
pub fn assert_fields(object: &Value, fields: &Value) {
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(object[name], *value, "{name} of {object}");
    }
}

/// Waits on the virtual clock until `holds`.
#[track_caller]
pub fn wait_until<F: AsyncFnMut() -> bool>(what: impl Display, mut holds: F) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + WAIT_LIMIT;
        let mut pause = MIN_PAUSE;
        while !holds().await {
            assert!(
                Instant::now() < deadline,
                "at {caller}: never within {WAIT_LIMIT:?}: {what}"
            );
            sleep(pause).await;
            // Each check is a request, and a grace period is long.
            pause = (pause + MIN_PAUSE).min(MAX_PAUSE);
        }
    }
}

// === impl Node ===

impl Node {
    /// A node without pods and without a running agent. The runtime expects no call.
    pub async fn new() -> Self {
        let api = MemApiServer::start(Config {
            nodes: vec![NODE.to_owned()],
            ..Config::default()
        });
        Self::with(api.await.unwrap()).await
    }

    /// The same, with simple pods of these names.
    pub async fn with_pods(names: &[&str]) -> Self {
        let node = Self::new().await;
        names.iter().for_each(|name| node.simple_pod(name));
        node
    }

    /// The same, with a running agent. The runtime expects no call.
    pub async fn started(names: &[&str]) -> Self {
        let mut node = Self::with_pods(names).await;
        node.start().await;
        node
    }

    /// The same with a runtime that does all calls.
    pub async fn running(names: &[&str]) -> Self {
        let mut node = Self::with_pods(names).await;
        node.run().await;
        node
    }

    /// A node with this pod and a running agent. The runtime expects no call.
    pub async fn started_with(
        name: &str,
        containers: &Value,
        build: impl for<'a> FnOnce(PodBuilder<'a>) -> PodBuilder<'a>,
    ) -> Self {
        let mut node = Self::new().await;
        node.pod(name, containers, build);
        node.start().await;
        node
    }

    /// A node with the pod `web`, which ignores SIGTERM, and a running agent. The runtime expects no call.
    pub async fn with_stubborn_pod() -> Self {
        Self::started_with("web", &plain(), |pod| pod.container("main").ignores_term()).await
    }

    /// The same, with this API server.
    pub async fn with(api: MemApiServer) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            // Another test of this process may have installed it.
            let _ = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::DEBUG)
                .with_test_writer()
                .try_init();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        host_files::create(dir.path()).unwrap();
        fs::write(path("kubeconfig"), api.node_kubeconfig(NODE)).unwrap();
        let cri = ScriptedCri::start(World::with(manners())).await;
        let flags = NodeFlags {
            mode: ModeFlag::Always,
            take_over_after: "45s".to_owned(),
            fence_kubelet: false,
            gc: Mode::Never,
            gc_kubeconfig: None,
            force_unmount: ForceUnmount::Never,
            node_condition: false,
            metrics_addr: None,
            otlp_endpoint: None,
            otlp_ca_file: None,
            kubeconfig: Some(path("kubeconfig")),
            node_name: Some(NODE.to_owned()),
            cri_endpoint: Some(cri.endpoint()),
            kubelet_root: Some(path("kubelet")),
            kubelet_config: Some(path("kubelet.yaml")),
            kubelet_config_dir: None,
            kubelet_start: None,
            cgroup_root: None,
            state_dir: path("state"),
            socket: SocketFlag { socket: path("socket") },
            shutdown_timeout: "20s".to_owned(),
            driver_hold: "10m".to_owned(),
        };
        Self {
            cri,
            admin: api.admin().unwrap(),
            api,
            flags,
            boot_id: "boot-1".to_owned(),
            outside: Outside {
                dial: Some(Arc::new(|server| Ok(Box::new(network::connect(server)?)))),
                ..Outside::default()
            },
            uptime: (Instant::now(), secs(1000)),
            agent: None,
            dir,
        }
    }

    /// A path in the node's directory: `kubelet`, `logs`, `cgroup`, `proc`, `root`, `state`, `kubeconfig`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Sets the present uptime.
    pub fn set_uptime(&mut self, ago: Duration) {
        self.uptime = (Instant::now(), ago);
    }

    // --- agent ---

    /// Starts the agent and waits until it watches.
    pub async fn start(&mut self) {
        self.launch().await;
        wait_until("the agent watches", async || {
            self.try_status()
                .await
                .is_some_and(|status| serde_json::to_value(status.watch.state).unwrap() == "watching")
        })
        .await;
    }

    /// The same with a runtime that does all calls.
    pub async fn run(&mut self) {
        self.cri.allow_everything();
        self.start().await;
    }

    /// Starts the agent without waiting.
    pub async fn launch(&mut self) {
        let settings = config::validate(&self.flags).await.unwrap();
        let (at, uptime) = self.uptime;
        let host = Host {
            sys_block: self.path("sys/block"),
            processors: 2,
            root: self.path("root"),
            proc: self.path("proc"),
            mountinfo: self.path("mountinfo"),
            cgroups: self.path("cgroup"),
            clock: BootClock::of(&self.boot_id, move || uptime + at.elapsed()),
        };
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            // A dropped sender stops it, too.
            stopped.await.ok();
        };
        let task = tokio::spawn(agent::run_on(host, self.outside.clone(), settings, stopped));
        self.agent = Some(Running { task, stop });
    }

    /// Whether the agent runs.
    pub fn runs(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| !agent.task.is_finished())
    }

    /// Stops the agent; returns its result.
    pub async fn stop(&mut self) -> Result<(), Problem> {
        let Running { task, stop } = self.agent.take().expect("an agent that runs");
        stop.send(()).ok();
        let result = task.await.unwrap();
        self.journal_closed().await;
        result
    }

    /// Waits until the agent exits by itself; returns its result.
    pub async fn ended(&mut self) -> Result<(), Problem> {
        let Running { task, stop } = self.agent.take().expect("an agent that was started");
        let result = task.await.unwrap();
        drop(stop);
        result
    }

    /// Aborts the agent and waits until its journal is closed, which a process's exit would do at once.
    pub async fn crash(&mut self) {
        let Running { task, .. } = self.agent.take().expect("an agent that runs");
        task.abort();
        task.await.ok();
        self.journal_closed().await;
    }

    /// Crashes and starts the agent.
    pub async fn restart(&mut self) {
        self.crash().await;
        self.start().await;
    }

    async fn journal_closed(&self) {
        let file = self.flags.state_dir.join(journal::FILE);
        wait_until("the journal is closed", async || redb::Database::open(&file).is_ok()).await;
    }

    /// Uses the journal of a stopped agent.
    async fn with_journal<T>(&self, read: impl AsyncFnOnce(&Journal) -> T) -> T {
        self.journal_closed().await;
        let journal = Journal::open(&self.flags.state_dir, &Identity::read(&self.path("root"))).unwrap();
        let result = read(&journal).await;
        drop(journal);
        self.journal_closed().await;
        result
    }

    /// Unfinished UIDs in the journal of a stopped agent.
    pub async fn journal(&self) -> Vec<String> {
        let uids = async |journal: &Journal| {
            let unfinished = journal.unfinished().into_iter();
            unfinished.map(|view| view.pod.uid.to_string()).collect()
        };
        self.with_journal(uids).await
    }

    /// Adds a begun termination without a cause to the journal of an agent that was never started.
    pub async fn begin_in_journal(&self, name: &str) {
        let journal = Journal::open(&self.flags.state_dir, &Identity::read(&self.path("root"))).unwrap();
        let pod = PodRef {
            uid: uid(name).as_str().into(),
            namespace: "default".into(),
            name: name.into(),
        };
        let now = BootClock::of(&self.boot_id, || secs(600)).now();
        journal.record_termination(&pod, now.clone(), secs(30), None);
        journal.record_attempt(&pod.uid, now);
        journal.durable().await.unwrap();
        drop(journal);
        self.journal_closed().await;
    }

    /// Seen UIDs in the journal of a stopped agent.
    pub async fn seen(&self) -> Vec<String> {
        let uids = async |journal: &Journal| {
            let seen = journal.all_seen().into_iter();
            seen.map(|(uid, _)| uid.to_string()).collect()
        };
        self.with_journal(uids).await
    }

    /// The answer to a query on the admin socket.
    pub async fn query<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let answer = client::get(&self.flags.socket.socket, path).await;
        answer.map_err(|error| error.to_string())
    }

    /// The agent's status; `None` if it does not answer.
    pub async fn try_status(&self) -> Option<StatusReport> {
        client::get(&self.flags.socket.socket, admin::STATUS).await.ok()
    }

    /// The agent's status.
    pub async fn status(&self) -> StatusReport {
        self.try_status().await.expect("an agent that answers")
    }

    /// Waits until this part of the status has this value.
    #[track_caller]
    pub fn wait_status<T>(&self, read: impl Fn(&StatusReport) -> T, value: T) -> impl Future<Output = ()>
    where
        T: PartialEq + Debug,
    {
        let what = format!("the status has {value:?}");
        wait_until(what, async move || read(&self.status().await) == value)
    }

    // --- calls ---

    /// Whether the runtime continues a stop whose caller is gone, up to SIGKILL. CRI-O does; in containerd the container
    /// keeps running.
    pub fn finishes_abandoned_stops(&self) -> bool {
        self.cri.look(|world| world.manners) == Manners::CriO
    }

    /// Waits for so many effects of this kind; returns them.
    pub async fn calls(&self, count: usize, wanted: impl Fn(&Seen) -> bool) -> Vec<(Duration, Seen)> {
        let of = || {
            self.cri
                .effects()
                .into_iter()
                .filter(|(_, seen)| wanted(seen))
                .collect::<Vec<_>>()
        };
        wait_until("the calls have come", async || of().len() >= count).await;
        of()
    }

    /// Kinds and timeouts of all effects so far.
    pub fn kinds(&self) -> Vec<(Kind, Option<Duration>)> {
        let effects = self.cri.effects().into_iter();
        effects.map(|(_, seen)| (seen.kind, seen.timeout)).collect()
    }
}
