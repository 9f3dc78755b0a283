//! Which pods the API server is known to have here, for whoever looks for what belongs to none of them.

use std::collections::BTreeSet;

use tokio::sync::{mpsc, oneshot};

use crate::model::pod::PodUid;

/// The pods of this node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roll {
    /// Those that were shown, or are remembered, and are not known to be gone; also those that cannot be understood.
    pub pods: BTreeSet<PodUid>,
    /// Whether any of them lives by its object. A node of which the API server knows no pod at all may have been put into
    /// another cluster.
    pub any_of_the_api: bool,
}

/// Where the roll is asked for.
#[derive(Debug, Clone)]
pub struct RollCall(mpsc::Sender<oneshot::Sender<Roll>>);

/// What is asked of the watch; it waits until a complete list was taken in and the watch stands.
#[derive(Debug)]
pub(super) struct RollCalls(pub mpsc::Receiver<oneshot::Sender<Roll>>);

// === impl RollCall ===

impl RollCall {
    /// A place to ask, and what is asked there.
    pub(super) fn new() -> (Self, RollCalls) {
        let (calls, called) = mpsc::channel(1);
        (Self(calls), RollCalls(called))
    }

    /// The pods of this node, once they are known; `None` when the agent stops.
    pub async fn roll(&self) -> Option<Roll> {
        let (answer, told) = oneshot::channel();
        self.0.send(answer).await.ok()?;
        told.await.ok()
    }
}
