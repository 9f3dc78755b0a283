//! Requests about objects of any kind, of which only the metadata matters.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::sleep;

use super::{
    ApiError,
    answer::{in_time, read},
    cluster::{Cluster, StoreFollowed},
    connection::REQUEST_TIMEOUT,
    credentials::Credentials,
    event::EventWrite,
    expiry::is_soon,
    lanes::{Ask, Lanes},
    proven::retry_after,
    review,
};
use crate::node::effects::Effects;

/// What an answer to a question about one object may look like.
const OBJECT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const JSON: &str = "application/json";
/// The API server allows 100 requests at once over one connection, and a watch lasts.
const WATCHES_ON_ONE: usize = 64;
/// Whoever has renewed credentials sees it told soon.
const LOOK_FOR_RENEWED_EVERY: Duration = Duration::from_secs(20);
/// Connections for writes.
const FOR_WRITES: usize = 2;

/// Which connection a request goes over: nobody waits behind watches, and writes not behind lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// For questions about single objects.
    Question,
    /// For whose turn it is, which must not wait behind anything.
    Election,
    /// For one of many writes.
    Write(usize),
    /// For lists and the watch of the kind with this number.
    Kind(usize),
}

/// A client with the collector's own identity.
#[derive(Clone)]
pub struct MetadataClient {
    credentials: Arc<Credentials<Arc<Lanes>>>,
    cluster: Arc<Cluster>,
    effects: Effects,
}

/// An answer, whole.
#[derive(Debug)]
pub struct Document {
    /// Type of the body.
    pub content_type: String,
    /// What to show the next time, to be told only of changes.
    pub etag: Option<String>,
    /// The body.
    pub body: Bytes,
}

/// An answer that comes in pieces.
#[derive(Debug)]
pub struct Pieces {
    /// It is protobuf; else JSON.
    pub is_protobuf: bool,
    verb: &'static str,
    path: String,
    body: Incoming,
}

/// What became of a write.
#[derive(Debug)]
pub enum Written {
    /// The server has done it, and answered so.
    Done(Bytes),
    /// A dry run kept it back.
    Withheld,
}

// === impl Lane ===

impl Lane {
    fn number(self) -> usize {
        match self {
            Self::Question => 0,
            Self::Election => 1,
            Self::Write(number) => 2 + number % FOR_WRITES,
            Self::Kind(number) => 2 + FOR_WRITES + number / WATCHES_ON_ONE,
        }
    }
}

// === impl MetadataClient ===

impl MetadataClient {
    /// When the credentials end, where they tell.
    pub fn credentials_end(&self) -> Option<Timestamp> {
        self.credentials.end()
    }

    /// Goes on for ever. Credentials that are about to end are good until then: without this, who has renewed their file
    /// would be warned all the same.
    pub async fn follow_renewals(&self) {
        loop {
            sleep(LOOK_FOR_RENEWED_EVERY).await;
            if self.credentials_end().is_some_and(|end| is_soon(end, Timestamp::now())) {
                self.credentials.follow_files().await;
            }
        }
    }

    /// A client with the identity in `config`, which was read from `kubeconfig`.
    pub fn new(config: &kube::Config, kubeconfig: PathBuf, effects: Effects) -> Result<Self, kube::Error> {
        let cluster = Arc::new(Cluster::default());
        let same = Arc::clone(&cluster);
        let make = move |config: &kube::Config| Lanes::new(config, Arc::clone(&same)).map(Arc::new);
        Ok(Self {
            credentials: Arc::new(Credentials::new(
                config,
                kubeconfig,
                Arc::new(make),
                effects.blocking(),
            )?),
            cluster,
            effects,
        })
    }

    /// The gate that writes pass.
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// From now on, and as long as what is returned is held, no connection is used that leads to an older state of the store
    /// than was seen before.
    pub fn follow_store(&self) -> StoreFollowed {
        self.cluster.follow_store()
    }

    /// How far the store was seen to be, to be taken before it is asked.
    pub fn store_was_at(&self) -> Option<u64> {
        self.cluster.store_was_at()
    }

    /// A list of namespaces shows the store at this version; it was at `before` when it was asked.
    pub fn store_is_at(&self, version: u64, before: Option<u64>) {
        if let Err(why) = self.cluster.store_is_at(version, before) {
            tracing::warn!(why, "The API server shows an older state");
        }
    }

    /// A document, or nothing if it is still the one with this tag.
    pub async fn document(
        &self,
        path: &str,
        accept: &'static str,
        etag: Option<&str>,
    ) -> Result<Option<Document>, ApiError> {
        let ask = Ask {
            etag,
            ..Ask::get("GET", path, accept)
        };
        in_time(REQUEST_TIMEOUT, "GET", path, async {
            let response = self.begun(Lane::Question, &ask).await?;
            if response.status() == StatusCode::NOT_MODIFIED {
                return Ok(None);
            }
            let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            let (content_type, etag) = (text(header::CONTENT_TYPE), text(header::ETAG));
            Ok(Some(Document {
                content_type: content_type.unwrap_or_default().to_owned(),
                etag: etag.map(str::to_owned),
                body: whole("GET", path, response).await?,
            }))
        })
        .await
    }

