//! What can be counted and measured, for Prometheus and its like: made when it is asked for, from what `status` and
//! `gc status` tell too. No series is of a single pod or object. docs/metrics.md lists all of them.

mod collector;
mod page;
mod pods;

use std::{convert::Infallible, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text::encode},
    registry::Registry,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::Semaphore,
};

use self::page::Page;
use super::{
    admin::{Admin, response},
    status::StatusReport,
};
pub use collector::CollectorMetrics;

/// Where they are asked for.
pub const PATH: &str = "/metrics";
/// All names begin so.
const PREFIX: &str = "pod_teardown";
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Connections at a time: whoever scrapes has one, and nobody knows who else comes.
const CONNECTIONS: usize = 16;
/// A request that does not come is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// All that is told at one moment.
#[derive(Debug, Default)]
pub struct Scrape {
    /// Of the agent and its pods; nothing while it stops.
    pub status: Option<StatusReport>,
    /// Of the collector; nothing where there is none.
    pub collector: Option<CollectorMetrics>,
}

/// Makes the socket.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    bound(addr)?.listen(128)
}

/// Whether the socket could be made; it is gone again afterwards, and nobody could connect to it.
pub fn try_out(addr: SocketAddr) -> io::Result<()> {
    bound(addr).map(drop)
}

fn bound(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // Connections of an agent that has ended do not keep the next one from its place.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

/// Answers until the agent stops.
pub async fn serve(admin: Arc<Admin>, listener: Arc<TcpListener>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // It is never closed.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, peer)) => {
                let admin = Arc::clone(&admin);
                tokio::spawn(async move {
                    let _place = place;
                    let service = service_fn(|request| answer(&admin, request));
                    let mut server = http1::Builder::new();
                    server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
                    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                        tracing::debug!(%error, %peer, "Metrics connection was cut");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "Metrics socket cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// As Prometheus takes times.
fn since_epoch(time: Option<Timestamp>) -> Option<Duration> {
    let seconds = u64::try_from(time?.as_second()).ok()?;
    Some(Duration::from_secs(seconds))
}

async fn answer(admin: &Admin, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |code, text: &str| response(code, "text/plain", format!("{text}\n"));
    Ok(if ![Method::GET, Method::HEAD].contains(request.method()) {
        plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here")
    } else if request.uri().path() != PATH {
        plain(StatusCode::NOT_FOUND, &format!("there is {PATH}"))
    } else {
        match text(Scrape::of(admin).await) {
            Ok(text) => response(StatusCode::OK, TYPE, text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    })
}

/// As OpenMetrics writes it.
pub fn text(scrape: Scrape) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

// === impl Scrape ===

impl Scrape {
    async fn of(admin: &Admin) -> Self {
        Self {
            status: admin.report().await,
            collector: admin.gc.as_ref().map(CollectorMetrics::of),
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        if let Some(status) = &self.status {
            pods::write(&mut page, status)?;
        }
        if let Some(collecting) = &self.collector {
            collecting.write(&mut page)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod monitoring_tests;
#[cfg(test)]
mod tests;
