//! Sockets that do not let a paused clock run ahead of them.
//!
//! A paused tokio clock jumps to the next timer whenever the runtime has nothing to do, and bytes that lie in a socket
//! do not count as something to do: the event that reports them and the jump happen in the same turn. A client with a
//! deadline of two minutes would see it pass while its request is on the way. The jump is left out when the future that
//! the runtime was started with has been woken. So a server that wakes this future at each of its reads and writes
//! gives both ends their turn, and time stands still until neither has anything to say.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Holds the clock for the streams of one server.
#[derive(Debug, Clone)]
pub struct Steady {
    root: Waker,
}

/// A server's end of a connection, or its listener's, in whose traffic no time passes.
#[derive(Debug)]
pub struct SteadyStream<T> {
    inner: T,
    steady: Steady,
    reading: Pair,
    writing: Pair,
}

/// The waker made for the last task that waited, kept because it is mostly the same one.
#[derive(Debug, Default)]
struct Pair {
    made: Option<(Waker, Waker)>,
}

struct Both {
    task: Waker,
    root: Waker,
}

// === impl Steady ===

impl Steady {
    /// Holds the clock of the runtime that this is called in.
    ///
    /// # Panics
    /// In a spawned task: only what the runtime was started with, the body of the test, can hold its clock.
    pub async fn capture() -> Self {
        assert!(
            tokio::task::try_id().is_none(),
            "must be called in the body of the test, not in a spawned task"
        );
        poll_fn(|cx| {
            Poll::Ready(Self {
                root: cx.waker().clone(),
            })
        })
        .await
    }

    /// Leaves out the next jump of the clock: something was said, and the other end has to hear it first.
    pub fn hold(&self) {
        self.root.wake_by_ref();
    }

    /// Polls something that waits for the outside, such as an `accept`, and holds the clock when it comes.
    pub async fn watch<T>(&self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        let mut pair = Pair::default();
        poll_fn(|cx| self.held(poll(&mut Context::from_waker(pair.waker(cx, &self.root))))).await
    }

    /// Holds the clock at every read and write of a stream.
    pub fn stream<T>(&self, inner: T) -> SteadyStream<T> {
        SteadyStream {
            inner,
            steady: self.clone(),
            reading: Pair::default(),
            writing: Pair::default(),
        }
    }

    fn held<T>(&self, poll: Poll<T>) -> Poll<T> {
        if poll.is_ready() {
            self.hold();
        }
        poll
    }
}

// === impl SteadyStream ===

impl<T> Drop for SteadyStream<T> {
    fn drop(&mut self) {
        // The end of the connection is news for the other side, too.
        self.steady.hold();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for SteadyStream<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self {
            inner, steady, reading, ..
        } = self.get_mut();
        let mut both = Context::from_waker(reading.waker(cx, &steady.root));
        steady.held(Pin::new(inner).poll_read(&mut both, buf))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SteadyStream<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self {
            inner, steady, writing, ..
        } = self.get_mut();
        let mut both = Context::from_waker(writing.waker(cx, &steady.root));
        steady.held(Pin::new(inner).poll_write(&mut both, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self {
            inner, steady, writing, ..
        } = self.get_mut();
        let mut both = Context::from_waker(writing.waker(cx, &steady.root));
        steady.held(Pin::new(inner).poll_write_vectored(&mut both, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, steady, .. } = self.get_mut();
        steady.held(Pin::new(inner).poll_shutdown(cx))
    }
}

// === impl Pair ===

impl Pair {
    fn waker(&mut self, cx: &Context<'_>, root: &Waker) -> &Waker {
        let task = cx.waker();
        if !self.made.as_ref().is_some_and(|(made_for, _)| made_for.will_wake(task)) {
            self.made = None;
        }
        let (_, both) = self.made.get_or_insert_with(|| {
            let both = Waker::from(Arc::new(Both {
                task: task.clone(),
                root: root.clone(),
            }));
            (task.clone(), both)
        });
        both
    }
}

// === impl Both ===

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.root.wake_by_ref();
        self.task.wake_by_ref();
    }
}
