//! What the kernel reports about processes as it happens: that one has executed a program, and that one has exited.
//!
//! An event says when to look. The absence of one proves nothing: the queue of events may overflow, and some nodes have none.

use std::{io, time::Duration};

use futures::{
    FutureExt as _,
    future::BoxFuture,
    stream::{BoxStream, StreamExt as _, unfold},
};
use tokio::time::{Instant, sleep_until};

use super::process_exit;

mod connector;
mod message;

use connector::Connector;
pub use connector::Execs;

/// Programs that are executed within this time are reported together: each stop of a pod executes some twenty.
const BATCH_TIME: Duration = Duration::from_millis(10);

/// The source of events. Tests have their own.
pub trait ProcessEvents: Send + Sync {
    /// Which processes execute a program, from now on. The stream ends when there are no more events.
    ///
    /// # Errors
    /// Why this node has no such events.
    fn execs(&self) -> io::Result<BoxStream<'static, Execs>>;

    /// Completes when the process that has this pid now has exited.
    ///
    /// # Errors
    /// When there is no such process, or it cannot be watched.
    fn exit(&self, pid: i32) -> io::Result<BoxFuture<'static, ()>>;
}

/// The events of this node's kernel. The pids are those of the host.
#[derive(Debug, Clone, Copy)]
pub struct KernelEvents;

// === impl KernelEvents ===

impl ProcessEvents for KernelEvents {
    fn execs(&self) -> io::Result<BoxStream<'static, Execs>> {
        let events = unfold(
            (Connector::subscribe()?, Instant::now()),
            async |(mut connector, from)| {
                sleep_until(from).await;
                match connector.receive().await {
                    Ok(execs) => Some((execs, (connector, Instant::now() + BATCH_TIME))),
                    Err(error) => {
                        tracing::warn!(%error, "The kernel reports no more process starts");
                        None
                    }
                }
            },
        );
        Ok(events.boxed())
    }

    fn exit(&self, pid: i32) -> io::Result<BoxFuture<'static, ()>> {
        Ok(process_exit::wait_for_exit(pid)?.boxed())
    }
}
