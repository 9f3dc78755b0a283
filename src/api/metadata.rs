//! Requests for the metadata of objects of any kind.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::{
    ApiError,
    answer::{read, with_timeout},
    cluster::{Cluster, StoreFollower},
    connection_pool::{ConnectionPool, RequestParts},
    credentials::Credentials,
    dial::Dial,
    durations::{RequestDurations, RequestLabels},
    event::EventWrite,
    expiry::expires_soon,
    http2::LastReceived,
    node_proof::retry_after,
    review,
};
use crate::{histogram::Snapshot, node::effects::Effects};

/// Accept header of a request for one object.
const OBJECT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const JSON: &str = "application/json";
/// Watches over one connection. The API server allows 100 concurrent streams per HTTP/2 connection.
const WATCHES_PER_CONNECTION: usize = 64;
/// Limit of a probe. The pings of a connection that does not answer take longer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks for renewed credentials.
const RELOAD_INTERVAL: Duration = Duration::from_secs(20);
/// Number of connections for writes.
const WRITE_CONNECTIONS: usize = 2;

/// Selects the connection of a request, so that none waits behind watches and no write behind lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Requests for single objects.
    Get,
    /// Leader election, which must not wait behind other requests.
    Election,
    /// A write; the number spreads writes over connections.
    Write(usize),
    /// Lists and the watch of the kind with this number.
    Kind(usize),
}

/// A client with the collector's identity.
#[derive(Clone)]
pub struct MetadataClient {
    credentials: Arc<Credentials<Arc<ConnectionPool>>>,
    cluster: Arc<Cluster>,
    effects: Effects,
    durations: Arc<RequestDurations>,
}

/// A whole answer.
#[derive(Debug)]
pub struct Document {
    /// Type of the body.
    pub content_type: String,
    /// For the next request, which then returns only a change.
    pub etag: Option<String>,
    /// The body.
    pub body: Bytes,
}

/// An answer that is read in pieces.
#[derive(Debug)]
pub struct AnswerStream {
    /// Protobuf, else JSON.
    pub is_protobuf: bool,
    /// When its connection last received something.
    pub last_received: LastReceived,
    verb: &'static str,
    path: String,
    body: Incoming,
}

// === impl Lane ===

impl Lane {
    fn number(self) -> usize {
        match self {
            Self::Get => 0,
            Self::Election => 1,
            Self::Write(number) => 2 + number % WRITE_CONNECTIONS,
            Self::Kind(number) => 2 + WRITE_CONNECTIONS + number / WATCHES_PER_CONNECTION,
        }
    }
}

// === impl MetadataClient ===

impl MetadataClient {
    /// Durations of its requests by verb and result.
    pub fn request_durations(&self) -> Snapshot<RequestLabels> {
        self.durations.snapshot()
    }

    /// When the credentials expire, if they show it.
    pub fn credentials_expiry(&self) -> Option<Timestamp> {
        self.credentials.expires_at()
    }

    /// Never returns. Reads credentials that expire soon again when their file changes: they still work, so that no refusal
    /// would trigger it, and the warning would stay.
    pub async fn reload_expiring_credentials(&self) {
        loop {
            sleep(RELOAD_INTERVAL).await;
            if self
                .credentials_expiry()
                .is_some_and(|end| expires_soon(end, Timestamp::now()))
            {
                self.credentials.reload_if_changed().await;
            }
        }
    }

