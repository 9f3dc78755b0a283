//! The unit of the kubelet, read while the kubelet does not work.

use std::{future::pending, time::Duration};

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::{model::kubelet_unit::KubeletUnit, node::kubelet_unit::ReadUnit};

/// Minimum time between two reads: each one asks systemd and starts journalctl.
const INTERVAL: Duration = Duration::from_secs(10);

/// Reads the unit in the background.
pub struct UnitWatch {
    /// `None` if this node has no systemd to ask.
    read: Option<ReadUnit>,
    in_progress: Option<BoxFuture<'static, Option<KubeletUnit>>>,
    due: Instant,
    last: Option<KubeletUnit>,
}

// === impl UnitWatch ===

impl UnitWatch {
    /// Nothing is read yet.
    pub fn new(read: Option<ReadUnit>) -> Self {
        Self {
            read,
            in_progress: None,
            due: Instant::now(),
            last: None,
        }
    }

    /// Begins a read if one is due. `learned`: the unit of the last known kubelet process.
    pub fn read_if_due(&mut self, learned: impl FnOnce() -> Option<String>) {
        let now = Instant::now();
        if let Some(read) = self.read.as_ref().filter(|_| self.in_progress.is_none())
            && now >= self.due
        {
            self.due = now + INTERVAL;
            self.in_progress = Some(read(learned()));
        }
    }

    /// Forgets the unit of a kubelet that works.
    pub fn forget(&mut self) {
        (self.in_progress, self.last) = (None, None);
    }

    /// Reads the unit again, as it was changed.
    pub fn read_again(&mut self) {
        (self.in_progress, self.due) = (None, Instant::now());
    }

    /// Waits for the read in progress; forever if there is none. May be dropped and called again.
    pub async fn finish(&mut self) {
        let Some(read) = &mut self.in_progress else {
            return pending().await;
        };
        let unit = read.await;
        self.in_progress = None;
        let unit = unit.map(|unit| unit.after(self.last.as_ref()));
        let summary = |unit: &Option<KubeletUnit>| unit.as_ref().map(KubeletUnit::summary);
        if let Some(summary) = summary(&unit).filter(|it| summary(&self.last).as_ref() != Some(it)) {
            tracing::warn!(
                unit = summary,
                "The kubelet does not work; this is the state of its unit"
            );
        }
        self.last = unit;
    }

    /// The last state.
    pub fn unit(&self) -> Option<&KubeletUnit> {
        self.last.as_ref()
    }
}
