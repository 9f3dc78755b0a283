//! Snapshots of the known pods of this node, for the search for leftovers.

use std::collections::BTreeSet;

use tokio::sync::{mpsc, oneshot};

use crate::model::pod::PodUid;

/// The known pods of this node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSnapshot {
    /// Pods that are known, or remembered from an earlier run, and not deleted; unreadable ones, too.
    pub pods: BTreeSet<PodUid>,
    /// Whether any of them is no mirror pod. A node without any pod in the API may have joined another cluster.
    pub has_api_pods: bool,
}

/// Requests snapshots from the watch.
#[derive(Debug, Clone)]
pub struct SnapshotHandle(mpsc::Sender<oneshot::Sender<PodSnapshot>>);

// === impl SnapshotHandle ===

impl SnapshotHandle {
    /// Both ends of the channel.
    pub(super) fn new() -> (Self, mpsc::Receiver<oneshot::Sender<PodSnapshot>>) {
        let (requests, received) = mpsc::channel(1);
        (Self(requests), received)
    }

    /// The known pods after the next complete list; `None` when the agent stops.
    pub async fn snapshot(&self) -> Option<PodSnapshot> {
        let (answer, snapshot) = oneshot::channel();
        self.0.send(answer).await.ok()?;
        snapshot.await.ok()
    }
}
