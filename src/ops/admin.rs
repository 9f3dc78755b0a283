//! The admin socket: HTTP over a Unix socket, for the verbs of this program and for curl.

pub mod collector;
pub mod handover;
pub mod holds;
pub mod pause;
pub mod plan;
pub mod report;
mod respond;
pub mod socket;
mod state;
pub mod stop;
pub mod timelines;
pub mod why;

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixStream, unix::UCred};
use tracing::Instrument as _;

use crate::model::blocked::Blocked;

pub(crate) use self::respond::{json_answer, response};
use self::{
    respond::{Answer, Refused, agent_stopping, bad_request, error, not_found},
    socket::AdminListener,
};
pub use self::{
    state::{Admin, PodsAdmin},
    timelines::TIMELINES,
};

/// Path of the status.
pub const STATUS: &str = "/v1/status";
/// Maximum size of a request body, in bytes.
const MAX_BODY: usize = 64 << 10;

// === impl Admin ===

impl Admin {
    /// Answers requests until the future is dropped.
    pub async fn serve(self: Arc<Self>, listener: Arc<AdminListener>) {
        loop {
            match listener.0.accept().await {
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
        let credentials = match stream.peer_cred() {
            Ok(credentials) => credentials,
            Err(error) => {
                tracing::warn!(%error, "Admin request refused: credentials of the peer are unknown");
                return;
            }
        };
        let peer = peer(credentials);
        // Regardless of the socket's mode.
        let is_allowed = [0, nix::unistd::geteuid().as_raw()].contains(&credentials.uid());
        if is_allowed {
            tracing::debug!(peer, "Admin request");
        } else {
            tracing::warn!(peer, "Admin request refused: the user is neither root nor the agent's");
        }
        let service = service_fn(async |request| {
            let answer = if is_allowed {
                self.answer(request, credentials).await
            } else {
                let why = format!("only root may send requests, not {peer}: run this command as root");
                Err(Refused(StatusCode::FORBIDDEN, why))
            };
            Ok::<_, Infallible>(answer.unwrap_or_else(|Refused(code, why)| error(code, &why)))
        });
        if let Err(error) = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await
        {
            tracing::debug!(%error, "Admin connection failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>, credentials: UCred) -> Answer {
        let no_pods = || not_found("this agent takes no pods down: it runs with --mode never");
        let pods = || self.pods.as_ref().ok_or_else(no_pods);
        match *request.method() {
            Method::POST => return command(pods()?, request, credentials).await,
            Method::GET => {}
            _ => {
                let why = "only GET and POST are answered here".to_owned();
                return Err(Refused(StatusCode::METHOD_NOT_ALLOWED, why));
            }
        }
        let query = request.uri().query();
        match request.uri().path() {
            STATUS => json_answer(&self.report().await.ok_or_else(agent_stopping)?),
            holds::HOLDS => holds::list(pods()?).await,
            why::WHY => why::answer(self, query).await,
            plan::PLAN => plan::answer(pods()?, query).await,
            report::REPORT => report::answer(pods()?, query).await,
            collector::STATUS => collector::status(self.gc.as_ref()),
            collector::GRAPH => collector::graph(self.gc.as_ref(), query),
            path => match (path.strip_prefix(stop::OUTCOMES), path.strip_prefix(TIMELINES)) {
                (Some(uid), _) => stop::outcome(pods()?, uid, query).await,
                (_, Some(pod)) => timelines::answer(pods()?, pod).await,
                (None, None) => Err(not_found(
                    "there are /v1/status, /v1/timelines, /v1/timelines/NAMESPACE/NAME, /v1/why, /v1/plan, /v1/report, /v1/outcomes/UID, /v1/holds, /v1/gc/status and /v1/gc/graph",
                )),
            },
        }
    }
}

/// The user of a client, for records that outlive its process.
fn user(credentials: UCred) -> String {
    match credentials.uid() {
        0 => "root".to_owned(),
        uid => format!("uid {uid}"),
    }
}

/// User and process of a client.
fn peer(credentials: UCred) -> String {
    let pid = credentials
        .pid()
        .map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    format!("{}, pid {pid}", user(credentials))
}

/// Performs the command of a POST request. A client that disconnects interrupts only a handover: what is done has to be logged.
async fn command(pods: &PodsAdmin, request: Request<Incoming>, credentials: UCred) -> Answer {
    if pods.guard.only_observes {
        return Err(Refused(StatusCode::CONFLICT, Blocked::OnlyObserves.to_string()));
    }
    let path = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    let body = body.map_err(|cause| bad_request(format!("the body cannot be read: {cause}")))?;
    let (pods, body) = (pods.clone(), body.to_bytes());
    let span = tracing::error_span!("admin", peer = peer(credentials));
    if path == handover::HANDOVER {
        return handover::perform(&pods, &body).instrument(span).await;
    }
    let command = async move {
        let answer = match &*path {
            holds::APPROVE => holds::approve(&pods, &body, user(credentials)).await,
            pause::PAUSE => pause::pause(&pods, &body, &user(credentials)).await,
            pause::RESUME => pause::resume(&pods).await,
            path => stop::request(&pods, path, &body).await,
        };
        if let Err(Refused(_, why)) = &answer {
            tracing::warn!(path, why, "Admin request refused");
        }
        answer
    };
    let performed = tokio::spawn(command.instrument(span)).await;
    performed.map_err(|panic| Refused(StatusCode::INTERNAL_SERVER_ERROR, panic.to_string()))?
}
