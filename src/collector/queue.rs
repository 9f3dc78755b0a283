//! The work queue: each item once, with the backoff of failed items.

mod lanes;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::lanes::Lanes;
pub use self::lanes::{Feedback, Lane, SLOW};
use super::{
    graph::{NodeId, WorkItem},
    kinds::KindId,
};

/// Delay after the first failure; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum delay.
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// Maximum delay that is left when a delayed item is pushed again.
const MAX_DELAY_WHEN_PUSHED: Duration = Duration::from_secs(1);
/// From this number of single items on, an owner's dependents are not queued one by one.
const MANY_ITEMS: usize = 10_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Queue {
    ready: Lanes,
    /// All single items: ready, in progress or delayed.
    marks: HashMap<WorkItem, Mark>,
    /// Owners whose dependents are decided on, with the number of dependents that are left.
    batches: HashMap<NodeId, u32>,
    delayed: BTreeSet<(Instant, WorkItem)>,
}

#[derive(Debug)]
struct Mark {
    lane: Lane,
    stage: Stage,
    since: Instant,
    tries: u32,
    last_error: Option<Box<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ready,
    /// In progress; `again` if it was pushed meanwhile.
    InProgress {
        again: bool,
    },
    Delayed(Instant),
}

/// Status of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemStatus {
    /// When it was enqueued.
    pub since: Instant,
    /// Number of failed attempts.
    pub tries: u32,
    /// The last error.
    pub last_error: Option<String>,
}

/// Depth of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Depth {
    /// Items that are ready. A batch counts all its dependents.
    pub ready: u64,
    /// Items in progress.
    pub busy: u64,
    /// Items that wait to be retried.
    pub put_off: u64,
}

fn lane(item: WorkItem, kind: KindId) -> Lane {
    Lane {
        kind,
        is_get: matches!(item, WorkItem::GetOwner(_)),
    }
}

// === impl Queue ===

impl Queue {
    /// Enqueues an item, unless it is queued. `kind` is the kind of its object.
    pub fn push(&mut self, item: WorkItem, kind: KindId, now: Instant) {
        let Some(mark) = self.marks.get_mut(&item) else {
            let lane = lane(item, kind);
            self.marks.insert(item, Mark::new(lane, Stage::Ready, now));
            self.ready.push_back(lane, item);
            return;
        };
        match &mut mark.stage {
            Stage::Ready => {}
            Stage::InProgress { again } => *again = true,
            Stage::Delayed(due) if *due > now + MAX_DELAY_WHEN_PUSHED => {
                self.delayed.remove(&(*due, item));
                *due = now + MAX_DELAY_WHEN_PUSHED;
                self.delayed.insert((*due, item));
            }
            Stage::Delayed(_) => {}
        }
    }

    /// Enqueues a batch: all dependents of an owner. `kind` is that of the next dependent.
    pub fn push_batch(&mut self, owner: NodeId, kind: KindId, dependents: u32) {
        // A batch in progress goes through all dependents again: they form a ring.
        if dependents > 0 && self.batches.insert(owner, dependents).is_none() {
            self.continue_batch(owner, kind);
        }
    }

    /// The next item: a single one, which is in progress now, or a batch, which the caller continues or stops. Lanes
    /// with `many` requests in flight come last.
    pub fn pop(&mut self, now: Instant, many: usize) -> Option<WorkItem> {
        while let Some(&(due, item)) = self.delayed.first() {
            if due > now {
                break;
            }
            self.delayed.pop_first();
            if let Some(mark) = self.marks.get_mut(&item) {
                mark.stage = Stage::Ready;
                self.ready.push_back(mark.lane, item);
            }
        }
        loop {
            let item = self.ready.pop_front(now, many)?;
            match item {
                // It was stopped.
                WorkItem::Dependents(owner) if !self.batches.contains_key(&owner) => continue,
                WorkItem::Dependents(_) => {}
                WorkItem::Decide(_) | WorkItem::GetOwner(_) => {
                    if let Some(mark) = self.marks.get_mut(&item) {
                        mark.stage = Stage::InProgress { again: false };
                    }
                }
            }
            return Some(item);
        }
    }

    /// Counts a dependent of a batch; `true` if there are more.
    pub fn count_dependent(&mut self, owner: NodeId) -> bool {
        match self.batches.get_mut(&owner) {
            Some(left) if *left > 1 => {
                *left -= 1;
                true
            }
            _ => {
                self.batches.remove(&owner);
                false
            }
        }
    }

    /// Enqueues the rest of a batch. `kind` is that of the next dependent.
    pub fn continue_batch(&mut self, owner: NodeId, kind: KindId) {
        let item = WorkItem::Dependents(owner);
        self.ready.push_back(lane(item, kind), item);
    }

    /// Whether writes to this kind pause.
    pub fn is_paused(&self, kind: KindId, now: Instant) -> bool {
        self.ready.is_paused(Lane { kind, is_get: false }, now)
    }

    /// Whether many single items are queued.
    pub fn has_many(&self) -> bool {
        self.marks.len() >= MANY_ITEMS
    }

    /// Records the start of a request.
    pub fn request_started(&mut self, lane: Lane, now: Instant) {
        self.ready.request_started(lane, now);
    }

