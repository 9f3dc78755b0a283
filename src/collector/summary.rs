//! Logs the collector's progress: when all kinds are synced, which kinds cannot be watched, and each large cascade of
//! deletions.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{census::Census, counts::Counts, failing_kinds::FailingKinds, shared::Shared};

/// Interval between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// A cascade ends after this time without a write.
const QUIET_PERIOD: Duration = Duration::from_secs(5);
/// Minimum number of objects of a cascade that is logged.
const MIN_OBJECTS: u64 = 100;

/// Number of writes since the collector's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Writes {
    /// Objects deleted.
    pub deleted: u64,
    /// Objects that lost owner references.
    pub references_dropped: u64,
}

/// A finished cascade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Writes of the cascade.
    pub writes: Writes,
    /// Its duration.
    pub duration: Duration,
}

/// Detects cascades of deletions.
#[derive(Debug)]
pub struct Cascade {
    /// Start of the current cascade, and the number of writes before it.
    started: Option<(Instant, Writes)>,
    last: Writes,
    changed: Instant,
    updated: Instant,
}

// === impl Cascade ===

impl Cascade {
    /// No cascade has started.
    pub fn new(now: Instant) -> Self {
        Self {
            started: None,
            last: Writes::default(),
            changed: now,
            updated: now,
        }
    }

    /// Updates with the current number of writes and whether the queue is empty. Returns a cascade that has finished.
    pub fn update(&mut self, writes: Writes, is_idle: bool, now: Instant) -> Option<Summary> {
        let before = std::mem::replace(&mut self.updated, now);
        if writes != self.last {
            self.started.get_or_insert((before, self.last));
            (self.last, self.changed) = (writes, now);
            return None;
        }
        if !is_idle || now < self.changed + QUIET_PERIOD {
            return None;
        }
        let (started, before) = self.started.take()?;
        let writes = Writes {
            deleted: writes.deleted - before.deleted,
            references_dropped: writes.references_dropped - before.references_dropped,
        };
        let duration = self.changed.saturating_duration_since(started);
        (writes.deleted + writes.references_dropped >= MIN_OBJECTS).then_some(Summary { writes, duration })
    }
}

// === impl Writes ===

impl Writes {
    fn from_counts(counts: &Counts) -> Self {
        Self {
            deleted: counts.deleted,
            references_dropped: counts.references_dropped,
        }
    }
}

/// Runs until it is dropped.
pub async fn log_progress(shared: Arc<Shared>) {
    let started = Instant::now();
    let mut cascade = Cascade::new(started);
    let mut failing_kinds = FailingKinds::default();
    let mut census = Census::default();
    let mut synced = false;
    loop {
        sleep(INTERVAL).await;
        let now = Instant::now();
        let mut core = shared.lock();
        if let Some(tally) = census.advance(&core.graph, now) {
            core.tally = tally;
        }
        let depth = core.queue.depth();
        let writes = Writes::from_counts(&core.counts);
        let is_newly_synced = !synced && core.sync_state.unsynced_reason(now).is_none();
        let (kinds, (linked, isolated)) = (core.sync_state.watched.len(), core.graph.len());
        let lines = failing_kinds.update(&core.sync_state, now);
        drop(core);
        for line in lines {
            line.log();
        }
        if is_newly_synced {
            synced = true;
            let seconds = now.saturating_duration_since(started).as_secs();
            tracing::info!(kinds, linked, isolated, seconds, "All kinds are synced");
        }
        if let Some(Summary { writes, duration }) = cascade.update(writes, depth.ready + depth.busy == 0, now) {
            let (deleted, released, seconds) = (writes.deleted, writes.references_dropped, duration.as_secs_f64());
            tracing::info!(deleted, released, seconds, "Cascade finished");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The logged cascades, by deletions in each second. The queue is empty from second `busy_until` on.
    fn logged(deleted: &[u64], busy_until: usize) -> Vec<(u64, u64)> {
        let start = Instant::now();
        let mut cascade = Cascade::new(start);
        let mut logged = Vec::new();
        for (second, &deleted) in deleted.iter().enumerate() {
            let writes = Writes {
                deleted,
                references_dropped: 0,
            };
            let now = start + Duration::from_secs(second as u64 + 1);
            if let Some(summary) = cascade.update(writes, second >= busy_until, now) {
                logged.push((summary.writes.deleted, summary.duration.as_secs()));
            }
        }
        logged
    }

    #[test]
    fn a_large_cascade_is_logged_once_and_a_small_one_never() {
        let rest = |count: u64| vec![count; 8];
        assert_eq!(logged(&[vec![0, 50, 90], rest(120)].concat(), 0), [(120, 3)]);
        assert_eq!(logged(&[vec![0, 50], rest(99)].concat(), 0), []);
        // Two cascades; the second does not include the first.
        assert_eq!(logged(&[rest(200), rest(450)].concat(), 0), [(200, 1), (250, 1)]);
        // A cascade continues while the queue has items.
        assert_eq!(logged(&[rest(200), rest(450)].concat(), 9), [(450, 9)]);
    }
}
