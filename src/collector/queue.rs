//! The work queue: each item once, with the backoff of failed items.

mod lanes;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::lanes::Lanes;
pub use self::lanes::{Answer, Lane, SLOW};
use super::{
    graph::{Hint, NodeId},
    kinds::KindId,
};

/// Delay after the first failure; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(100);
/// Maximum delay.
const LONGEST: Duration = Duration::from_secs(300);
/// Maximum delay that is left when a delayed item is pushed again.
const SOON: Duration = Duration::from_secs(1);
/// From this number of single items on, an owner's dependents are not queued one by one.
const MANY: usize = 10_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Queue {
    ready: Lanes,
    /// All single items: ready, in progress or delayed.
    marks: HashMap<Hint, Mark>,
    /// Owners whose dependents are decided on, with the number of dependents that are left.
    batches: HashMap<NodeId, u32>,
    put_off: BTreeSet<(Instant, Hint)>,
}

#[derive(Debug)]
struct Mark {
    lane: Lane,
    stage: Stage,
    since: Instant,
    tries: u32,
    trouble: Option<Box<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ready,
    /// In progress; `again` if it was pushed meanwhile.
    Busy {
        again: bool,
    },
    PutOff(Instant),
}

/// Status of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// When it was enqueued.
    pub since: Instant,
    /// Number of failed attempts.
    pub tries: u32,
    /// The last error.
    pub trouble: Option<String>,
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

fn lane(hint: Hint, kind: KindId) -> Lane {
    Lane {
        kind,
        asks: matches!(hint, Hint::Ask(_)),
    }
}

// === impl Queue ===

impl Queue {
    /// Enqueues an item, unless it is queued. `kind` is the kind of its object.
    pub fn push(&mut self, hint: Hint, kind: KindId, now: Instant) {
        let Some(mark) = self.marks.get_mut(&hint) else {
            let lane = lane(hint, kind);
            self.marks.insert(hint, Mark::new(lane, Stage::Ready, now));
            self.ready.push_back(lane, hint);
            return;
        };
        match &mut mark.stage {
            Stage::Ready => {}
            Stage::Busy { again } => *again = true,
            Stage::PutOff(due) if *due > now + SOON => {
                self.put_off.remove(&(*due, hint));
                *due = now + SOON;
                self.put_off.insert((*due, hint));
            }
            Stage::PutOff(_) => {}
        }
    }

    /// Enqueues a batch: all dependents of an owner. `kind` is that of the next dependent.
    pub fn push_dependents(&mut self, owner: NodeId, kind: KindId, dependents: u32) {
        // A batch in progress goes through all dependents again: they form a ring.
        if dependents > 0 && self.batches.insert(owner, dependents).is_none() {
            self.go_on(owner, kind);
        }
    }

