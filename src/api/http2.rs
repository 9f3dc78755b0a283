//! HTTP/2 connections to the API server, which are pinged.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::connect::Connection as _,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::io::InspectReader;
use tower::{BoxError, Service as _, ServiceExt as _};

use super::dial::Transport;

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
pub struct LastReceived(Arc<Mutex<Instant>>);

/// Opens a connection.
///
/// # Errors
/// If it cannot be opened, or the server does not speak HTTP/2.
pub(super) async fn connect(
    connector: &HttpsConnector<Transport>,
    server: &Uri,
) -> Result<(Sender, LastReceived), BoxError> {
    let mut connector = connector.clone();
    let connection = connector.ready().await?.call(server.clone()).await?;
    if server.scheme_str() == Some("https") && !connection.connected().is_negotiated_h2() {
        return Err("the server, or a proxy before it, does not speak HTTP/2".into());
    }
    let last_received = LastReceived::default();
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

// === impl LastReceived ===

impl LastReceived {
    /// Records that something is received now.
    pub fn record(&self) {
        *self.0.lock() = Instant::now();
    }

    /// The time of the last receipt.
    pub fn time(&self) -> Instant {
        *self.0.lock()
    }
}

impl Default for LastReceived {
    /// Nothing was received before now.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}
