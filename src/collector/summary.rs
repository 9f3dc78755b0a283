//! Logs the collector's progress: when all kinds are synced, which kinds cannot be watched, and each large cascade of
//! deletions.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{census::Census, counts::Counts, shared::Shared, watches::Watches};

/// Interval between two updates.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A cascade ends after this time without a write.
const REST: Duration = Duration::from_secs(5);
/// Minimum number of objects of a cascade that is logged.
const WORTH_A_LINE: u64 = 100;

/// Number of writes since the collector's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Objects deleted.
    pub deleted: u64,
    /// Objects that lost owner references.
    pub released: u64,
}

/// A finished cascade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Writes of the cascade.
    pub done: Done,
    /// Its duration.
    pub took: Duration,
}

/// Detects cascades of deletions.
#[derive(Debug)]
pub struct Cascade {
    /// Start of the current cascade, and the number of writes before it.
    begun: Option<(Instant, Done)>,
    last: Done,
    changed: Instant,
    looked: Instant,
}

// === impl Cascade ===

impl Cascade {
    /// No cascade has started.
    pub fn new(now: Instant) -> Self {
        Self {
            begun: None,
            last: Done::default(),
            changed: now,
            looked: now,
        }
    }

    /// Updates with the current number of writes and whether the queue is empty. Returns a cascade that has finished.
    pub fn look(&mut self, done: Done, is_idle: bool, now: Instant) -> Option<Summary> {
        let before = std::mem::replace(&mut self.looked, now);
        if done != self.last {
            self.begun.get_or_insert((before, self.last));
            (self.last, self.changed) = (done, now);
            return None;
        }
        if !is_idle || now < self.changed + REST {
            return None;
        }
        let (at, first) = self.begun.take()?;
        let done = Done {
            deleted: done.deleted - first.deleted,
            released: done.released - first.released,
        };
        let took = self.changed.saturating_duration_since(at);
        (done.deleted + done.released >= WORTH_A_LINE).then_some(Summary { done, took })
    }
}

// === impl Done ===

impl Done {
    fn of(counts: &Counts) -> Self {
        Self {
            deleted: counts.deleted,
            released: counts.released,
        }
    }
}

/// Runs until it is dropped.
pub async fn tell(shared: Arc<Shared>) {
    let begun = Instant::now();
    let mut cascade = Cascade::new(begun);
    let mut watches = Watches::default();
    let mut census = Census::default();
    let mut synced = false;
    loop {
        sleep(LOOK_EVERY).await;
        let now = Instant::now();
        let mut core = shared.lock();
        if let Some(tally) = census.look(&core.graph, now) {
            core.tally = tally;
        }
        let depth = core.queue.depth();
        let done = Done::of(&core.counts);
        let sees_all = !synced && core.sight.unsynced_because(now).is_none();
        let (kinds, (linked, lone)) = (core.sight.watched.len(), core.graph.len());
        let news = watches.look(&core.sight, now);
        drop(core);
        for news in news {
            news.tell();
        }
        if sees_all {
            synced = true;
            let seconds = now.saturating_duration_since(begun).as_secs();
            tracing::info!(kinds, linked, lone, seconds, "All kinds are synced");
        }
        if let Some(Summary { done, took }) = cascade.look(done, depth.ready + depth.busy == 0, now) {
            let (deleted, released, seconds) = (done.deleted, done.released, took.as_secs_f64());
            tracing::info!(deleted, released, seconds, "Cascade finished");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The logged cascades, by deletions in each second. The queue is empty from second `busy_until` on.
    fn told(deleted: &[u64], busy_until: usize) -> Vec<(u64, u64)> {
        let start = Instant::now();
        let mut cascade = Cascade::new(start);
        let mut told = Vec::new();
        for (second, &deleted) in deleted.iter().enumerate() {
            let done = Done { deleted, released: 0 };
            let now = start + Duration::from_secs(second as u64 + 1);
            if let Some(summary) = cascade.look(done, second >= busy_until, now) {
                told.push((summary.done.deleted, summary.took.as_secs()));
            }
        }
        told
    }

    #[test]
    fn a_large_cascade_is_told_once_when_nothing_happens_any_more_and_a_small_one_never() {
        let rest = |count: u64| vec![count; 8];
        assert_eq!(told(&[vec![0, 50, 90], rest(120)].concat(), 0), [(120, 3)]);
        assert_eq!(told(&[vec![0, 50], rest(99)].concat(), 0), []);
        // Two cascades; the second does not include the first.
        assert_eq!(told(&[rest(200), rest(450)].concat(), 0), [(200, 1), (250, 1)]);
        // A cascade continues while the queue has items.
        assert_eq!(told(&[rest(200), rest(450)].concat(), 9), [(450, 9)]);
    }
}
