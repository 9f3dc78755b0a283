//! HTTP/2 connections, opened on demand and shared by many requests. A new connection first shows that it leads to the right
//! cluster: between two connections an address may change to another one, and an answer of one cluster proves nothing about
//! another's objects. Within a connection, only a proxy that terminates TLS could change it, and UIDs would not match.
//!
//! It is no pool of a library: those hand a connection out before a request over it has proven anything, and open one HTTP/2
//! connection for each server, while a server allows 100 streams over it, and the collector needs more.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::client::ConfigExt as _;
use parking_lot::Mutex;
use tokio::time::timeout;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn, util::BoxCloneSyncService};

use super::{
    ApiError, USER_AGENT,
    cluster::{self, Cluster},
    dial::{Dial, OPEN_TIMEOUT, Transport, transport},
    error::read,
    expiry::Expiry,
    http2::{LastReceived, Sender, connect},
};

/// Limit of the answer to a proof in bytes. A Node has some ten thousand.
const MAX_ANSWER: usize = 8 << 20;
/// Limit of the proof. A busy server queues requests.
const PROOF_TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const JSON: &str = "application/json";

/// Checks the server's answer to a GET of this agent's Node. An error forbids requests over the connection.
pub type Proof = Arc<dyn Fn(Result<Node, ApiError>) -> BoxFuture<'static, Result<(), ApiError>> + Send + Sync>;

/// What a new connection has to show before any other request.
#[derive(Clone)]
pub(super) enum Evidence {
    /// The Node at this path, which passes the proof.
    Node(String, Proof),
    /// The same cluster as all others, and a store that was not restored to an older state.
    Cluster(Arc<Cluster>),
}

/// Sends a request over the [`Sender`] in its extensions.
type SendService = BoxCloneSyncService<Request<Full<Bytes>>, Response<Incoming>, BoxError>;

/// A connection, once it is proven.
type Connection = tokio::sync::Mutex<Option<(Sender, LastReceived)>>;

/// Connections by number. A request waits while the server allows no more over its connection.
pub(super) struct ConnectionPool {
    server: Uri,
    connector: HttpsConnector<Transport>,
    service: SendService,
    evidence: Evidence,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// When the credentials expire, if they show it.
    pub expires_at: Option<Timestamp>,
}

/// An answer that has started, and when its connection last received something.
pub(super) type Answer = (Response<Incoming>, LastReceived);

/// A request.
pub(super) struct RequestParts<'a> {
    /// The API server's verb: `LIST` and `WATCH` differ from `GET`.
    pub verb: &'static str,
    /// Path and query.
    pub path: &'a str,
    /// Accept header.
    pub accept: &'static str,
    /// etag of the known answer.
    pub etag: Option<&'a str>,
    /// Type of the body.
    pub content_type: Option<&'static str>,
    pub body: Bytes,
}

// === impl ConnectionPool ===

