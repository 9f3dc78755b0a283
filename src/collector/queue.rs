//! The work queue: each item once, with the backoff of failed items. Its verbs are those of client-go's workqueue.

mod lanes;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use self::lanes::{Feedback, Lane, Lanes, SLOW};
use super::{
    graph::WorkItem,
    kinds::KindId,
    outage::{Outage, backoff},
};

/// Delay after the first failure, and its maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(300));
/// Maximum delay that is left when a delayed item is added again.
const MAX_DELAY_WHEN_READDED: Duration = Duration::from_secs(1);

/// Work items with their state. It sends nothing: the engine takes ready items and reports each as done.
#[derive(Debug, Default)]
pub struct Queue {
    pub ready: Lanes,
    /// Requests get no answer, and no watch has had one since.
    pub outage: Outage,
    /// All items: ready, in progress or delayed.
    entries: HashMap<WorkItem, Entry>,
    delayed: BTreeSet<(Instant, WorkItem)>,
}

#[derive(Debug)]
pub struct Entry {
    lane: Lane,
    stage: Stage,
    pub since: Instant,
    pub num_requeues: u32,
    pub last_error: Option<Box<str>>,
    pub refused: Option<Refusal>,
}

/// The API server refuses an item's requests.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    pub step: &'static str,
    /// HTTP status of the last answer.
    pub code: u16,
    /// The first of the refusals in a row.
    pub since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ready,
    /// In progress; `is_dirty` if it was added meanwhile.
    Processing {
        since: Instant,
        is_dirty: bool,
    },
    Delayed(Instant),
}

/// Depth of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Depth {
    /// Items that are ready.
    pub ready: u64,
    /// Items in progress.
    pub busy: u64,
    /// Items that wait to be retried.
    pub delayed: u64,
}

// === impl Queue ===

impl Queue {
    /// Adds an item, unless it is queued. `kind` is the kind of its object.
    pub fn add(&mut self, item: WorkItem, kind: KindId, now: Instant) {
        let Some(entry) = self.entries.get_mut(&item) else {
            let lane = Lane::of(item, kind);
            let entry = Entry {
                lane,
                stage: Stage::Ready,
                since: now,
                num_requeues: 0,
                last_error: None,
                refused: None,
            };
            self.entries.insert(item, entry);
            self.ready.push_back(lane, item);
            return;
        };
        match &mut entry.stage {
            Stage::Ready => {}
            Stage::Processing { is_dirty, .. } => *is_dirty = true,
            Stage::Delayed(due) if *due > now + MAX_DELAY_WHEN_READDED => {
                self.delayed.remove(&(*due, item));
                *due = now + MAX_DELAY_WHEN_READDED;
                self.delayed.insert((*due, item));
            }
            Stage::Delayed(_) => {}
        }
    }

    /// The next item, which is in progress now.
    pub fn pop(&mut self, now: Instant) -> Option<WorkItem> {
        if !self.outage.allows(now) {
            return None;
        }
        while let Some(&(due, item)) = self.delayed.first() {
            if due > now {
                break;
            }
            self.delayed.pop_first();
            if let Some(entry) = self.entries.get_mut(&item) {
                entry.stage = Stage::Ready;
                self.ready.push_back(entry.lane, item);
            }
        }
        let item = self.ready.pop_front(now)?;
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.stage = Stage::Processing {
                since: now,
                is_dirty: false,
            };
        }
        Some(item)
    }

    /// Ends an item in progress. If it was added meanwhile, it is ready again.
    pub fn done(&mut self, item: WorkItem, now: Instant) {
        let Some(entry) = self.entries.get_mut(&item) else {
            return;
        };
        match entry.stage {
            Stage::Processing { is_dirty: true, .. } => {
                entry.stage = Stage::Ready;
                (entry.num_requeues, entry.since, entry.last_error) = (0, now, None);
                entry.refused = None;
                self.ready.push_back(entry.lane, item);
            }
            Stage::Processing { is_dirty: false, .. } => drop(self.entries.remove(&item)),
            // It is returned later.
            Stage::Ready | Stage::Delayed(_) => {}
        }
    }

    /// Delays an item after a failure, by `pause` or else by exponential backoff.
    pub fn add_rate_limited(&mut self, item: WorkItem, last_error: &str, pause: Option<Duration>, now: Instant) {
        let Some(entry) = self.entries.get_mut(&item) else {
            return;
        };
        let backoff = backoff(BACKOFF, entry.num_requeues);
        let pause = match (pause, entry.stage) {
            (Some(pause), _) => pause,
            (None, Stage::Processing { is_dirty: true, .. }) => backoff.min(MAX_DELAY_WHEN_READDED),
            (None, _) => backoff,
        };
        entry.num_requeues += 1;
        entry.last_error = Some(last_error.into());
        entry.refused = None;
        self.add_after(item, pause, now);
    }

    /// Records that the last failure of an item was a refusal.
    pub fn record_refusal(&mut self, item: WorkItem, refusal: Refusal) {
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.refused = Some(refusal);
        }
    }

    /// Delays an item without a failure.
    pub fn add_after(&mut self, item: WorkItem, pause: Duration, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.stage = Stage::Delayed(now + pause);
            self.delayed.insert((now + pause, item));
        }
    }

    /// Returns an item that was not started; it is the next one of its lane.
    pub fn requeue(&mut self, item: WorkItem) {
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.stage = Stage::Ready;
            self.ready.push_front(entry.lane, item);
        }
    }

    pub fn is_processing(&self, item: WorkItem) -> bool {
        let stage = self.entries.get(&item).map(|entry| entry.stage);
        matches!(stage, Some(Stage::Processing { .. }))
    }

    pub fn num_requeues(&self, item: WorkItem) -> u32 {
        self.entries.get(&item).map_or(0, |entry| entry.num_requeues)
    }

    /// When the next delayed item is due, a lane may have a free slot, or the pause of an outage is over.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = self.delayed.first().map(|(due, _)| *due);
        let due = [first, self.ready.next_due(now), self.outage.pause_end()];
        due.into_iter().flatten().filter(|&at| at > now).min()
    }

    pub fn depth(&self) -> Depth {
        let (ready, delayed) = (self.ready.len() as u64, self.delayed.len() as u64);
        Depth {
            ready,
            busy: (self.entries.len() as u64).saturating_sub(ready + delayed),
            delayed,
        }
    }

    pub fn has_failed(&self, item: WorkItem) -> bool {
        self.entries.get(&item).is_some_and(|entry| entry.last_error.is_some())
    }

    pub fn entry(&self, item: WorkItem) -> Option<&Entry> {
        self.entries.get(&item)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&WorkItem, &Entry)> {
        self.entries.iter()
    }
}

// === impl Entry ===

impl Entry {
    pub fn kind(&self) -> KindId {
        self.lane.kind
    }

    /// Names a request that gets no answer.
    pub fn hanging_request(&self, now: Instant) -> Option<String> {
        let Stage::Processing { since, .. } = self.stage else {
            return None;
        };
        let waits = now.saturating_duration_since(since);
        let verb = if self.lane.is_get { "GET" } else { "request" };
        let seconds = waits.as_secs();
        (waits >= SLOW).then(|| format!("the API server has not answered the {verb} for {seconds} s"))
    }
}
