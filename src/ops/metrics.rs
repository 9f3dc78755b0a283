//! Metrics for Prometheus, created for each scrape from the data of `status` and `gc status`. No metric has a series per pod or
//! object. docs/reference/metrics.md lists all of them.

mod collector;
mod family;
mod pods;
mod process;

use std::{collections::VecDeque, convert::Infallible, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use self::family::Metrics;
use super::{
    admin::{Admin, response},
    status::StatusReport,
};
use crate::{api::REQUEST_DURATIONS, tasks::spawn};
pub use collector::CollectorMetrics;
pub use pods::PodDurations;

/// Path of the metrics.
pub const PATH: &str = "/metrics";
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Prefix of all names.
const PREFIX: &str = "pod_teardown";
/// Maximum number of concurrent connections. Prometheus needs one. A further one closes the oldest.
const MAX_CONNECTIONS: usize = 16;
/// Maximum time of a connection: it has one request and its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The data of one scrape.
#[derive(Debug, Default)]
pub struct Scrape {
    /// The agent and its pods; `None` while the agent stops.
    pub status: Option<StatusReport>,
    /// The collector; `None` if this agent has none.
    pub collector: Option<CollectorMetrics>,
    /// Histograms about pods; `None` with `--mode never`.
    pub durations: Option<PodDurations>,
}

/// Creates the socket. Connections of an agent that has exited do not block the address.
///
/// # Errors
/// When the address cannot be used.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Answers requests until the future is dropped. Clients that send or read nothing cannot keep others out.
pub async fn serve(admin: Arc<Admin>, listener: Arc<TcpListener>) {
    let mut connections = VecDeque::<AbortOnDropHandle<()>>::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() == MAX_CONNECTIONS {
                    connections.pop_front();
                }
                connections.push_back(spawn(connection(Arc::clone(&admin), stream, peer)));
            }
            Err(error) => {
                tracing::warn!(%error, "Metrics socket cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Answers one request.
async fn connection(admin: Arc<Admin>, stream: TcpStream, peer: SocketAddr) {
    let service = service_fn(|request| answer(&admin, request));
    let mut server = http1::Builder::new();
    server.keep_alive(false);
    let served = server.serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, %peer, "Metrics connection failed"),
        Err(_) => tracing::debug!(%peer, "Metrics connection timed out"),
    }
}

async fn answer(admin: &Admin, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |code, text: &str| response(code, "text/plain", format!("{text}\n"));
    Ok(if ![Method::GET, Method::HEAD].contains(request.method()) {
        plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here")
    } else if request.uri().path() != PATH {
        plain(StatusCode::NOT_FOUND, &format!("there is {PATH}"))
    } else {
        let scrape = Scrape {
            status: admin.report().await,
            collector: admin.gc.as_ref().map(CollectorMetrics::collect),
            durations: admin.pods.as_ref().map(PodDurations::new),
        };
        match text(&scrape) {
            Ok(text) => response(StatusCode::OK, CONTENT_TYPE, text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    })
}

/// Encodes the metrics in the OpenMetrics text format.
///
/// # Errors
/// When the encoder fails.
pub fn text(scrape: &Scrape) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    let started = scrape.status.as_ref().map(|status| status.since);
    process::register(&mut Metrics(&mut registry), started);
    let mut metrics = Metrics(registry.sub_registry_with_prefix(PREFIX));
    if let Some(status) = &scrape.status {
        pods::register(&mut metrics, status);
    }
    if let Some(collector) = &scrape.collector {
        collector.register(&mut metrics);
    }
    if let Some(durations) = &scrape.durations {
        durations.register(&mut metrics);
    }
    if scrape.durations.is_some() || scrape.collector.is_some() {
        metrics.register_seconds("api_request_duration", REQUEST_DURATIONS.clone());
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
