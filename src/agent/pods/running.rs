//! What an agent runs on, its tasks, and their end.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    agent::node_condition::RunningReporter,
    node::{
        cgroups::Cgroups,
        cri::{Cri, types::RuntimeVersion},
    },
    tasks::finish_or_abort,
};

/// Maximum time to send the last events when the agent stops.
const EVENT_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to send the last traces when the agent stops.
const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The container runtime of this node, and its cgroups.
pub(super) struct LocalRuntime {
    pub cri: Cri,
    pub version: RuntimeVersion,
    pub cgroups: Cgroups,
}

/// The tasks of a running agent.
pub(super) struct Tasks {
    /// The watch of the pods. The workers exit when it does.
    pub source: AbortOnDropHandle<()>,
    /// `None` if the agent only observes.
    pub housekeeping: Option<AbortOnDropHandle<()>>,
    pub event_sender: AbortOnDropHandle<()>,
    /// The workers of the pods, or the observer.
    pub workers: AbortOnDropHandle<()>,
    /// Tasks that end at any moment.
    pub background: Vec<AbortOnDropHandle<()>>,
    pub reporter: Option<RunningReporter>,
    pub trace_sender: Option<AbortOnDropHandle<()>>,
}

// === impl Tasks ===

impl Tasks {
    /// Stops all tasks; pods in progress have `shutdown_timeout`.
    pub async fn stop(mut self, shutdown_timeout: Duration) {
        self.source.abort();
        drop(self.housekeeping);
        if !self.workers.is_finished() {
            let exit = timeout(shutdown_timeout + Duration::from_secs(1), &mut self.workers);
            if exit.await.is_err() {
                tracing::error!("Pod workers do not exit");
            }
        }
        drop(self.background);
        // Events are best effort, and so is the Node's condition.
        let report_stop = async {
            if let Some(reporter) = self.reporter {
                reporter.stop().await;
            }
        };
        tokio::join!(report_stop, finish_or_abort(self.event_sender, EVENT_FLUSH_TIMEOUT));
        // So are traces. The workers have dropped the exporter.
        if let Some(sender) = self.trace_sender {
            finish_or_abort(sender, TRACE_FLUSH_TIMEOUT).await;
        }
    }
}