    /// The next item: a single one, which is in progress now, or a batch, which the caller continues or stops. Lanes
    /// with `many` requests in flight come last.
    pub fn pop(&mut self, now: Instant, many: usize) -> Option<Hint> {
        while let Some(&(due, hint)) = self.put_off.first() {
            if due > now {
                break;
            }
            self.put_off.pop_first();
            if let Some(mark) = self.marks.get_mut(&hint) {
                mark.stage = Stage::Ready;
                self.ready.push_back(mark.lane, hint);
            }
        }
        loop {
            let hint = self.ready.pop_front(now, many)?;
            match hint {
                // It was stopped.
                Hint::Dependents(owner) if !self.batches.contains_key(&owner) => continue,
                Hint::Dependents(_) => {}
                Hint::Decide(_) | Hint::Ask(_) => {
                    if let Some(mark) = self.marks.get_mut(&hint) {
                        mark.stage = Stage::Busy { again: false };
                    }
                }
            }
            return Some(hint);
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
    pub fn go_on(&mut self, owner: NodeId, kind: KindId) {
        let hint = Hint::Dependents(owner);
        self.ready.push_back(lane(hint, kind), hint);
    }

    /// Whether writes to this kind pause.
    pub fn rests(&self, kind: KindId, now: Instant) -> bool {
        self.ready.rests(Lane { kind, asks: false }, now)
    }

    /// Whether many single items are queued.
    pub fn is_long(&self) -> bool {
        self.marks.len() >= MANY
    }

    /// Records the start of a request.
    pub fn began(&mut self, lane: Lane, now: Instant) {
        self.ready.began(lane, now);
    }

    /// Records the answer to the request that started at `begun`.
    pub fn ended(&mut self, lane: Lane, begun: Instant, answer: Answer) {
        self.ready.ended(lane, begun, answer);
    }

    /// Number of slow requests in flight. They do not count for the limit.
    pub fn slow_under_way(&self, now: Instant) -> usize {
        self.ready.slow_under_way(now)
    }

    /// Starts an item that is not queued; `false` if it is in progress or delayed.
    pub fn begin(&mut self, hint: Hint, kind: KindId, now: Instant) -> bool {
        match self.marks.get_mut(&hint).map(|mark| &mut mark.stage) {
            None => {
                let stage = Stage::Busy { again: false };
                self.marks.insert(hint, Mark::new(lane(hint, kind), stage, now));
                true
            }
            // It is ready: its lane returns it.
            Some(Stage::Ready) => false,
            Some(_) => {
                self.push(hint, kind, now);
                false
            }
        }
    }

    /// Stops an owner's batch.
    pub fn stop(&mut self, id: NodeId) {
        // Its item in the lane is skipped later.
        self.batches.remove(&id);
    }

    /// Ends an item in progress. If it was pushed meanwhile, it is ready again.
    pub fn done(&mut self, hint: Hint, now: Instant) {
        let Some(mark) = self.marks.get_mut(&hint) else {
            return;
        };
        match mark.stage {
            Stage::Busy { again: true } => {
                mark.stage = Stage::Ready;
                (mark.tries, mark.since, mark.trouble) = (0, now, None);
                self.ready.push_back(mark.lane, hint);
            }
            Stage::Busy { again: false } => drop(self.marks.remove(&hint)),
            // It is returned later.
            Stage::Ready | Stage::PutOff(_) => {}
        }
    }

    /// Delays an item after a failure, by `pause` or else by exponential backoff.
    pub fn retry(&mut self, hint: Hint, trouble: &str, pause: Option<Duration>, now: Instant) {
        let Some(mark) = self.marks.get_mut(&hint) else {
            return;
        };
        let backoff = FIRST.saturating_mul(1 << mark.tries.min(16)).min(LONGEST);
        let pause = match (pause, mark.stage) {
            (Some(pause), _) => pause,
            (None, Stage::Busy { again: true }) => backoff.min(SOON),
            (None, _) => backoff,
        };
        mark.tries += 1;
        mark.trouble = Some(trouble.into());
        self.put_off(hint, pause, now);
    }

    /// Delays an item without a failure.
    pub fn put_off(&mut self, hint: Hint, pause: Duration, now: Instant) {
        if let Some(mark) = self.marks.get_mut(&hint) {
            mark.stage = Stage::PutOff(now + pause);
            self.put_off.insert((now + pause, hint));
        }
    }

    /// Returns an item that was not started; it is the next one of its lane.
    pub fn put_back(&mut self, hint: Hint) {
        if let Some(mark) = self.marks.get_mut(&hint) {
            mark.stage = Stage::Ready;
            self.ready.push_front(mark.lane, hint);
        }
    }

    /// Whether it is in progress.
    pub fn is_busy(&self, hint: Hint) -> bool {
        let stage = self.marks.get(&hint).map(|mark| mark.stage);
        matches!(stage, Some(Stage::Busy { .. }))
    }

    /// Number of failed attempts.
    pub fn tries(&self, hint: Hint) -> u32 {
        self.marks.get(&hint).map_or(0, |mark| mark.tries)
    }

    /// When the next delayed item is due, or a lane may have a free slot.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = self.put_off.first().map(|(due, _)| *due);
        [first, self.ready.next_due(now)].into_iter().flatten().min()
    }

    /// The queue's depth.
    pub fn depth(&self) -> Depth {
        let single = self.ready.len().saturating_sub(self.batches.len()) as u64;
        let put_off = self.put_off.len() as u64;
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
    pub fn look(&self, hint: Hint) -> Option<Waiting> {
        let mark = self.marks.get(&hint)?;
        Some(Waiting {
            since: mark.since,
            tries: mark.tries,
            trouble: mark.trouble.as_deref().map(str::to_owned),
        })
    }

    /// All single items, and when they were enqueued.
    pub fn waiting(&self) -> impl Iterator<Item = (Instant, Hint)> {
        self.marks.iter().map(|(&hint, mark)| (mark.since, hint))
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
            trouble: None,
        }
    }
}
