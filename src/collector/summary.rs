//! What the log tells of the collector's work: that it has seen everything, what it cannot see, and each larger cascade in
//! one line.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{census::Census, counts::Counts, shared::Shared, watches::Watches};

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Where nothing happens for so long, a cascade has been worked off; the next deletion begins another one.
const REST: Duration = Duration::from_secs(5);
/// Fewer than so many objects are nothing to tell of.
const WORTH_A_LINE: u64 = 100;

/// What was done since the collector began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Objects deleted.
    pub deleted: u64,
    /// Objects of which references were taken out.
    pub released: u64,
}

/// A cascade that has been worked off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// What was done in it.
    pub done: Done,
    /// How long it took.
    pub took: Duration,
}

/// The cascade that goes on, if one does.
#[derive(Debug)]
pub struct Cascade {
    /// When it began, and what had been done before.
    begun: Option<(Instant, Done)>,
    last: Done,
    changed: Instant,
    looked: Instant,
}

// === impl Cascade ===

impl Cascade {
    /// Nothing was done yet.
    pub fn new(now: Instant) -> Self {
        Self {
            begun: None,
            last: Done::default(),
            changed: now,
            looked: now,
        }
    }

    /// How much was done until now, and whether there is nothing to do at the moment; returns a cascade that is over.
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

/// Tells of it for ever.
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
            tracing::info!(kinds, linked, lone, seconds, "The collector sees every kind");
        }
        if let Some(Summary { done, took }) = cascade.look(done, depth.ready + depth.busy == 0, now) {
            let (deleted, released, seconds) = (done.deleted, done.released, took.as_secs_f64());
            tracing::info!(deleted, released, seconds, "A cascade has been worked off");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told when so many are deleted at each second, and when the queue was empty.
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
        // Two of them, the second without what the first has done.
        assert_eq!(told(&[rest(200), rest(450)].concat(), 0), [(200, 1), (250, 1)]);
        // While there is something to do it goes on.
        assert_eq!(told(&[rest(200), rest(450)].concat(), 9), [(450, 9)]);
    }
}
