//! A Kubernetes API server in memory, over HTTP/1.1, for tests, demo, bench and simulation.
//!
//! Requests flow through `http → handler → {faults, route, authorizer} → {list, watch, writes} ⇄ rules → store →
//! history`, answers through `accept → encode`.
//!
//! It behaves as clients of kube-apiserver 1.37 see it, for the kinds in [`kinds`]: built-in and custom ones, and for the
//! requests that the agent, its collector and the tests send. It refuses others: label selectors, dry runs, discovery group
//! by group, lists of the past, deletions of collections, bindings, evictions.
//!
//! It runs in the caller's runtime and reads time from `tokio::time`, so a paused clock applies. With a paused clock,
//! connect by [`network::connect`] or [`MemApiServer::connector`]: traffic of a TCP socket does not hold the clock back.

mod accept;
mod answer;
mod api;
mod authorizer;
mod control;
mod definitions;
mod deletion;
mod discovery;
mod encode;
pub mod error;
pub mod faults;
mod handler;
mod history;
mod http;
mod identity;
pub mod kinds;
mod list;
mod object;
mod patch;
pub mod process;
mod query;
mod request_limit;
pub mod requests;
mod review;
mod route;
mod rules;
mod selector;
mod shared;
mod store;
mod stored;
mod watch;
mod writes;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::Either;
use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, JoinSet};

use self::error::ApiError;
use self::faults::Faults;
use self::handler::{Call, Reply};
use self::identity::{COLLECTOR, User};
use self::requests::Request;
pub use self::requests::Witness;
use self::shared::Shared;
use self::store::Store;
use self::writes::Writer;
use crate::api::{ADMIN, ApiServer};
use crate::network::{self, Connector, Incoming, Route};

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// An initial object was refused.
    #[error("cannot store what is there from the start")]
    Seed(#[source] ApiError),
}

/// How the server starts.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The nodes that are registered from the start.
    pub nodes: Vec<String>,
    /// How many past writes of each kind are remembered for watches and old lists.
    pub history: usize,
    /// The version before the first write: a watch from an earlier one is too old.
    pub first_version: u64,
    /// The time of day when it starts.
    pub began_at: Timestamp,
}

/// A running server; it stops when dropped.
#[derive(Debug)]
pub struct MemApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    connector: Connector,
    sockets: Option<Sockets>,
    task: JoinHandle<()>,
}

/// Sockets of a server, and its address in memory.
#[derive(Debug)]
struct Sockets {
    /// Clients in memory reach it by its TCP address, too.
    _route: Route,
    /// Contains the Unix socket.
    dir: TempDir,
}

/// The namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Name of the Unix socket.
const SOCKET: &str = "socket";

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            nodes: Vec::new(),
            history: 10_000,
            first_version: 200,
            began_at: Timestamp::now(),
        }
    }
}

