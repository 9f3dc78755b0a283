//! The unix socket of a gRPC server, and its faults.

use std::future::pending;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

/// How a socket treats new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Serve,
    /// It accepts them and never answers.
    Silent,
    /// It speaks another protocol.
    Foreign,
}

/// A socket that listens until it is closed.
#[derive(Debug)]
pub(crate) struct Socket {
    cut: CancellationToken,
    tasks: TaskTracker,
}

/// A server's end of a connection that can be closed from outside.
struct Wire {
    stream: UnixStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _counted: TaskTrackerToken,
}

/// Banner of Debian's OpenSSH.
const GREETING: &[u8] = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n";

impl Socket {
    /// Listens at `path`; an existing socket is replaced.
    pub(crate) fn open(path: &Path, manner: Manner, services: Routes) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        let socket = Self {
            cut: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let (connections, incoming) = mpsc::unbounded_channel();
        socket.until_cut({
            let (cut, tasks) = (socket.cut.clone(), socket.tasks.clone());
            async move {
                loop {
                    let wire = listener.accept().await.map(|(stream, _)| Wire {
                        stream,
                        cut: Box::pin(cut.clone().cancelled_owned()),
                        _counted: tasks.token(),
                    });
                    if connections.send(wire).is_err() {
                        break;
                    }
                }
            }
        });
        match manner {
            Manner::Serve => socket.until_cut(async move {
                let server = Server::builder().add_routes(services);
                // Fails only if the listener does, which also ends the loop above.
                let _ended = server.serve_with_incoming(UnboundedReceiverStream::new(incoming)).await;
            }),
            Manner::Silent => socket.until_cut(keep(incoming, b"")),
            Manner::Foreign => socket.until_cut(keep(incoming, GREETING)),
        }
        Ok(socket)
    }

    fn until_cut(&self, task: impl Future<Output = ()> + Send + 'static) {
        let cut = self.cut.clone();
        self.tasks.spawn(async move { cut.run_until_cancelled(task).await });
    }

    /// Stops listening and closes all connections. The socket file stays, as after a crash.
    pub(crate) async fn close(self) {
        self.cut.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

async fn keep(mut incoming: mpsc::UnboundedReceiver<io::Result<Wire>>, greeting: &[u8]) {
    let mut kept = Vec::new();
    while let Some(Ok(mut wire)) = incoming.recv().await {
        // A peer that has left already misses nothing.
        let _written = wire.write_all(greeting).await;
        kept.push(wire);
    }
    pending::<()>().await;
}

impl Wire {
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Wire {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
