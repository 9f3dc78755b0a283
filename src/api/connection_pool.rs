//! HTTP/2 connections, opened on demand and shared by many requests. A new connection first shows that it leads to the same
//! cluster as all others, since an answer of one cluster proves nothing about another's objects. It also shows that the store
//! was not restored to an older state, if there is a [`StoreFollower`](super::cluster::StoreFollower).

use std::{
    num::ParseIntError,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use serde::Deserialize;
use tower::BoxError;

use super::{
    ApiError, USER_AGENT,
    cluster::Cluster,
    dial::{Dial, Transport},
    error::ProofError,
    http2::{self, Http2, LastReceived, Open, connector},
    identity::Identity,
    node_proof::retry_after,
};

/// Flow control windows in bytes: of a stream, and of a connection.
const WINDOWS: (u32, u32) = (256 << 10, 1 << 20);
/// The UID of this namespace identifies the cluster. A list also has the store's resourceVersion.
const PATH: &str = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system";
const MAX_ANSWER: usize = 1 << 20;
const VERB: &str = "GET";

type Sender = http2::Sender<Full<Bytes>>;
type Http2Connection = Http2<Full<Bytes>>;

/// Connections by number. A request waits while the server allows no more over its connection.
pub(super) struct ConnectionPool {
    server: Uri,
    /// Prefix of each request's path.
    base: String,
    connector: HttpsConnector<Transport>,
    identity: Identity,
    cluster: Arc<Cluster>,
    connections: Mutex<Vec<Arc<Http2Connection>>>,
}

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

#[derive(Deserialize)]
struct NamespaceList {
    metadata: ListMetadata,
    items: Vec<Namespace>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

#[derive(Deserialize)]
struct Namespace {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
}

// === impl ConnectionPool ===

impl ConnectionPool {
    /// A pool without open connections. `dial`, if given, opens them.
    pub fn new(config: &kube::Config, cluster: Arc<Cluster>, dial: Option<Dial>) -> Result<Self, kube::Error> {
        Ok(Self {
            base: base(&config.cluster_url),
            server: config.cluster_url.clone(),
            connector: connector(config)?.enable_http2().wrap_connector(Transport::new(dial)),
            identity: Identity::new(config)?,
            cluster,
            connections: Mutex::default(),
        })
    }

    /// Sends a request; returns the response when it starts, and when its connection last received something.
    pub async fn send(
        &self,
        lane: usize,
        parts: &RequestParts<'_>,
    ) -> Result<(Response<Incoming>, LastReceived), ApiError> {
        let sent = async {
            let open = self.lane(lane).open(|sender| self.prove(sender)).await?;
            let Open { sender, last_received } =
                open.ok_or("the server, or a proxy before it, does not speak HTTP/2")?;
            Ok((self.send_over(sender, parts).await?, last_received))
        };
        sent.await
            .map_err(|error: BoxError| ApiError::not_sent(parts.verb, parts.path, &*error))
    }

    fn lane(&self, number: usize) -> Arc<Http2Connection> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        while connections.len() <= number {
            let lane = Http2Connection::new(self.connector.clone(), self.server.clone(), Some(WINDOWS));
            connections.push(Arc::new(lane));
        }
        Arc::clone(&connections[number])
    }

    async fn send_over(&self, mut sender: Sender, parts: &RequestParts<'_>) -> Result<Response<Incoming>, BoxError> {
        let identity = self.identity.headers().await?;
        Ok(sender.send_request(parts.request(&self.base, identity)?).await?)
    }

    async fn prove(&self, sender: Sender) -> Result<(), BoxError> {
        let parts = RequestParts::get(VERB, PATH, "application/json");
        let before = self.cluster.last_store_version();
        let (head, body) = self.send_over(sender, &parts).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
        if !head.status.is_success() {
            let retry_after = retry_after(&head.headers);
            let refused = ApiError::refused(VERB, PATH, head.status.as_u16(), retry_after, &body);
            return Err(ProofError(refused).into());
        }
        let unreadable = |error: &dyn std::fmt::Display| format!("{VERB} {PATH}: {error}");
        let list: NamespaceList = serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
        let [namespace] = &*list.items else {
            return Err(unreadable(&"it does not show the one namespace").into());
        };
        let version = list.metadata.resource_version.parse();
        let version = version.map_err(|error: ParseIntError| unreadable(&error))?;
        let checked = self.cluster.check_uid(&namespace.metadata.uid);
        let checked = checked.and_then(|()| self.cluster.record_store_version(version, before));
        Ok(checked.map_err(|cause| ProofError(ApiError::blocked(VERB, PATH, cause)))?)
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

    fn request(&self, base: &str, mut headers: HeaderMap) -> Result<Request<Full<Bytes>>, http::Error> {
        headers.insert(header::USER_AGENT, USER_AGENT);
        headers.insert(header::ACCEPT, HeaderValue::from_static(self.accept));
        if let Some(content_type) = self.content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(etag) = self.etag {
            headers.insert(header::IF_NONE_MATCH, etag.try_into()?);
        }
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = match self.verb {
            "LIST" | "WATCH" => Method::GET,
            verb => verb.try_into()?,
        };
        *request.uri_mut() = format!("{base}{}", self.path).try_into()?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// The server's URL without a trailing slash.
fn base(server: &Uri) -> String {
    let scheme = server.scheme_str().unwrap_or("https");
    let authority = server.authority().map_or("", |authority| authority.as_str());
    format!("{scheme}://{authority}{}", server.path().trim_end_matches('/'))
}