impl MemApiServer {
    /// Starts a server in the current runtime.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let listen = |source| Error::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let dir = tempfile::tempdir().map_err(listen)?;
        let unix = UnixListener::bind(dir.path().join(SOCKET)).map_err(listen)?;
        let mut server = Self::at(address, Some((listener, unix)), &config)?;
        server.sockets = Some(Sockets {
            _route: Route::at(address, server.connector.clone()),
            dir,
        });
        Ok(server)
    }

    /// Starts a server that is only reachable by [`MemApiServer::connector`] and [`MemApiServer::ask`].
    pub fn without_socket(config: &Config) -> Result<Self, Error> {
        Self::at(config.listen, None, config)
    }

    fn at(address: SocketAddr, listeners: Option<(TcpListener, UnixListener)>, config: &Config) -> Result<Self, Error> {
        let store = Store::new(config.first_version, config.history);
        let shared = Arc::new(Shared::new(store, config.began_at));
        for namespace in NAMESPACES {
            seed(
                &shared,
                "/api/v1/namespaces",
                json!({ "metadata": { "name": namespace } }),
            )?;
        }
        for node in &config.nodes {
            let labels = json!({ "kubernetes.io/hostname": node });
            seed(
                &shared,
                "/api/v1/nodes",
                json!({ "metadata": { "name": node, "labels": labels }, "spec": {}, "status": {} }),
            )?;
        }
        let (connector, incoming) = network::listen();
        let task = tokio::spawn(accept(Arc::clone(&shared), listeners, incoming));
        Ok(MemApiServer {
            address,
            shared,
            connector,
            sockets: None,
            task,
        })
    }

    /// Where it is reached.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Opens connections in memory.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// A kubeconfig with all rights.
    pub fn admin_kubeconfig(&self) -> String {
        ApiServer::admin_kubeconfig(self)
    }

    /// A kubeconfig with all rights, named `collector` in the log of requests.
    pub fn collector_kubeconfig(&self) -> String {
        self.access(COLLECTOR).kubeconfig()
    }

    pub fn node_kubeconfig(&self, node: &str) -> String {
        ApiServer::node_kubeconfig(self, node)
    }

    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Refuses the requests of `user` beyond so many in a second with 429.
    pub fn limit_requests(&self, user: &str, per_second: u32) {
        self.shared.request_limit.set(user, per_second);
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.all()
    }

    /// Whether any request asked for a compressed answer.
    pub fn was_asked_to_compress(&self) -> bool {
        self.shared.requests.were_compressed()
    }

    /// Calls `witness` for every request from now on.
    pub fn set_witness(&self, witness: Witness) {
        self.shared.requests.set_witness(witness);
    }

    /// The administrator's answer: code and body, which is null if it is no JSON. A patch is a merge patch.
    pub async fn ask(&self, method: ::http::Method, path: &str, body: &Value) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let content_type = match method {
            ::http::Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let call = Call {
            connection: 0,
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            authorization: Some(format!("Bearer {ADMIN}")),
            accept: String::new(),
            content_type: content_type.to_owned(),
            body: if body.is_null() {
                Bytes::new()
            } else {
                body.to_string().into()
            },
        };
        match handler::handle(&self.shared, call).await {
            Reply::Done(answer) => (answer.code, serde_json::from_slice(&answer.body).unwrap_or_default()),
            Reply::Refused(error) => (error.code, error.to_status()),
            Reply::Watch(_) | Reply::Lost => (0, Value::Null),
        }
    }

    /// Discards the recorded requests.
    pub fn forget_requests(&self) {
        self.shared.requests.clear();
    }

    /// Discards all history: clients with an older version are answered that it is too old.
    pub fn compact(&self) {
        self.shared.store().compact();
    }

    /// Sets whether the server of a group version, such as `apps/v1`, is unreachable, as that of an APIService may be:
    /// discovery fails, and so do all requests for its objects except running watches.
    pub fn set_unavailable(&self, group_version: &str, away: bool) {
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        self.shared.store().served.set_unavailable(group, version, away);
    }

    /// Sets whether discovery leaves out what a group version serves, as a server behind an APIService may.
    pub fn set_undiscoverable(&self, group_version: &str, silent: bool) {
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        self.shared.store().served.set_undiscoverable(group, version, silent);
    }

    /// All objects of a kind as they are at this moment; none if it is not served.
    pub fn objects(&self, api_version: &str, kind: &str) -> Vec<Value> {
        let store = self.shared.store();
        let kind = store.served.of_object(api_version, kind);
        kind.map_or_else(Vec::new, |kind| {
            let all = store.table(kind).range("", "");
            all.map(|object| object.value()).collect()
        })
    }

    pub fn count(&self, api_version: &str, kind: &str) -> usize {
        let store = self.shared.store();
        let kind = store.served.of_object(api_version, kind);
        kind.map_or(0, |kind| store.table(kind).range("", "").count())
    }

    /// Stores an object as it is, past all validation; uid and times are added where they are missing.
    pub fn insert_raw(&self, object: Value) -> Result<(), ApiError> {
        writes::insert_raw(&mut self.shared.store(), object, self.shared.now())
    }
}

impl Drop for MemApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn seed(shared: &Shared, path: &str, object: Value) -> Result<(), Error> {
    let writer = Writer {
        user: &User::Admin,
        now: shared.now(),
    };
    let route = route::parse(&shared.store().served, path).map_err(Error::Seed)?;
    match route {
        route::Route::Objects(target) => writes::create(&mut shared.store(), &writer, &target, object)
            .map(drop)
            .map_err(Error::Seed),
        _ => Err(Error::Seed(ApiError::no_such_path())),
    }
}

/// Serves connections until it is aborted, which closes them all.
async fn accept(shared: Arc<Shared>, listeners: Option<(TcpListener, UnixListener)>, mut incoming: Incoming) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let Some((tcp, unix)) = &listeners else {
                return std::future::pending().await;
            };
            tokio::select! {
                biased;
                accepted = tcp.accept() => accepted.map(|(stream, _)| Either::Left(stream)),
                accepted = unix.accept() => accepted.map(|(stream, _)| Either::Right(stream)),
            }
        };
        tokio::select! {
            biased;
            accepted = accepted => match accepted {
                Ok(Either::Left(stream)) => {
                    // Answers are small and each is awaited: waiting for a fuller packet only costs time.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "Socket keeps its delay");
                    }
                    connections.spawn(http::serve(Arc::clone(&shared), stream));
                }
                Ok(Either::Right(stream)) => {
                    connections.spawn(http::serve(Arc::clone(&shared), stream));
                }
                Err(error) => tracing::warn!(%error, "Connection was not accepted"),
            },
            // The sender lives as long as the server, which aborts this task when it goes.
            Some(stream) = incoming.recv() => {
                connections.spawn(http::serve(Arc::clone(&shared), stream));
            }
            // Remove closed connections, or the set would only grow.
            Some(_) = connections.join_next() => {}
        }
    }
}
