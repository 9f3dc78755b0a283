//! HTTP/2: many requests over few connections, which are opened when they are needed. Each shows, before anything else goes
//! over it, that it leads to the same cluster as all others: what one cluster shows proves nothing of another's objects. And
//! that the cluster's store was not put back to an older state, where somebody remembers what it held.

use std::{
    num::ParseIntError,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, client::conn::http2};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::connect::{Connection as _, HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::ConfigExt as _;
use serde::Deserialize;
use tokio::time::timeout;
use tower::{BoxError, Service as _, ServiceExt as _};

use super::{
    ApiError,
    cluster::Cluster,
    error::chain,
    identity::Identity,
    proven::{OPENING, retry_after, tcp},
};

/// For the proof: a server that is busy lets requests wait for their turn.
const PROOF: Duration = Duration::from_secs(20);
/// A connection on which nothing comes for so long is asked whether it is still there, and has as long to answer.
const SILENCE: Duration = Duration::from_secs(20);
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
        let mut builder = HttpsConnectorBuilder::new()
            .with_tls_config(config.rustls_client_config()?)
            .https_or_http();
        if let Some(name) = &config.tls_server_name {
            let name = name
                .clone()
                .try_into()
                .map_err(|error| kube::Error::Service(Box::new(error)))?;
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        Ok(Self {
            base: base(&config.cluster_url),
            server: config.cluster_url.clone(),
            connector: builder.enable_http2().wrap_connector(tcp()),
            identity: Identity::new(config)?,
            cluster,
            open: Mutex::default(),
        })
    }

    /// Sends over a connection, and returns the answer when it begins.
    pub async fn send(
        &self,
        lane: usize,
        verb: &'static str,
        path: &str,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Response<Incoming>, ApiError> {
        let sender = self.open(lane).await.map_err(|error| error.of(verb, path))?;
        let sent = self.send_over(sender, path, request, body).await;
        sent.map_err(|error| ApiError::unreachable(verb, path, &*error))
    }

    async fn send_over(
        &self,
        mut sender: Sender,
        path: &str,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Response<Incoming>, BoxError> {
        let uri = format!("{}{path}", self.base);
        let mut request = request.uri(uri).body(Full::new(body))?;
        request.headers_mut().extend(self.identity.headers().await?);
        Ok(sender.send_request(request).await?)
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
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(SILENCE)
            .keep_alive_timeout(SILENCE)
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
        let request = Request::get("/").header(header::ACCEPT, "application/json");
        let before = self.cluster.store_was_at();
        let lost = |error: BoxError| NotOpened::Connection(chain(&*error));
        let response = self
            .send_over(sender, PATH, request, Bytes::new())
            .await
            .map_err(lost)?;
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
