//! HTTP/2: many requests over few connections, which are opened when they are needed. Each shows, before anything else goes
//! over it, that it leads to the same cluster as all others: what one cluster shows proves nothing of another's objects. And
//! that the cluster's store was not put back to an older state, where somebody remembers what it held.

use std::{
    num::ParseIntError,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use serde::Deserialize;
use tower::BoxError;

use super::{
    ApiError, USER_AGENT,
    cluster::Cluster,
    error::Unproven,
    http2::{self, Http2, connector, tcp},
    identity::Identity,
    proven::retry_after,
};

/// Bytes that a server may send before they are read: of one answer, and of all over one connection.
const WINDOWS: (u32, u32) = (256 << 10, 1 << 20);
/// What tells clusters apart is the UID of this namespace. A list shows besides how far the store is.
const PATH: &str = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system";
const LARGEST: usize = 1 << 20;
const VERB: &str = "GET";

type Sender = http2::Sender<Full<Bytes>>;
type Lane = Http2<HttpConnector, Full<Bytes>>;

/// Connections by number. Whoever shares one waits for its turn when the server allows no more requests over it.
pub(super) struct Lanes {
    server: Uri,
    /// What comes before the path of each request.
    base: String,
    connector: HttpsConnector<HttpConnector>,
    /// Whose connections they are.
    identity: Identity,
    cluster: Arc<Cluster>,
    lanes: Mutex<Vec<Arc<Lane>>>,
}

/// What is to be sent.
pub(super) struct Ask<'a> {
    /// What the API server calls it: lists and watches have their own names.
    pub verb: &'static str,
    /// Where, with the question after it.
    pub path: &'a str,
    /// What the answer may look like.
    pub accept: &'static str,
    /// The answer that is known already.
    pub etag: Option<&'a str>,
    /// Type of the body.
    pub content_type: Option<&'static str>,
    /// What goes with it.
    pub body: Bytes,
}

#[derive(Deserialize)]
struct Namespaces {
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

// === impl Lanes ===

impl Lanes {
    /// Connections with these credentials, none of them open.
    pub fn new(config: &kube::Config, cluster: Arc<Cluster>) -> Result<Self, kube::Error> {
        Ok(Self {
            base: base(&config.cluster_url),
            server: config.cluster_url.clone(),
            connector: connector(config)?.enable_http2().wrap_connector(tcp()),
            identity: Identity::new(config)?,
            cluster,
            lanes: Mutex::default(),
        })
    }

    /// Sends over a connection, and returns the answer when it begins.
    pub async fn send(&self, lane: usize, ask: &Ask<'_>) -> Result<Response<Incoming>, ApiError> {
        let sent = async {
            let sender = self.lane(lane).sender(|sender| self.prove(sender)).await?;
            let sender = sender.ok_or("the server, or a proxy before it, does not speak HTTP/2")?;
            self.send_over(sender, ask).await
        };
        sent.await
            .map_err(|error| ApiError::not_sent(ask.verb, ask.path, &*error))
    }

    fn lane(&self, number: usize) -> Arc<Lane> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        while lanes.len() <= number {
            let lane = Lane::new(self.connector.clone(), self.server.clone(), Some(WINDOWS));
            lanes.push(Arc::new(lane));
        }
        Arc::clone(&lanes[number])
    }

    async fn send_over(&self, mut sender: Sender, ask: &Ask<'_>) -> Result<Response<Incoming>, BoxError> {
        let identity = self.identity.headers().await?;
        Ok(sender.send_request(ask.request(&self.base, identity)?).await?)
    }

    async fn prove(&self, sender: Sender) -> Result<(), BoxError> {
        let ask = Ask::get(VERB, PATH, "application/json");
        let before = self.cluster.store_was_at();
        let (head, body) = self.send_over(sender, &ask).await?.into_parts();
        let body = Limited::new(body, LARGEST).collect().await?.to_bytes();
        if !head.status.is_success() {
            let retry_after = retry_after(&head.headers);
            let refused = ApiError::refused(VERB, PATH, head.status.as_u16(), retry_after, &body);
            return Err(Unproven(refused).into());
        }
        let unreadable = |error: &dyn std::fmt::Display| format!("{VERB} {PATH}: {error}");
        let shown: Namespaces = serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
        let [namespace] = &*shown.items else {
            return Err(unreadable(&"it does not show the one namespace").into());
        };
        let version = shown.metadata.resource_version.parse();
        let version = version.map_err(|error: ParseIntError| unreadable(&error))?;
        let judged = self.cluster.judge(&namespace.metadata.uid);
        let judged = judged.and_then(|()| self.cluster.store_is_at(version, before));
        Ok(judged.map_err(|cause| Unproven(ApiError::held(VERB, PATH, cause)))?)
    }
}

// === impl Ask ===

impl<'a> Ask<'a> {
    /// Without a body.
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

/// A server's address without a slash at its end.
fn base(server: &Uri) -> String {
    let scheme = server.scheme_str().unwrap_or("https");
    let authority = server.authority().map_or("", |authority| authority.as_str());
    format!("{scheme}://{authority}{}", server.path().trim_end_matches('/'))
}
