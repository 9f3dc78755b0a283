//! The admin socket: HTTP over a Unix socket, for the verbs of this program and for curl.

pub mod collector;
pub mod handover;
pub mod holds;
pub mod pause;
pub mod stop;
pub mod why;

use std::{
    convert::Infallible,
    fs::{DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    time::timeout,
};

use self::collector::CollectorAdmin;
use super::{logging, status::StatusReport};
use crate::{
    api::ApiClient,
    counters::{Counters, Counts},
    handover::{guard::Guard, report::RoleReport},
    housekeeping::LeftoverReport,
    journal::Journal,
    model::foreign,
    node::runtime::RuntimeReport,
    watch::WatchReport,
    workers::{Overview, WorkersHandle},
};

/// Path of the status.
pub const STATUS: &str = "/v1/status";
/// Path of timelines, followed by namespace and name.
pub const TIMELINES: &str = "/v1/timelines";
const JSON: &str = "application/json";
const STOPPING: &str = "the agent is stopping";
/// Maximum size of a request body, in bytes.
const MAX_BODY: usize = 64 << 10;
/// Shorter than the timeout of the client.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// Answers requests on the admin socket.
pub struct Admin {
    /// The node's name.
    pub node: String,
    /// When the agent was started.
    pub since: Timestamp,
    /// Whether effects are only logged.
    pub dry_run: bool,
    /// For requests about pods; `None` with `--pods never`.
    pub pods: Option<PodsAdmin>,
    /// For requests about the collector; `None` if this agent has none.
    pub gc: Option<CollectorAdmin>,
}

/// Answers requests about pods.
#[derive(Clone)]
pub struct PodsAdmin {
    /// State of the container runtime.
    pub runtime: watch::Receiver<RuntimeReport>,
    /// Decides whether the agent may act.
    pub guard: Guard,
    /// State of the watch.
    pub watch: watch::Receiver<WatchReport>,
    /// Leftovers of deleted pods on this node.
    pub leftovers: watch::Receiver<LeftoverReport>,
    /// The role; `None` without `--pods auto`.
    pub role: Option<watch::Receiver<RoleReport>>,
    /// How long a handover is valid while no kubelet is seen.
    pub handover_validity: Duration,
    /// The pod workers.
    pub workers: WorkersHandle,
    /// The journal.
    pub journal: Journal,
    /// Counters since the start.
    pub counters: Arc<Counters>,
    /// The API client, once it exists.
    pub api: Arc<OnceLock<ApiClient>>,
}

/// The socket file, identified by device and inode.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

/// Whether a process listens on the socket; `None` if it does not exist.
///
/// # Errors
/// When the path is not a socket, or the check fails.
pub async fn is_listened_on(path: &Path) -> io::Result<Option<bool>> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(io::Error::other("it is no socket")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    match UnixStream::connect(path).await {
        Ok(_) => Ok(Some(true)),
        // No process listens. Other errors do not prove that.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Some(false)),
        Err(error) => Err(io::Error::other(format!("whether somebody listens there: {error}"))),
    }
}

/// Creates the socket with mode 0600, and its directory. The socket of an agent that has exited is replaced.
///
/// # Errors
/// `AddrInUse` if a process listens there; otherwise when the socket cannot be created.
pub async fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    }
    match is_listened_on(path).await? {
        None => {}
        Some(false) => std::fs::remove_file(path)?,
        Some(true) => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "somebody listens there already",
            ));
        }
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    let socket = SocketFile {
        path: path.to_owned(),
        id: file_id(path)?,
    };
    Ok((listener, socket))
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

// === impl SocketFile ===

