//! Connections that a caller opens instead of TCP.

use std::{io, pin::Pin, sync::Arc, task};

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::Service;

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

/// Opens a connection to the API server.
pub type Dial = Arc<dyn Fn() -> BoxFuture<'static, io::Result<Box<dyn Duplex>>> + Send + Sync>;

/// Opens every connection by a [`Dial`].
#[derive(Clone)]
pub(super) struct Dialer(pub Dial);

/// A connection of a [`Dialer`].
pub(super) struct Dialed(TokioIo<Box<dyn Duplex>>);

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

// === impl Dialer ===

impl Service<Uri> for Dialer {
    type Response = Dialed;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Dialed>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dialing = (self.0)();
        Box::pin(async move { dialing.await.map(|connection| Dialed(TokioIo::new(connection))) })
    }
}

// === impl Dialed ===

impl Connection for Dialed {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl rt::Read for Dialed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        into: rt::ReadBufCursor<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl rt::Write for Dialed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
