//! The work queue: each item once, with the backoff of failed items. Its verbs are those of client-go's workqueue.

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
/// Maximum delay that is left when a delayed item is added again.
const MAX_DELAY_WHEN_READDED: Duration = Duration::from_secs(1);
/// From this number of single items on, an owner's dependents are not queued one by one.
const MANY_ITEMS: usize = 10_000;

/// Work items with their state. It sends nothing: the engine takes ready items and reports each as done.
#[derive(Debug, Default)]
pub struct Queue {
    ready: Lanes,
    /// All single items: ready, in progress or delayed.
    entries: HashMap<WorkItem, Entry>,
    /// Owners whose dependents are decided on, with the number of dependents that are left.
    batches: HashMap<NodeId, u32>,
    delayed: BTreeSet<(Instant, WorkItem)>,
}

#[derive(Debug)]
struct Entry {
    lane: Lane,
    stage: Stage,
    since: Instant,
    num_requeues: u32,
    last_error: Option<Box<str>>,
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

/// Status of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemStatus {
    /// When it was enqueued.
    pub since: Instant,
    /// Number of failed attempts.
    pub num_requeues: u32,
    /// The last error.
    pub last_error: Option<String>,
    /// Since when it is in progress, if it is.
    pub in_progress_since: Option<Instant>,
}

/// Depth of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Depth {
    /// Items that are ready. A batch counts all its dependents.
    pub ready: u64,
    /// Items in progress.
    pub busy: u64,
    /// Items that wait to be retried.
    pub delayed: u64,
}

fn lane(item: WorkItem, kind: KindId) -> Lane {
    Lane {
        kind,
        is_get: matches!(item, WorkItem::GetOwner(_)),
    }
}

// === impl Queue ===

impl Queue {
    /// Adds an item, unless it is queued. `kind` is the kind of its object.
    pub fn add(&mut self, item: WorkItem, kind: KindId, now: Instant) {
        let Some(entry) = self.entries.get_mut(&item) else {
            let lane = lane(item, kind);
            self.entries.insert(item, Entry::new(lane, Stage::Ready, now));
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

    /// Adds a batch: all dependents of an owner. `kind` is that of the next dependent.
    pub fn add_batch(&mut self, owner: NodeId, kind: KindId, dependents: u32) {
        // A batch in progress goes through all dependents again: they form a ring.
        if dependents > 0 && self.batches.insert(owner, dependents).is_none() {
            self.continue_batch(owner, kind);
        }
    }

    /// The next item: a single one, which is in progress now, or a batch, which the caller continues or stops. Lanes
    /// with `crowded_from` requests in flight come last.
    pub fn pop(&mut self, now: Instant, crowded_from: usize) -> Option<WorkItem> {
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
        loop {
            let item = self.ready.pop_front(now, crowded_from)?;
            match item {
                // It was stopped.
                WorkItem::Dependents(owner) if !self.batches.contains_key(&owner) => continue,
                WorkItem::Dependents(_) => {}
                WorkItem::Decide(_) | WorkItem::GetOwner(_) => {
                    if let Some(entry) = self.entries.get_mut(&item) {
                        entry.stage = Stage::processing(now);
                    }
                }
            }
            return Some(item);
        }
    }

    /// Counts a dependent of a batch; `true` if there are more.
    pub fn count_dependent(&mut self, owner: NodeId) -> bool {
        match self.batches.get_mut(&owner) {
            Some(remaining) if *remaining > 1 => {
                *remaining -= 1;
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
        self.entries.len() >= MANY_ITEMS
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
        match self.entries.get_mut(&item).map(|entry| &mut entry.stage) {
            None => {
                let stage = Stage::processing(now);
                self.entries.insert(item, Entry::new(lane(item, kind), stage, now));
                true
            }
            // It is ready: its lane returns it.
            Some(Stage::Ready) => false,
            Some(_) => {
                self.add(item, kind, now);
                false
            }
        }
    }

    /// Stops an owner's batch.
    pub fn stop_batch(&mut self, id: NodeId) {
        // Its item in the lane is skipped later.
        self.batches.remove(&id);
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
        let backoff = FIRST_BACKOFF
            .saturating_mul(1 << entry.num_requeues.min(16))
            .min(MAX_BACKOFF);
        let pause = match (pause, entry.stage) {
            (Some(pause), _) => pause,
            (None, Stage::Processing { is_dirty: true, .. }) => backoff.min(MAX_DELAY_WHEN_READDED),
            (None, _) => backoff,
        };
        entry.num_requeues += 1;
        entry.last_error = Some(last_error.into());
        self.add_after(item, pause, now);
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

    /// Whether it is in progress.
    pub fn is_processing(&self, item: WorkItem) -> bool {
        let stage = self.entries.get(&item).map(|entry| entry.stage);
        matches!(stage, Some(Stage::Processing { .. }))
    }

    /// Number of failed attempts.
    pub fn num_requeues(&self, item: WorkItem) -> u32 {
        self.entries.get(&item).map_or(0, |entry| entry.num_requeues)
    }

    /// When the next delayed item is due, or a lane may have a free slot.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = self.delayed.first().map(|(due, _)| *due);
        [first, self.ready.next_due(now)].into_iter().flatten().min()
    }

    /// The queue's depth.
    pub fn depth(&self) -> Depth {
        let single = self.ready.len().saturating_sub(self.batches.len()) as u64;
        let delayed = self.delayed.len() as u64;
        Depth {
            ready: single
                + self
                    .batches
                    .values()
                    .map(|&remaining| u64::from(remaining))
                    .sum::<u64>(),
            busy: (self.entries.len() as u64).saturating_sub(single + delayed),
            delayed,
        }
    }

    /// When the oldest item was enqueued.
    pub fn oldest(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.since).min()
    }

    /// Status of an item, if it is queued.
    pub fn status(&self, item: WorkItem) -> Option<ItemStatus> {
        let entry = self.entries.get(&item)?;
        Some(ItemStatus {
            since: entry.since,
            num_requeues: entry.num_requeues,
            last_error: entry.last_error.as_deref().map(str::to_owned),
            in_progress_since: match entry.stage {
                Stage::Processing { since, .. } => Some(since),
                Stage::Ready | Stage::Delayed(_) => None,
            },
        })
    }

    /// All single items, and when they were enqueued.
    pub fn items(&self) -> impl Iterator<Item = (Instant, WorkItem)> {
        self.entries.iter().map(|(&item, entry)| (entry.since, item))
    }
}

// === impl Stage ===

impl Stage {
    fn processing(since: Instant) -> Self {
        Self::Processing { since, is_dirty: false }
    }
}

// === impl ItemStatus ===

impl ItemStatus {
    /// Names a request that gets no answer.
    pub fn hanging_request(&self, item: WorkItem, now: Instant) -> Option<String> {
        let waits = now.saturating_duration_since(self.in_progress_since?);
        let verb = if matches!(item, WorkItem::GetOwner(_)) {
            "GET"
        } else {
            "request"
        };
        let seconds = waits.as_secs();
        (waits >= SLOW).then(|| format!("the API server has not answered the {verb} for {seconds} s"))
    }
}

// === impl Entry ===

impl Entry {
    fn new(lane: Lane, stage: Stage, since: Instant) -> Self {
        Self {
            lane,
            stage,
            since,
            num_requeues: 0,
            last_error: None,
        }
    }
}
