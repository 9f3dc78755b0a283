//! Connections to the API server below TLS: over TCP, or in memory.

use std::{io, pin::Pin, sync::Arc, task, time::Duration};

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt;
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::{BoxError, Service, ServiceExt as _};

/// Limit of a connect with DNS and TLS, without the proof. All addresses of a name share half of it.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

/// Opens a connection in memory to the API server at this URL.
pub type Dial = Arc<dyn Fn(&Uri) -> io::Result<Box<dyn Duplex>> + Send + Sync>;

/// Opens connections, by a [`Dial`] if there is one.
#[derive(Clone)]
pub(super) struct Transport {
    tcp: HttpConnector,
    dial: Option<Dial>,
}

/// A connection of a [`Transport`].
pub(super) struct Stream(TokioIo<Box<dyn Duplex>>);

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

// === impl Transport ===

impl Transport {
    pub fn new(dial: Option<Dial>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(OPEN_TIMEOUT / 2));
        Self { tcp, dial }
    }
}

impl Service<Uri> for Transport {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), BoxError>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let Self { tcp, dial } = self.clone();
        Box::pin(async move {
            let connection = match dial {
                Some(dial) => dial(&server)?,
                None => Box::new(tcp.oneshot(server).await?.into_inner()),
            };
            Ok(Stream(TokioIo::new(connection)))
        })
    }
}

// === impl Stream ===

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl rt::Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        into: rt::ReadBufCursor<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl rt::Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
