//! Requests for the metadata of objects of any kind.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, future::join_all};
use http::{Response, header};
use http_body_util::{BodyDataStream, BodyExt as _};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::{
    ApiError,
    cluster::{self, Cluster, StoreFollower},
    connection_pool::{Evidence, JSON, RequestParts},
    dial::Dial,
    error::read,
    http2::LastReceived,
    requests::{EventWrite, Requests, with_timeout},
};
use crate::node::effects::Effects;

/// Accept header of a request for one object.
const OBJECT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
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
    requests: Arc<Requests>,
    cluster: Arc<Cluster>,
    effects: Effects,
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
    body: BodyDataStream<Incoming>,
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
    /// When the credentials expire, if they show it.
    pub fn credentials_expiry(&self) -> Option<Timestamp> {
        self.requests.credentials.pool().expires_at
    }

    /// Never returns. Reads the credentials again when their files change: while the old ones still work, no refusal would
    /// trigger it.
    pub async fn reload_changed_credentials(&self) {
        loop {
            // At once, too: the first read makes new connections, before any watch is open.
            self.requests.credentials.reload_if_changed().await;
            sleep(RELOAD_INTERVAL).await;
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
        let evidence = Evidence::Cluster(Arc::clone(&cluster));
        let requests = Requests::new(config, kubeconfig, evidence, dial, effects.blocking())?;
        Ok(Self {
            requests: Arc::new(requests),
            cluster,
            effects,
        })
    }

    /// While the returned value exists, no connection is used that shows an older state of the store than an earlier one.
    pub fn follow_store(&self) -> StoreFollower {
        self.cluster.follow_store()
    }

    /// Checks that the server shows the same cluster as before, and no older state of its store.
    pub async fn check_store(&self) -> Result<(), ApiError> {
        let before = self.cluster.last_store_version();
        let list = RequestParts::get("GET", cluster::PATH, JSON);
        let list = self.requests.fetch(Lane::Get.number(), list).await?;
        self.cluster.check(&list, before)
    }

    /// A document; with the status 304 and without a body if it still has this etag.
    pub async fn document(
        &self,
        path: &str,
        accept: &'static str,
        etag: Option<&str>,
    ) -> Result<Response<Bytes>, ApiError> {
        let parts = RequestParts {
            etag,
            ..RequestParts::get("GET", path, accept)
        };
        self.requests.fetch_whole(Lane::Get.number(), parts).await
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
        let (response, last_received) = self.requests.start(lane.number(), &parts).await?;
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        Ok(AnswerStream {
            is_protobuf: content_type.starts_with("application/vnd.kubernetes.protobuf"),
            last_received,
            verb,
            path: path.to_owned(),
            body: response.into_body().into_data_stream(),
        })
    }

    /// One object, with at least its metadata.
    pub async fn object(&self, path: &str) -> Result<Value, ApiError> {
        self.json(Lane::Get, path, OBJECT).await
    }

    /// The JSON of a GET with this accept header.
    pub async fn json<T: DeserializeOwned>(&self, lane: Lane, path: &str, accept: &'static str) -> Result<T, ApiError> {
        let parts = RequestParts::get("GET", path, accept);
        read("GET", path, &self.requests.fetch(lane.number(), parts).await?)
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
        allowed.map_err(|held| ApiError::blocked(verb, path, held.to_string()))?;
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
        self.requests.fetch(lane.number(), parts).await
    }

    /// Whether this identity may do something (SelfSubjectAccessReview).
    pub async fn is_allowed(&self, attributes: &Value) -> Result<bool, ApiError> {
        self.requests.is_allowed(attributes).await
    }

    /// Requests something small over each connection with watches of kinds below this number, so that it receives an answer.
    pub async fn probe_watch_connections(&self, kinds: usize) {
        let numbers = (0..kinds).step_by(WATCHES_PER_CONNECTION);
        let probe = |number| self.json::<IgnoredAny>(Lane::Kind(number), "/version", JSON);
        let probes = numbers.map(|number| timeout(PROBE_TIMEOUT, probe(number)));
        join_all(probes).await;
    }
}

// === impl AnswerStream ===

impl AnswerStream {
    /// The next piece, within `timeout`; `None` at the end.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Bytes>, ApiError> {
        let chunk = async { Ok(self.body.next().await.transpose()) };
        let chunk = with_timeout(timeout, self.verb, &self.path, chunk).await?;
        chunk.map_err(|error| ApiError::unreachable(self.verb, &self.path, &error))
    }

    /// The answer cannot be decoded.
    pub fn unreadable(&self, cause: impl std::fmt::Display) -> ApiError {
        ApiError::unreadable(self.verb, &self.path, cause)
    }
}
