//! Agents in a leader election, each behind its own network.

use std::{error::Error, fs, path::PathBuf, sync::Arc, time::Duration};

use pod_teardown::{
    api::{Dial, MetadataClient, kubeconfig::read_kubeconfig},
    collector::{Mode, leader_election::LeaderElection},
    node::effects::Effects,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    api::{ApiServer as _, kubeconfig},
    apiserver::{Config, MemApiServer},
    dice::Dice,
    network::{self, Connector, Incoming, Route},
    rest::Client,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, split},
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep},
};

pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// Seconds until the first agent of a cluster creates the Lease.
pub const FIRST: u64 = 4;
/// Interval at which the virtual clock stops to check who may write.
const SAMPLE: Duration = Duration::from_millis(50);

/// State of an agent's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Net {
    Up,
    /// Connections break, and new ones are refused.
    Down,
    /// Packets are dropped silently.
    Hangs,
}

pub struct Cluster {
    pub api: MemApiServer,
    pub admin: Client,
    dir: TempDir,
}

pub struct Agent {
    pub election: LeaderElection,
    pub net: watch::Sender<Net>,
    task: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
    forwarder: JoinHandle<()>,
    _route: Route,
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Connects in memory.
pub fn dial() -> Dial {
    Arc::new(|server| Ok(Box::new(network::connect(server)?)))
}

/// Prints the seed, which repeats the run.
pub fn dice(seed: u64) -> Dice {
    println!("seed {seed}");
    Dice::new(seed)
}

/// Waits on the virtual clock until `holds`; returns how long that took.
#[track_caller]
pub fn wait_until<F: FnMut() -> bool>(limit: Duration, mut holds: F) -> impl Future<Output = Duration> {
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < limit, "at {caller}: not within {limit:?}");
            sleep(SAMPLE).await;
        }
        start.elapsed()
    }
}

/// Checks from now on that no two agents may write at the same time. Dropping it stops the check.
pub fn assert_at_most_one(agents: &[&Agent]) -> JoinSet<()> {
    let election: Vec<LeaderElection> = agents.iter().map(|agent| agent.election.clone()).collect();
    let mut set = JoinSet::new();
    set.spawn(async move {
        loop {
            let may = election.iter().filter(|election| election.may_write().is_ok()).count();
            assert!(may < 2, "{may} may write at one time");
            sleep(SAMPLE).await;
        }
    });
    set
}

/// Fails if the check has failed.
pub fn expect_no_violation(watcher: &mut JoinSet<()>) {
    if let Some(ended) = watcher.try_join_next() {
        ended.unwrap();
    }
}

// === impl Cluster ===

impl Cluster {
    pub async fn new() -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            // Another test of this process may have installed it.
            let _ = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::DEBUG)
                .with_test_writer()
                .try_init();
        }
        let api = MemApiServer::start(Config::default()).await.unwrap();
        Self {
            admin: api.admin().unwrap(),
            api,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub async fn agent(&self, name: &str, mode: Mode) -> Agent {
        self.start_agent(name, mode).await
    }

    /// An agent that works within this many seconds.
    pub async fn working(&self, name: &str, mode: Mode, limit: u64) -> Agent {
        let agent = self.agent(name, mode).await;
        wait_until(secs(limit), || agent.works()).await;
        agent
    }

    pub async fn start_agent(&self, name: &str, mode: Mode) -> Agent {
        let (entry, incoming) = network::listen();
        let route = Route::new(entry);
        let url = format!("http://{}", route.address());
        let (net, network_state) = watch::channel(Net::Up);
        let forwarder = tokio::spawn(forward_all(incoming, self.api.connector().clone(), network_state));
        let (config, path) = self.credentials_at(name, &url).await;
        // Not random: the agent's interval depends on it.
        let election = LeaderElection::new(name.to_owned(), mode);
        let client = MetadataClient::new(&config, path, Effects::new(election.gate()), Some(dial())).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = election.clone();
        let task = tokio::spawn(async move {
            let stopped = async {
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            running.run(&client, stopped).await;
        });
        Agent {
            election,
            net,
            task,
            stop: Some(stop),
            forwarder,
            _route: route,
        }
    }

    /// The administrator's credentials, without a network in between.
    pub async fn credentials(&self, name: &str) -> (kube::Config, PathBuf) {
        self.credentials_at(name, &self.api.url()).await
    }

    async fn credentials_at(&self, name: &str, url: &str) -> (kube::Config, PathBuf) {
        let path = self.dir.path().join(name);
        fs::write(&path, kubeconfig(url, None, "admin", "admin")).unwrap();
        (read_kubeconfig(&path).await.unwrap(), path)
    }

    pub async fn lease(&self, name: &str) -> Value {
        self.admin.get(&format!("{LEASES}/{name}")).await.unwrap().body
    }

    /// Renews a Lease as its holder, with a clock that is off.
    pub async fn renew(&self, name: &str, holder: &str, off: jiff::Span) {
        self.try_renew(name, holder, off).await.unwrap();
    }

    /// The same, with an error instead of a panic.
    pub async fn try_renew(&self, name: &str, holder: &str, off: jiff::Span) -> anyhow::Result<()> {
        let now = jiff::Timestamp::now().checked_add(off).unwrap();
        let now = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let before = self.admin.get(&format!("{LEASES}/{name}")).await?.body;
        let mut metadata = json!({ "name": name });
        if before["kind"] == "Lease" {
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        }
        let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now });
        let lease = json!({ "metadata": metadata, "spec": spec });
        self.admin.update(&format!("{LEASES}/{name}"), &lease).await?.ok()?;
        Ok(())
    }
}

// === impl Agent ===

impl Agent {
    pub fn works(&self) -> bool {
        self.election.watch().borrow().is_ok() && self.election.may_write().is_ok()
    }

    pub fn why(&self) -> String {
        self.election
            .watch()
            .borrow()
            .as_ref()
            .err()
            .map_or_else(String::new, ToString::to_string)
    }

    /// Drops the agent without releasing the Lease.
    pub async fn crash(&mut self) {
        if !self.task.is_finished() {
            self.task.abort();
            (&mut self.task).await.ok();
        }
    }

    /// Stops the agent orderly.
    pub async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
        self.forwarder.abort();
    }
}

async fn forward_all(mut incoming: Incoming, server: Connector, mut network_state: watch::Receiver<Net>) {
    let mut connections = JoinSet::new();
    loop {
        let now = *network_state.borrow_and_update();
        if now == Net::Down {
            connections.shutdown().await;
        }
        tokio::select! {
            changed = network_state.changed() => if changed.is_err() { return },
            Some(client) = incoming.recv() => if now != Net::Down {
                connections.spawn(forward(client, server.connect(), network_state.clone()));
            },
        }
    }
}

/// Forwards a connection's bytes. While the network hangs, bytes wait.
async fn forward(client: DuplexStream, server: DuplexStream, network_state: watch::Receiver<Net>) {
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    tokio::select! {
        _ = copy_one_way(from_client, to_server, network_state.clone()) => {}
        _ = copy_one_way(from_server, to_client, network_state) => {}
    }
}

async fn copy_one_way(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    mut network_state: watch::Receiver<Net>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        network_state.wait_for(|net| *net != Net::Hangs).await?;
        to.write_all(&bytes[..count]).await?;
    }
}
