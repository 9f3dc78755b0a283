//! One HTTP/2 connection to the API server: opened when it is needed, pinged, and proven before any request uses it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::connect::Connection as _,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use tokio_util::io::InspectReader;
use tower::{BoxError, Service as _, ServiceExt as _};

use super::dial::{OPEN_TIMEOUT, Transport};

/// Limit of the proof. A busy server queues requests.
const PROOF_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection is pinged after 30 s without data, an idle one too, and closed after 15 s without an answer: a load balancer
/// may have dropped its state silently. The same values as client-go: k8s.io/apimachinery/pkg/util/net/http.go
/// configureHTTP2Transport.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes that the server may send before they are read: of one answer, and of all.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

pub(super) type Sender = http2::SendRequest<Full<Bytes>>;

/// When a connection last received something, be it the answer to a ping. Clones share it.
#[derive(Debug, Clone)]
pub struct LastReceived {
    opened: Instant,
    /// Nanoseconds since then.
    after: Arc<AtomicU64>,
}

pub(super) struct Http2 {
    connector: HttpsConnector<Transport>,
    server: Uri,
    open: Mutex<Option<(Sender, LastReceived)>>,
}

// === impl Http2 ===

impl Http2 {
    /// A connection to `server`, not yet open.
    pub fn new(connector: HttpsConnector<Transport>, server: Uri) -> Self {
        Self {
            connector,
            server,
            open: Mutex::default(),
        }
    }

    /// The open connection. If there is none, it is opened and passed to `prove`, and other callers wait.
    ///
    /// # Errors
    /// If the connection cannot be opened or proven in time, or the server does not speak HTTP/2. It is not kept then.
    pub async fn open<F>(&self, prove: impl FnOnce(Sender) -> F) -> Result<(Sender, LastReceived), BoxError>
    where
        F: Future<Output = Result<(), BoxError>>,
    {
        let mut open = self.open.lock().await;
        if let Some(known) = open.as_ref().filter(|(sender, _)| !sender.is_closed()) {
            return Ok(known.clone());
        }
        *open = None;
        // Boxed: it is rare, and each request's future would have to hold the space for it.
        let opening = Box::pin(async {
            let opened = timeout(OPEN_TIMEOUT, self.connect()).await;
            let opened = opened.map_err(|_| format!("no connection within {OPEN_TIMEOUT:?}"))??;
            let proven = timeout(PROOF_TIMEOUT, prove(opened.0.clone())).await;
            proven.map_err(|_| format!("no proof within {PROOF_TIMEOUT:?}"))??;
            Ok::<_, BoxError>(opened)
        });
        Ok(open.insert(opening.await?).clone())
    }

    async fn connect(&self) -> Result<(Sender, LastReceived), BoxError> {
        let mut connector = self.connector.clone();
        let connection = connector.ready().await?.call(self.server.clone()).await?;
        if self.server.scheme_str() == Some("https") && !connection.connected().is_negotiated_h2() {
            return Err("the server, or a proxy before it, does not speak HTTP/2".into());
        }
        let last_received = LastReceived::new();
        let received = last_received.clone();
        let connection = InspectReader::new(TokioIo::new(connection), move |bytes: &[u8]| {
            // The end of the connection is nothing.
            if !bytes.is_empty() {
                received.record();
            }
        });
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(connection))
            .await?;
        // Ends with the connection, or with its last request and sender. Both show in the requests.
        drop(tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "Connection to the API server ended");
            }
        }));
        Ok((sender, last_received))
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