    /// A client with the identity in `config`, which was read from `kubeconfig`. `dial`, if given, opens the connections.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        effects: Effects,
        dial: Option<Dial>,
    ) -> Result<Self, kube::Error> {
        let cluster = Arc::new(Cluster::default());
        let shared_cluster = Arc::clone(&cluster);
        let build_pool = move |config: &kube::Config| {
            ConnectionPool::new(config, Arc::clone(&shared_cluster), dial.clone()).map(Arc::new)
        };
        Ok(Self {
            credentials: Arc::new(Credentials::new(
                config,
                kubeconfig,
                Arc::new(build_pool),
                effects.blocking(),
            )?),
            cluster,
            effects,
            durations: Arc::default(),
        })
    }

    /// The gate that writes pass.
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// While the returned value exists, no connection is used that shows an older state of the store than an earlier one.
    pub fn follow_store(&self) -> StoreFollower {
        self.cluster.follow_store()
    }

    /// Highest resourceVersion so far. To be read before a request.
    pub fn last_store_version(&self) -> Option<u64> {
        self.cluster.last_store_version()
    }

    /// Records the version of a list of namespaces; `before` is the highest version at the time of the request.
    pub fn record_store_version(&self, version: u64, before: Option<u64>) {
        if let Err(why) = self.cluster.record_store_version(version, before) {
            tracing::warn!(why, "The API server shows an older state");
        }
    }

    /// A document; `None` if it still has this etag.
    pub async fn document(
        &self,
        path: &str,
        accept: &'static str,
        etag: Option<&str>,
    ) -> Result<Option<Document>, ApiError> {
        let parts = RequestParts {
            etag,
            ..RequestParts::get("GET", path, accept)
        };
        let answer = async {
            let (response, _) = self.start(Lane::Get, &parts).await?;
            if response.status() == StatusCode::NOT_MODIFIED {
                return Ok(None);
            }
            let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            let (content_type, etag) = (text(header::CONTENT_TYPE), text(header::ETAG));
            Ok(Some(Document {
                content_type: content_type.unwrap_or_default().to_owned(),
                etag: etag.map(str::to_owned),
                body: read_body("GET", path, response).await?,
            }))
        };
        self.durations.observe_request("GET", path, answer).await
    }

    /// Starts a list or watch.
    pub async fn stream(
        &self,
        lane: Lane,
        verb: &'static str,
        path: &str,
        accept: &'static str,
    ) -> Result<AnswerStream, ApiError> {
        let parts = RequestParts::get(verb, path, accept);
        let start = self.start(lane, &parts);
        let (response, last_received) = self.durations.observe_request(verb, path, start).await?;
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        Ok(AnswerStream {
            is_protobuf: content_type.starts_with("application/vnd.kubernetes.protobuf"),
            last_received,
            verb,
            path: path.to_owned(),
            body: response.into_body(),
        })
    }

    /// One object, with at least its metadata.
    pub async fn object(&self, path: &str) -> Result<Value, ApiError> {
        self.json(Lane::Get, path, OBJECT).await
    }

    /// The JSON of a GET with this accept header.
    pub async fn json(&self, lane: Lane, path: &str, accept: &'static str) -> Result<Value, ApiError> {
        let body = self.fetch(lane, RequestParts::get("GET", path, accept)).await?;
        read("GET", path, &body)
    }

    /// Sends a write if the gate allows it. Returns the server's answer.
    pub async fn write(
        &self,
        lane: usize,
        verb: &'static str,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Bytes, ApiError> {
        let allowed = self.effects.check();
        allowed.map_err(|held| ApiError::blocked(verb, path, held.reason))?;
        self.send_ungated(Lane::Write(lane), verb, path, content_type, body)
            .await
    }

    /// Creates an event, or updates its count.
    pub async fn write_event(&self, event: EventWrite) -> Result<(), ApiError> {
        let (verb, path, content_type, body) = event.parts();
        self.write(0, verb, &path, content_type, body).await.map(drop)
    }

    /// Sends a body past the gate: a review, or this agent's own Lease.
    pub async fn send_ungated(
        &self,
        lane: Lane,
        verb: &'static str,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Bytes, ApiError> {
        let parts = RequestParts {
            content_type: Some(content_type),
            body,
            ..RequestParts::get(verb, path, OBJECT)
        };
        self.fetch(lane, parts).await
    }

    /// Whether this identity may do something (SelfSubjectAccessReview).
    pub async fn is_allowed(&self, attributes: &Value) -> Result<bool, ApiError> {
        let parts = RequestParts {
            content_type: Some(JSON),
            body: review::body(attributes),
            ..RequestParts::get("POST", review::PATH, JSON)
        };
        let answer = self.fetch(Lane::Get, parts).await?;
        read("POST", review::PATH, &answer).map(|review| review::is_granted(&review))
    }

    async fn fetch(&self, lane: Lane, parts: RequestParts<'_>) -> Result<Bytes, ApiError> {
        let (verb, path) = (parts.verb, parts.path);
        // Boxed, since the future takes a kilobyte.
        let answer = Box::pin(async move {
            let (response, _) = self.start(lane, &parts).await?;
            read_body(verb, path, response).await
        });
        self.durations.observe_request(verb, path, answer).await
    }

    async fn start(
        &self,
        lane: Lane,
        parts: &RequestParts<'_>,
    ) -> Result<(Response<Incoming>, LastReceived), ApiError> {
        let pool = self.credentials.sender();
        match pool.send(lane.number(), parts).await {
            Ok(answer) if answer.0.status().is_success() || answer.0.status() == StatusCode::NOT_MODIFIED => Ok(answer),
            // Boxed, so that the rare case does not enlarge every request's future.
            failed => {
                let failed = failed.map(|(response, _)| response);
                Err(Box::pin(self.request_error(parts.verb, parts.path, failed)).await)
            }
        }
    }

    /// Requests something small over each connection with watches of kinds below this number, so that it receives an answer.
    pub async fn probe_watch_connections(&self, kinds: usize) {
        let numbers = (0..kinds).step_by(WATCHES_PER_CONNECTION);
        let probes = numbers.map(|number| timeout(PROBE_TIMEOUT, self.json(Lane::Kind(number), "/version", JSON)));
        join_all(probes).await;
    }

    async fn request_error(
        &self,
        verb: &'static str,
        path: &str,
        response: Result<Response<Incoming>, ApiError>,
    ) -> ApiError {
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                match &error {
                    ApiError::UnverifiedServer { code: Some(401), .. } => self.credentials.reload_refused().await,
                    _ => self.credentials.reload_if_changed().await,
                }
                return error;
            }
        };
        let (code, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
        if code == 401 {
            self.credentials.reload_refused().await;
        }
        let body = read_body(verb, path, response).await.unwrap_or_default();
        ApiError::refused(verb, path, code, retry_after, &body)
    }
}

async fn read_body(verb: &'static str, path: &str, response: Response<Incoming>) -> Result<Bytes, ApiError> {
    let body = response.into_body().collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|error| ApiError::unreachable(verb, path, &error))
}

// === impl AnswerStream ===

impl AnswerStream {
    /// The next piece, within `timeout`; `None` at the end.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Bytes>, ApiError> {
        loop {
            let frame = async { Ok(self.body.frame().await) };
            let Some(frame) = with_timeout(timeout, self.verb, &self.path, frame).await? else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| ApiError::unreachable(self.verb, &self.path, &error))?;
            if let Ok(chunk) = frame.into_data() {
                return Ok(Some(chunk));
            }
        }
    }

    /// The answer cannot be decoded.
    pub fn unreadable(&self, cause: impl std::fmt::Display) -> ApiError {
        ApiError::unreadable(self.verb, &self.path, cause)
    }
}
