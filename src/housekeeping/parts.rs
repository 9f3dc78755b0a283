//! What the search for leftovers needs, and what it reports.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::{
    counters::Counters, handover::guard::Guard, model::pod::PodView, teardown::context::Context, watch::SnapshotHandle,
    workers::WorkersHandle,
};

/// What the search for leftovers needs.
#[derive(Clone)]
pub struct HousekeepingParts {
    /// What all workers share.
    pub context: Arc<Context>,
    /// The counters.
    pub counters: Arc<Counters>,
    /// Knows whether the agent may act.
    pub guard: Guard,
    /// The known pods.
    pub snapshots: SnapshotHandle,
    /// The pods with a worker.
    pub workers: WorkersHandle,
    /// Gets the leftovers. Weak: the workers stop with the watch.
    pub changes: mpsc::WeakSender<Arc<PodView>>,
    /// The report in `status`.
    pub report: watch::Sender<LeftoverReport>,
}

/// Leftovers in `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LeftoverReport {
    /// Artifacts of deleted pods, which will be terminated.
    #[serde(default)]
    pub leftovers: Vec<String>,
    /// Artifacts without proof that they belong to a pod of the API server; they are not touched.
    #[serde(default)]
    pub unmanaged: Vec<String>,
    /// Volumes that no pod uses, and why they cannot be unstaged.
    #[serde(default)]
    pub unused_volumes: Vec<String>,
}
