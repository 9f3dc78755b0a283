//! HTTP/2: many requests over few connections, which are opened when they are needed. Each shows, before anything else goes
//! over it, that it leads to the same cluster as all others: what one cluster shows proves nothing of another's objects. And
//! that the cluster's store was not put back to an older state, where somebody remembers what it held.

use std::{
    num::ParseIntError,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, client::conn::http2};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, builderstates::WantsProtocols1};
use hyper_util::{
    client::legacy::connect::{Connection as _, HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::ConfigExt as _;
use serde::Deserialize;
use tokio::time::timeout;
use tower::{BoxError, Service as _, ServiceExt as _};

use super::{
    ApiError, USER_AGENT,
    cluster::Cluster,
    error::chain,
    identity::Identity,
    proven::{OPENING, retry_after, tcp},
};

/// For the proof: a server that is busy lets requests wait for their turn.
const PROOF: Duration = Duration::from_secs(20);
/// A connection on which nothing comes for so long is pinged, an idle one too, and is closed if nothing comes for so long
/// after that: a load balancer may have dropped its state without a word. As client-go.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));
/// What a server may send ahead of what was read: of one answer, and of all over one connection.
const STREAM_AHEAD: u32 = 256 << 10;
const AHEAD: u32 = 1 << 20;
/// What tells clusters apart is the UID of this namespace. A list shows besides how far the store is.
const PATH: &str = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system";
const LARGEST: usize = 1 << 20;
const VERB: &str = "GET";

type Sender = http2::SendRequest<Full<Bytes>>;
type Lane = tokio::sync::Mutex<Option<Sender>>;

/// Connections by number. Whoever shares one waits for its turn when the server allows no more requests over it.
pub(super) struct Lanes {
    server: Uri,
    /// What comes before the path of each request.
    base: String,
    connector: HttpsConnector<HttpConnector>,
    /// Whose connections they are.
    identity: Identity,
    cluster: Arc<Cluster>,
    open: Mutex<Vec<Arc<Lane>>>,
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

/// TLS as the kubeconfig has it.
pub(super) fn connector(config: &kube::Config) -> Result<HttpsConnectorBuilder<WantsProtocols1>, kube::Error> {
    let builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    let Some(name) = &config.tls_server_name else {
        return Ok(builder);
    };
    let name = name
        .clone()
        .try_into()
        .map_err(|error| kube::Error::Service(Box::new(error)))?;
    Ok(builder.with_server_name_resolver(FixedServerNameResolver::new(name)))
}

/// A connection that is noticed to be dead within [`PING`].
pub(super) fn pinged() -> http2::Builder<TokioExecutor> {
    let (after, patience) = PING;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(after)
        .keep_alive_timeout(patience)
        .keep_alive_while_idle(true);
    builder
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
            open: Mutex::default(),
        })
    }

    /// Sends over a connection, and returns the answer when it begins.
    pub async fn send(&self, lane: usize, ask: &Ask<'_>) -> Result<Response<Incoming>, ApiError> {
        let sender = self.open(lane).await.map_err(|error| error.of(ask.verb, ask.path))?;
        let sent = self.send_over(sender, ask).await;
        sent.map_err(|error| ApiError::unreachable(ask.verb, ask.path, &*error))
    }

    async fn send_over(&self, mut sender: Sender, ask: &Ask<'_>) -> Result<Response<Incoming>, BoxError> {
        let identity = self.identity.headers().await?;
        Ok(sender.send_request(ask.request(&self.base, identity)?).await?)
    }

    /// An open connection. Others that want the same one wait while it is opened.
    async fn open(&self, number: usize) -> Result<Sender, NotOpened> {
        let lane = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            while open.len() <= number {
                open.push(Arc::default());
            }
            Arc::clone(&open[number])
        };
        let mut lane = lane.lock().await;
        if let Some(sender) = lane.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        *lane = None;
        // Boxed, since it is rare, and every request would have to hold the place for it.
        let sender = Box::pin(self.opened_and_proven()).await?;
        Ok(lane.insert(sender).clone())
    }

    async fn opened_and_proven(&self) -> Result<Sender, NotOpened> {
        let opened = timeout(OPENING, self.opened()).await;
        let sender = opened.unwrap_or_else(|_| Err(format!("no connection within {OPENING:?}").into()));
        let sender = sender.map_err(|error| NotOpened::Connection(chain(&*error)))?;
        let proof = timeout(PROOF, self.prove(sender.clone())).await;
        proof.unwrap_or_else(|_| Err(NotOpened::Connection(format!("no proof within {PROOF:?}"))))?;
        Ok(sender)
    }

    async fn opened(&self) -> Result<Sender, BoxError> {
        let mut connector = self.connector.clone();
        let connection = connector.ready().await?.call(self.server.clone()).await?;
        if self.server.scheme_str() == Some("https") && !connection.connected().is_negotiated_h2() {
            return Err("the server, or a proxy before it, does not speak HTTP/2".into());
        }
        let (sender, driver) = pinged()
            .initial_stream_window_size(STREAM_AHEAD)
            .initial_connection_window_size(AHEAD)
            .handshake(connection)
            .await?;
        // Ends with the last request and sender of the connection, or with the connection; both show in its requests.
        drop(tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "Connection to the API server ended");
            }
        }));
        Ok(sender)
    }

    async fn prove(&self, sender: Sender) -> Result<(), NotOpened> {
        let ask = Ask::get(VERB, PATH, "application/json");
        let before = self.cluster.store_was_at();
        let lost = |error: BoxError| NotOpened::Connection(chain(&*error));
        let response = self.send_over(sender, &ask).await.map_err(lost)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LARGEST).collect().await.map_err(lost)?.to_bytes();
        if !head.status.is_success() {
            let retry_after = retry_after(&head.headers);
            let refused = ApiError::refused(VERB, PATH, head.status.as_u16(), retry_after, &body);
            return Err(NotOpened::Refused(refused));
        }
        let unreadable = |error: &dyn std::fmt::Display| NotOpened::Connection(format!("{VERB} {PATH}: {error}"));
        let shown: Namespaces = serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
        let [namespace] = &*shown.items else {
            return Err(unreadable(&"it does not show the one namespace"));
        };
        let version = shown.metadata.resource_version.parse();
        let version = version.map_err(|error: ParseIntError| unreadable(&error))?;
        let judged = self.cluster.judge(&namespace.metadata.uid);
        let judged = judged.and_then(|()| self.cluster.store_is_at(version, before));
        judged.map_err(NotOpened::WrongWorld)
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

/// Why there is no connection.
enum NotOpened {
    /// It came to no connection, or to no answer over it.
    Connection(String),
    /// The server did not show which cluster it is of.
    Refused(ApiError),
    /// It leads to another cluster, or to an older state of it.
    WrongWorld(String),
}

// === impl NotOpened ===

impl NotOpened {
    fn of(self, verb: &'static str, path: &str) -> ApiError {
        match self {
            Self::Connection(cause) => ApiError::Unreachable {
                verb,
                path: path.to_owned(),
                cause,
            },
            Self::Refused(why) => ApiError::unproven(verb, path, &why),
            Self::WrongWorld(cause) => ApiError::held(verb, path, cause),
        }
    }
}