impl SocketFile {
    /// Removes the socket, unless it was replaced.
    pub fn remove(self) {
        if file_id(&self.path).is_ok_and(|id| id == self.id) {
            // It may be removed already.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

// === impl Admin ===

impl Admin {
    /// Answers requests until the future is dropped.
    pub async fn serve(self: Arc<Self>, listener: Arc<UnixListener>) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(Arc::clone(&self).connection(stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "Admin socket cannot accept");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: UnixStream) {
        let (peer, is_allowed) = match stream.peer_cred() {
            Ok(peer) => {
                let pid = peer.pid().map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                (format!("uid {}, pid {pid}", peer.uid()), is_allowed_user(peer.uid()))
            }
            Err(error) => {
                tracing::warn!(%error, "Admin request refused: credentials of the peer are unknown");
                return;
            }
        };
        if is_allowed {
            tracing::debug!(peer, "Admin request");
        } else {
            tracing::warn!(peer, "Admin request refused: the user is neither root nor the agent's");
        }
        let service = service_fn(async |request| {
            if is_allowed {
                self.answer(request, &peer).await
            } else {
                Ok(error(
                    StatusCode::FORBIDDEN,
                    &format!("only root may ask, and not {peer}: run this as root"),
                ))
            }
        });
        if let Err(error) = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await
        {
            tracing::debug!(%error, "Admin connection failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>, peer: &str) -> Result<Response<Full<Bytes>>, Infallible> {
        match (request.method(), &self.pods) {
            (&Method::POST, Some(pods)) => return Ok(command(pods, request, peer).await),
            (&Method::POST, None) => return Ok(no_pods()),
            (&Method::GET, _) => {}
            _ => {
                return Ok(error(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "only GET and POST are answered here",
                ));
            }
        }
        let path = request.uri().path();
        if path == STATUS {
            return Ok(self.status().await);
        }
        if path == holds::HOLDS {
            return Ok(match &self.pods {
                Some(pods) => holds::list(pods).await,
                None => no_pods(),
            });
        }
        if path == why::WHY {
            return Ok(why::answer(self, request.uri().query()).await);
        }
        if let Some(answer) = collector::answer(self.gc.as_ref(), path, request.uri().query()) {
            return Ok(answer);
        }
        if let Some(uid) = path
            .strip_prefix(stop::OUTCOMES)
            .and_then(|path| path.strip_prefix('/'))
        {
            return Ok(match &self.pods {
                Some(pods) => stop::outcome(pods, uid, request.uri().query()).await,
                None => no_pods(),
            });
        }
        let names = path
            .strip_prefix(TIMELINES)
            .and_then(|path| path.strip_prefix('/')?.split_once('/'));
        Ok(match names {
            Some((namespace, name)) => self.timelines(namespace, name).await,
            None => error(
                StatusCode::NOT_FOUND,
                "there are /v1/status, /v1/timelines/NAMESPACE/NAME, /v1/why, /v1/outcomes/UID, /v1/held, /v1/gc/status and /v1/gc/graph",
            ),
        })
    }

    async fn status(&self) -> Response<Full<Bytes>> {
        match self.report().await {
            Some(report) => json_answer(&report),
            None => stopping(),
        }
    }

    /// The status of the agent; `None` while it stops.
    pub async fn report(&self) -> Option<StatusReport> {
        let mut report = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            since: self.since,
            node: self.node.clone(),
            dry_run: self.dry_run,
            log_lines_dropped: logging::dropped(),
            panics: logging::panics(),
            takes_pods: self.pods.is_some(),
            collector: self.gc.as_ref().map(CollectorAdmin::summary),
            ..StatusReport::default()
        };
        if let Some(pods) = &self.pods
            && !pods.add_to(&mut report).await
        {
            return None;
        }
        Some(report)
    }

    async fn timelines(&self, namespace: &str, name: &str) -> Response<Full<Bytes>> {
        let Some(pods) = &self.pods else {
            return no_pods();
        };
        match pods.in_time(pods.workers.traces(namespace, name)).await {
            Err(why) => error(StatusCode::SERVICE_UNAVAILABLE, &why),
            Ok(traces) if traces.is_empty() => error(
                StatusCode::NOT_FOUND,
                &format!(
                    "no teardown of {namespace}/{name} is remembered; the agent knows those since its start, the last 256"
                ),
            ),
            Ok(traces) => json_answer(&traces),
        }
    }
}

// === impl PodsAdmin ===

impl PodsAdmin {
    /// Waits for an answer of the pod workers. A command whose answer was not awaited has no effect.
    ///
    /// # Errors
    /// When the runtime was never reached, the agent stops, or there is no answer within [`ANSWER_TIMEOUT`].
    async fn in_time<T>(&self, query: impl Future<Output = Option<T>>) -> Result<T, String> {
        // The workers answer once the runtime has been reached.
        let RuntimeReport { version, error } = self.runtime.borrow().clone();
        if version.is_none() {
            let why = error.map_or_else(String::new, |error| format!(": {error}"));
            return Err(format!("the container runtime has not been reached yet{why}"));
        }
        match timeout(ANSWER_TIMEOUT, query).await {
            Ok(answer) => answer.ok_or_else(|| STOPPING.to_owned()),
            Err(_) => Err(format!(
                "the agent did not come to it within {ANSWER_TIMEOUT:?}; see its log"
            )),
        }
    }

    /// Adds the status of pods; `false` while the agent stops.
    async fn add_to(&self, report: &mut StatusReport) -> bool {
        report.runtime = self.runtime.borrow().clone();
        // The workers answer once the runtime has been reached.
        let pods = match report.runtime.version {
            Some(_) => self.workers.overview().await,
            None => Some(Overview::default()),
        };
        let Some(pods) = pods else {
            return false;
        };
        let trouble = self.journal.trouble();
        report.held = self.guard.why_blocked();
        report.node_uid_held = self.guard.has_node_uid_mismatch();
        report.paused = self.guard.paused();
        report.credentials_end = self.api.get().and_then(ApiClient::credentials_end);
        report.understudy = self.role.as_ref().map(|role| role.borrow().clone());
        report.watch = self.watch.borrow().clone();
        // A query for a single pod can find out between two lists.
        let hold = self.guard.absence_hold();
        report.watch.held = hold.or_else(|| report.watch.held.take());
        report.house = self.leftovers.borrow().clone();
        report.pods = pods;
        report.journal = trouble.error.map(|error| error.to_string());
        let quarantined = self.journal.quarantined();
        report.journal_asides = quarantined.iter().map(|path| path.display().to_string()).collect();
        let cost = self.journal.cost();
        report.counters = Counts {
            journal_writes_failed: trouble.failed,
            journal_commits: cost.commits,
            journal_commits_us: u64::try_from(cost.took.as_micros()).unwrap_or(u64::MAX),
            ..self.counters.counts()
        };
        true
    }
}

/// Performs the command of a POST request.
async fn command(pods: &PodsAdmin, request: Request<Incoming>, peer: &str) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(cause) => return error(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {cause}")),
    };
    if path == holds::APPROVE {
        holds::approve(pods, &body, peer).await
    } else if path == handover::HANDOVER {
        handover::perform(pods, &body, peer).await
    } else if path == pause::PAUSE {
        pause::pause(pods, peer).await
    } else if path == pause::RESUME {
        pause::resume(pods, peer).await
    } else {
        stop::request(pods, &path, &body, peer).await
    }
}

/// Root and the agent's user are allowed, regardless of the socket's mode.
fn is_allowed_user(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

pub(crate) fn json_answer(body: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string(body) {
        Ok(body) => response(StatusCode::OK, JSON, foreign::escape_json(body)),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
    }
}

fn no_pods() -> Response<Full<Bytes>> {
    error(
        StatusCode::NOT_FOUND,
        "this agent takes no pods down: it runs with --pods never",
    )
}

fn stopping() -> Response<Full<Bytes>> {
    error(StatusCode::SERVICE_UNAVAILABLE, STOPPING)
}

fn error(code: StatusCode, message: &str) -> Response<Full<Bytes>> {
    response(
        code,
        JSON,
        foreign::escape_json(json!({ "error": message }).to_string()),
    )
}

/// A response with a body of this content type.
pub(super) fn response(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
