//! The admin socket: HTTP over a Unix socket, for the verbs of this program and for curl.

pub mod collector;
pub mod handover;
pub mod holds;
pub mod pause;
mod peer;
pub mod plan;
pub mod report;
mod respond;
pub mod socket;
mod state;
pub mod stop;
pub mod timelines;
pub mod version;
pub mod why;

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::handover::guard::ONLY_OBSERVES;

pub(crate) use self::respond::{json_answer, response};
use self::{
    peer::Peer,
    respond::{agent_stopping, error, pods_disabled},
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
            match listener.accept().await {
                Ok(stream) => {
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
        let peer = match stream.peer_cred() {
            Ok(credentials) => Peer::from(credentials),
            Err(error) => {
                tracing::warn!(%error, "Admin request refused: credentials of the peer are unknown");
                return;
            }
        };
        let is_allowed = peer.is_allowed();
        if is_allowed {
            tracing::debug!(peer = peer.to_string(), "Admin request");
        } else {
            tracing::warn!(
                peer = peer.to_string(),
                "Admin request refused: the user is neither root nor the agent's"
            );
        }
        let service = service_fn(async |request| {
            if is_allowed {
                self.answer(request, peer).await
            } else {
                Ok(error(
                    StatusCode::FORBIDDEN,
                    &format!("only root may send requests, not {peer}: run this command as root"),
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

    async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Result<Response<Full<Bytes>>, Infallible> {
        match (request.method(), &self.pods) {
            (&Method::POST, Some(pods)) if pods.guard.only_observes() => {
                return Ok(error(StatusCode::CONFLICT, ONLY_OBSERVES));
            }
            (&Method::POST, Some(pods)) => return Ok(command(pods, request, peer).await),
            (&Method::POST, None) => return Ok(pods_disabled()),
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
                None => pods_disabled(),
            });
        }
        if path == version::VERSION {
            return Ok(version::answer(self).await);
        }
        if path == why::WHY {
            return Ok(why::answer(self, request.uri().query()).await);
        }
        if path == plan::PLAN {
            return Ok(match &self.pods {
                Some(pods) => plan::answer(pods, request.uri().query()).await,
                None => pods_disabled(),
            });
        }
        if path == report::REPORT {
            return Ok(match &self.pods {
                Some(pods) => report::answer(pods, request.uri().query()).await,
                None => pods_disabled(),
            });
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
                None => pods_disabled(),
            });
        }
        if let Some(pod) = path.strip_prefix(TIMELINES) {
            return Ok(match &self.pods {
                Some(pods) => timelines::answer(pods, pod).await,
                None => pods_disabled(),
            });
        }
        Ok(error(
            StatusCode::NOT_FOUND,
            "there are /v1/status, /v1/version, /v1/timelines, /v1/timelines/NAMESPACE/NAME, /v1/why, /v1/plan, /v1/report, /v1/outcomes/UID, /v1/holds, /v1/gc/status and /v1/gc/graph",
        ))
    }

    async fn status(&self) -> Response<Full<Bytes>> {
        match self.report().await {
            Some(report) => json_answer(&report),
            None => agent_stopping(),
        }
    }
}

/// Performs the command of a POST request.
async fn command(pods: &PodsAdmin, request: Request<Incoming>, peer: Peer) -> Response<Full<Bytes>> {
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
        pause::pause(pods, &body, peer).await
    } else if path == pause::RESUME {
        pause::resume(pods, peer).await
    } else {
        stop::request(pods, &path, &body, peer).await
    }
}