    /// Records the answer to the request that started at `started`.
    pub fn request_finished(&mut self, lane: Lane, started: Instant, answer: Feedback) {
        self.ready.request_finished(lane, started, answer);
    }

    /// Number of slow requests in flight. They do not count for the limit.
    pub fn slow_in_flight(&self, now: Instant) -> usize {
        self.ready.slow_in_flight(now)
    }

    /// Starts an item that is not queued; `false` if it is in progress or delayed.
    pub fn start(&mut self, item: WorkItem, kind: KindId, now: Instant) -> bool {
        match self.marks.get_mut(&item).map(|mark| &mut mark.stage) {
            None => {
                let stage = Stage::InProgress { again: false };
                self.marks.insert(item, Mark::new(lane(item, kind), stage, now));
                true
            }
            // It is ready: its lane returns it.
            Some(Stage::Ready) => false,
            Some(_) => {
                self.push(item, kind, now);
                false
            }
        }
    }

    /// Stops an owner's batch.
    pub fn stop_batch(&mut self, id: NodeId) {
        // Its item in the lane is skipped later.
        self.batches.remove(&id);
    }

    /// Ends an item in progress. If it was pushed meanwhile, it is ready again.
    pub fn done(&mut self, item: WorkItem, now: Instant) {
        let Some(mark) = self.marks.get_mut(&item) else {
            return;
        };
        match mark.stage {
            Stage::InProgress { again: true } => {
                mark.stage = Stage::Ready;
                (mark.tries, mark.since, mark.last_error) = (0, now, None);
                self.ready.push_back(mark.lane, item);
            }
            Stage::InProgress { again: false } => drop(self.marks.remove(&item)),
            // It is returned later.
            Stage::Ready | Stage::Delayed(_) => {}
        }
    }

    /// Delays an item after a failure, by `pause` or else by exponential backoff.
    pub fn retry(&mut self, item: WorkItem, last_error: &str, pause: Option<Duration>, now: Instant) {
        let Some(mark) = self.marks.get_mut(&item) else {
            return;
        };
        let backoff = FIRST_BACKOFF.saturating_mul(1 << mark.tries.min(16)).min(MAX_BACKOFF);
        let pause = match (pause, mark.stage) {
            (Some(pause), _) => pause,
            (None, Stage::InProgress { again: true }) => backoff.min(MAX_DELAY_WHEN_PUSHED),
            (None, _) => backoff,
        };
        mark.tries += 1;
        mark.last_error = Some(last_error.into());
        self.delay(item, pause, now);
    }

    /// Delays an item without a failure.
    pub fn delay(&mut self, item: WorkItem, pause: Duration, now: Instant) {
        if let Some(mark) = self.marks.get_mut(&item) {
            mark.stage = Stage::Delayed(now + pause);
            self.delayed.insert((now + pause, item));
        }
    }

    /// Returns an item that was not started; it is the next one of its lane.
    pub fn requeue(&mut self, item: WorkItem) {
        if let Some(mark) = self.marks.get_mut(&item) {
            mark.stage = Stage::Ready;
            self.ready.push_front(mark.lane, item);
        }
    }

    /// Whether it is in progress.
    pub fn is_busy(&self, item: WorkItem) -> bool {
        let stage = self.marks.get(&item).map(|mark| mark.stage);
        matches!(stage, Some(Stage::InProgress { .. }))
    }

    /// Number of failed attempts.
    pub fn tries(&self, item: WorkItem) -> u32 {
        self.marks.get(&item).map_or(0, |mark| mark.tries)
    }

    /// When the next delayed item is due, or a lane may have a free slot.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = self.delayed.first().map(|(due, _)| *due);
        [first, self.ready.next_due(now)].into_iter().flatten().min()
    }

    /// The queue's depth.
    pub fn depth(&self) -> Depth {
        let single = self.ready.len().saturating_sub(self.batches.len()) as u64;
        let put_off = self.delayed.len() as u64;
        Depth {
            ready: single + self.batches.values().map(|&left| u64::from(left)).sum::<u64>(),
            busy: (self.marks.len() as u64).saturating_sub(single + put_off),
            put_off,
        }
    }

    /// When the oldest item was enqueued.
    pub fn oldest(&self) -> Option<Instant> {
        self.marks.values().map(|mark| mark.since).min()
    }

    /// Status of an item, if it is queued.
    pub fn status(&self, item: WorkItem) -> Option<ItemStatus> {
        let mark = self.marks.get(&item)?;
        Some(ItemStatus {
            since: mark.since,
            tries: mark.tries,
            last_error: mark.last_error.as_deref().map(str::to_owned),
        })
    }

    /// All single items, and when they were enqueued.
    pub fn items(&self) -> impl Iterator<Item = (Instant, WorkItem)> {
        self.marks.iter().map(|(&item, mark)| (mark.since, item))
    }
}

// === impl Mark ===

impl Mark {
    fn new(lane: Lane, stage: Stage, since: Instant) -> Self {
        Self {
            lane,
            stage,
            since,
            tries: 0,
            last_error: None,
        }
    }
}
