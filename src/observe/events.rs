//! The runtime's stream of container events, which makes lists of the runtime early.

use std::{future::pending, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream};

use crate::node::cri::{CriReader, client::ContainerEvents};

/// Interval of the lists of the runtime while no pod terminates, and no event comes.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// The same with a runtime that sends no events, such as containerd 1.6.
const IDLE_INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// The stream of container events, as long as the runtime supports it.
pub(super) struct RuntimeEvents {
    runtime: CriReader,
    stream: Option<ContainerEvents>,
    /// The stream has failed, and may be opened again.
    has_failed: bool,
    is_unsupported: bool,
}

// === impl RuntimeEvents ===

impl RuntimeEvents {
    pub(super) fn new(runtime: CriReader) -> Self {
        Self {
            runtime,
            stream: None,
            has_failed: false,
            is_unsupported: false,
        }
    }

    /// Waits for an event. Without a stream it waits forever: the lists are enough then.
    pub(super) async fn next(&mut self) {
        let stream = self.stream.get_or_insert_with(|| self.runtime.container_events());
        match stream.next().await {
            Some(Ok(())) => while let Some(Some(Ok(()))) = stream.next().now_or_never() {},
            ended => {
                self.is_unsupported = matches!(ended, Some(Err(error)) if error.is_unknown_call());
                self.has_failed = !self.is_unsupported;
                self.stream = Some(stream::pending().boxed());
                pending::<()>().await;
            }
        }
    }

    pub(super) fn idle_interval(&self) -> Duration {
        match self.is_unsupported {
            true => IDLE_INTERVAL_WITHOUT_EVENTS,
            false => IDLE_INTERVAL,
        }
    }

    /// Opens a stream that has failed again: the runtime answers.
    pub(super) fn reopen(&mut self) {
        if std::mem::take(&mut self.has_failed) {
            self.stream = None;
        }
    }
}