    /// Begins to read what comes in pieces.
    pub async fn pieces(
        &self,
        lane: Lane,
        verb: &'static str,
        path: &str,
        accept: &'static str,
    ) -> Result<Pieces, ApiError> {
        let ask = Ask::get(verb, path, accept);
        let response = in_time(REQUEST_TIMEOUT, verb, path, self.begun(lane, &ask)).await?;
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        Ok(Pieces {
            is_protobuf: content_type.starts_with("application/vnd.kubernetes.protobuf"),
            verb,
            path: path.to_owned(),
            body: response.into_body(),
        })
    }

    /// One object; its metadata at least.
    pub async fn object(&self, path: &str) -> Result<Value, ApiError> {
        self.json(Lane::Question, path, OBJECT).await
    }

    /// What is there in JSON, as `accept` names it.
    pub async fn json(&self, lane: Lane, path: &str, accept: &'static str) -> Result<Value, ApiError> {
        let body = self.collected(lane, Ask::get("GET", path, accept)).await?;
        read("GET", path, &body)
    }

    /// Changes something, if effects may happen. What a dry run keeps back is for the caller to tell.
    pub async fn write(
        &self,
        lane: usize,
        verb: &'static str,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Written, ApiError> {
        let allowed = self.effects.allow_unlogged();
        if !allowed.map_err(|held| ApiError::held(verb, path, held.reason))? {
            tracing::debug!(verb, path, "Dry run: not sent");
            return Ok(Written::Withheld);
        }
        self.question(Lane::Write(lane), verb, path, content_type, body)
            .await
            .map(Written::Done)
    }

    /// Records an event, or that it happened again.
    pub async fn record(&self, event: EventWrite) -> Result<(), ApiError> {
        let (verb, path, content_type, body) = event.parts();
        self.write(0, verb, &path, content_type, body).await.map(drop)
    }

    /// Sends a body that changes nothing, or only what this agent itself keeps at the server.
    pub async fn question(
        &self,
        lane: Lane,
        verb: &'static str,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Bytes, ApiError> {
        let ask = Ask {
            content_type: Some(content_type),
            body,
            ..Ask::get(verb, path, OBJECT)
        };
        self.collected(lane, ask).await
    }

    /// Asks whether this identity may do something.
    pub async fn may(&self, attributes: &Value) -> Result<bool, ApiError> {
        let ask = Ask {
            content_type: Some(JSON),
            body: review::of(attributes),
            ..Ask::get("POST", review::PATH, JSON)
        };
        let answer = self.collected(Lane::Question, ask).await?;
        read("POST", review::PATH, &answer).map(|review| review::is_granted(&review))
    }

    async fn collected(&self, lane: Lane, ask: Ask<'_>) -> Result<Bytes, ApiError> {
        let (verb, path) = (ask.verb, ask.path);
        // Boxed, since a request takes a kilobyte while it goes on.
        let answer = Box::pin(async move {
            let response = self.begun(lane, &ask).await?;
            whole(verb, path, response).await
        });
        in_time(REQUEST_TIMEOUT, verb, path, answer).await
    }

    async fn begun(&self, lane: Lane, ask: &Ask<'_>) -> Result<Response<Incoming>, ApiError> {
        let lanes = self.credentials.sender();
        match lanes.send(lane.number(), ask).await {
            Ok(response) if response.status().is_success() || response.status() == StatusCode::NOT_MODIFIED => {
                Ok(response)
            }
            // Boxed, since it is rare, and every request would have to hold the place for it.
            failed => Err(Box::pin(self.failed(ask.verb, ask.path, failed)).await),
        }
    }

    async fn failed(&self, verb: &'static str, path: &str, response: Result<Response<Incoming>, ApiError>) -> ApiError {
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                match &error {
                    ApiError::Unproven { code: Some(401), .. } => self.credentials.renew().await,
                    _ => self.credentials.follow_files().await,
                }
                return error;
            }
        };
        let (code, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
        if code == 401 {
            self.credentials.renew().await;
        }
        let body = whole(verb, path, response).await.unwrap_or_default();
        ApiError::refused(verb, path, code, retry_after, &body)
    }
}

async fn whole(verb: &'static str, path: &str, response: Response<Incoming>) -> Result<Bytes, ApiError> {
    let body = response.into_body().collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|error| ApiError::unreachable(verb, path, &error))
}

// === impl Pieces ===

impl Pieces {
    /// The next piece, which has to come within `patience`; `None` at the end.
    pub async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, ApiError> {
        loop {
            let frame = async { Ok(self.body.frame().await) };
            let Some(frame) = in_time(patience, self.verb, &self.path, frame).await? else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| ApiError::unreachable(self.verb, &self.path, &error))?;
            if let Ok(piece) = frame.into_data() {
                return Ok(Some(piece));
            }
        }
    }

    /// It cannot be read, because of this.
    pub fn unreadable(&self, cause: impl std::fmt::Display) -> ApiError {
        ApiError::unreadable(self.verb, &self.path, cause)
    }
}