impl ConnectionPool {
    /// A pool without open connections. `dial`, if given, opens them.
    pub fn new(config: &kube::Config, evidence: Evidence, dial: Option<Dial>) -> Result<Self, kube::Error> {
        let mut connector = HttpsConnectorBuilder::new()
            .with_tls_config(config.rustls_client_config()?)
            .https_or_http();
        if let Some(name) = config.tls_server_name.clone() {
            let name = name.try_into();
            let name = name.map_err(|error| kube::Error::Service(Box::new(error)))?;
            connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        Ok(Self {
            server: config.cluster_url.clone(),
            connector: connector.enable_http2().wrap_connector(transport(dial)),
            service: send_service(config)?,
            evidence,
            connections: Mutex::default(),
            // `check` and the server report unreadable ones.
            expires_at: Expiry::of_config(config).ok().flatten().map(|expiry| expiry.expires_at),
        })
    }

    /// Sends a request, and returns the answer when it starts.
    pub async fn send(&self, lane: usize, parts: &RequestParts<'_>) -> Result<Answer, ApiError> {
        let sent = async {
            let (sender, last_received) = self.open(lane).await?;
            Ok((self.send_over(sender, parts).await?, last_received))
        };
        let not_sent = |error: BoxError| ApiError::not_sent(parts.verb, parts.path, error);
        sent.await.map_err(not_sent)
    }

    /// The open connection with this number. If there is none, it is opened and proven, and other callers wait.
    ///
    /// # Errors
    /// If the connection cannot be opened or proven in time, or the server does not speak HTTP/2. It is not kept then.
    async fn open(&self, number: usize) -> Result<(Sender, LastReceived), BoxError> {
        let connection = {
            let mut connections = self.connections.lock();
            let len = connections.len().max(number + 1);
            connections.resize_with(len, Arc::default);
            Arc::clone(&connections[number])
        };
        let mut open = connection.lock().await;
        if let Some(known) = open.as_ref().filter(|(sender, _)| !sender.is_closed()) {
            return Ok(known.clone());
        }
        *open = None;
        // Boxed: it is rare, and each request's future would have to hold the space for it.
        let opening = Box::pin(async {
            let opened = timeout(OPEN_TIMEOUT, connect(&self.connector, &self.server)).await;
            let opened = opened.map_err(|_| format!("no connection within {OPEN_TIMEOUT:?}"))??;
            let proven = timeout(PROOF_TIMEOUT, self.prove(opened.0.clone())).await;
            proven.map_err(|_| format!("no proof within {PROOF_TIMEOUT:?}"))??;
            Ok::<_, BoxError>(opened)
        });
        Ok(open.insert(opening.await?).clone())
    }

    async fn send_over(&self, sender: Sender, parts: &RequestParts<'_>) -> Result<Response<Incoming>, BoxError> {
        let mut request = parts.request()?;
        request.extensions_mut().insert(sender);
        // Boxed, so that it does not enlarge every request's future.
        Box::pin(self.service.clone().oneshot(request)).await
    }

    async fn prove(&self, sender: Sender) -> Result<(), BoxError> {
        let (path, before) = match &self.evidence {
            Evidence::Node(path, _) => (path.as_str(), None),
            Evidence::Cluster(cluster) => (cluster::PATH, cluster.last_store_version()),
        };
        let request = RequestParts::get("GET", path, JSON);
        let (head, body) = self.send_over(sender, &request).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
        let answer = match head.status.is_success() {
            true => Ok(body),
            false => Err(ApiError::from_answer("GET", path, &head, &body)),
        };
        match &self.evidence {
            Evidence::Node(_, proof) => proof(answer.and_then(|node| read("GET", path, &node))).await?,
            Evidence::Cluster(cluster) => cluster.check(&answer?, before)?,
        }
        Ok(())
    }
}

// === impl RequestParts ===

impl<'a> RequestParts<'a> {
    /// A request without a body.
    pub fn get(verb: &'static str, path: &'a str, accept: &'static str) -> Self {
        Self {
            verb,
            path,
            accept,
            etag: None,
            content_type: None,
            body: Bytes::new(),
        }
    }

    fn request(&self) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::new(Full::new(self.body.clone()));
        let headers = request.headers_mut();
        headers.insert(header::USER_AGENT, USER_AGENT);
        headers.insert(header::ACCEPT, HeaderValue::from_static(self.accept));
        if let Some(content_type) = self.content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(etag) = self.etag {
            headers.insert(header::IF_NONE_MATCH, etag.try_into()?);
        }
        *request.method_mut() = match self.verb {
            "LIST" | "WATCH" => Method::GET,
            verb => verb.try_into()?,
        };
        *request.uri_mut() = self.path.try_into()?;
        Ok(request)
    }
}

/// Adds the server's URL and the headers of the client's identity.
fn send_service(config: &kube::Config) -> Result<SendService, kube::Error> {
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(service_fn(async |mut request: Request<Full<Bytes>>| {
            let sender = request.extensions_mut().remove::<Sender>();
            let mut sender = sender.ok_or("a request without a connection")?;
            Ok::<_, BoxError>(sender.send_request(request).await?)
        }));
    Ok(BoxCloneSyncService::new(service))
}
