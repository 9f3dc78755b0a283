//! One HTTP/2 connection to the API server: opened when it is needed, pinged, and proven before any request uses it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::Uri;
use hyper::{body::Body, client::conn::http2};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, builderstates::WantsProtocols1};
use hyper_util::{
    client::legacy::connect::Connection as _,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::client::ConfigExt as _;
use tokio::time::{Instant, timeout};
use tokio_util::io::InspectReader;
use tower::{BoxError, Service as _, ServiceExt as _};

use super::dial::{OPEN_TIMEOUT, Transport};

/// Limit of the proof. A busy server queues requests.
pub(super) const PROOF_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection is pinged after 30 s without data, an idle one too, and closed after 15 s without an answer: a load balancer
/// may have dropped its state silently. The same values as client-go: k8s.io/apimachinery/pkg/util/net/http.go
/// configureHTTP2Transport.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

pub(super) type Sender<B> = http2::SendRequest<B>;

/// When a connection last received something, be it the answer to a ping. Clones share it.
#[derive(Debug, Clone)]
pub struct LastReceived {
    opened: Instant,
    /// Nanoseconds since then.
    after: Arc<AtomicU64>,
}

/// An open connection.
pub(super) struct Open<B> {
    pub sender: Sender<B>,
    pub last_received: LastReceived,
}

pub(super) struct Http2<B> {
    connector: HttpsConnector<Transport>,
    server: Uri,
    builder: http2::Builder<TokioExecutor>,
    open: tokio::sync::Mutex<Option<Open<B>>>,
}

/// Connector with the TLS settings of the kubeconfig.
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

/// Opens a connection within [`OPEN_TIMEOUT`].
pub(super) async fn open_in_time<C, E: Into<BoxError>>(
    opening: impl Future<Output = Result<C, E>>,
) -> Result<C, BoxError> {
    let opened = timeout(OPEN_TIMEOUT, opening).await;
    opened
        .map_err(|_| BoxError::from(format!("no connection within {OPEN_TIMEOUT:?}")))?
        .map_err(Into::into)
}

/// Proves a connection within [`PROOF_TIMEOUT`].
pub(super) async fn prove_in_time<C>(proving: impl Future<Output = Result<C, BoxError>>) -> Result<C, BoxError> {
    let proven = timeout(PROOF_TIMEOUT, proving).await;
    proven.map_err(|_| BoxError::from(format!("no proof within {PROOF_TIMEOUT:?}")))?
}

// === impl Http2 ===

impl<B> Http2<B>
where
    B: Body + Unpin + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// A connection to `server`, not yet open. `windows` are the bytes that the server may send before they are read: of one
    /// answer, and of all; hyper's defaults without them.
    pub fn new(connector: HttpsConnector<Transport>, server: Uri, windows: Option<(u32, u32)>) -> Self {
        let (interval, patience) = PING;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(interval)
            .keep_alive_timeout(patience)
            .keep_alive_while_idle(true);
        if let Some((stream, connection)) = windows {
            builder
                .initial_stream_window_size(stream)
                .initial_connection_window_size(connection);
        }
        Self {
            connector,
            server,
            builder,
            open: tokio::sync::Mutex::default(),
        }
    }

    /// The open connection. If there is none, it is opened and passed to `prove`, and other callers wait. `None` if the server
    /// does not speak HTTP/2 over TLS.
    ///
    /// # Errors
    /// If the connection cannot be opened or proven in time. It is not kept then.
    pub async fn open<F>(&self, prove: impl FnOnce(Sender<B>) -> F) -> Result<Option<Open<B>>, BoxError>
    where
        F: Future<Output = Result<(), BoxError>>,
    {
        let mut open = self.open.lock().await;
        if let Some(known) = open.as_ref().filter(|known| !known.sender.is_closed()) {
            return Ok(Some(known.clone()));
        }
        *open = None;
        // Boxed: it is rare, and each request's future would have to hold the space for it.
        let opened = Box::pin(async {
            let Some(opened) = open_in_time(self.connect()).await? else {
                return Ok(None);
            };
            prove_in_time(prove(opened.sender.clone())).await?;
            Ok::<_, BoxError>(Some(opened))
        });
        open.clone_from(&opened.await?);
        Ok(open.clone())
    }

    async fn connect(&self) -> Result<Option<Open<B>>, BoxError> {
        let mut connector = self.connector.clone();
        let connection = connector.ready().await?.call(self.server.clone()).await?;
        if self.server.scheme_str() == Some("https") && !connection.connected().is_negotiated_h2() {
            return Ok(None);
        }
        let last_received = LastReceived::new();
        let received = last_received.clone();
        let connection = InspectReader::new(TokioIo::new(connection), move |bytes: &[u8]| {
            // The end of the connection is nothing.
            if !bytes.is_empty() {
                received.record();
            }
        });
        let (sender, driver) = self.builder.handshake(TokioIo::new(connection)).await?;
        // Ends with the connection, or with its last request and sender. Both show in the requests.
        drop(tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "Connection to the API server ended");
            }
        }));
        Ok(Some(Open { sender, last_received }))
    }
}

// === impl Open ===

impl<B> Clone for Open<B> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            last_received: self.last_received.clone(),
        }
    }
}

// === impl LastReceived ===

impl LastReceived {
    /// Nothing was received before now.
    pub fn new() -> Self {
        Self {
            opened: Instant::now(),
            after: Arc::default(),
        }
    }

    /// Records that something is received now.
    pub fn record(&self) {
        let after = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.after.store(after, Ordering::Release);
    }

    /// The time of the last receipt.
    pub fn time(&self) -> Instant {
        self.opened + Duration::from_nanos(self.after.load(Ordering::Acquire))
    }
}

impl Default for LastReceived {
    fn default() -> Self {
        Self::new()
    }
}
