//! What is to be looked at, each once, and the next try of what failed.

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

/// Waiting time after the first failure; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(100);
/// The longest waiting time.
const LONGEST: Duration = Duration::from_secs(300);
/// What waits after a failure is tried this soon when something happens to it.
const SOON: Duration = Duration::from_secs(1);
/// So many single ones are many.
const MANY: usize = 10_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Queue {
    ready: Lanes,
    /// All single ones that are ready, under way or put off.
    marks: HashMap<Hint, Mark>,
    /// Of each owner all of whose dependents are to be decided on, how many are left.
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
    /// Under way; `again` if something happened meanwhile.
    Busy {
        again: bool,
    },
    PutOff(Instant),
}

/// Something that is waited for, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Since when.
    pub since: Instant,
    /// How often it was tried in vain.
    pub tries: u32,
    /// What the last try came to.
    pub trouble: Option<String>,
}

/// How much there is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Depth {
    /// May be begun at once; the dependents of an owner that has gone or goes counted each.
    pub ready: u64,
    /// Under way.
    pub busy: u64,
    /// Will be tried again later.
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
    /// Adds something to look at, unless it is there already. `kind` is that of the object that it speaks of.
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

    /// Adds an owner all of whose dependents, as many as these, are to be looked at one after the other. `kind` is that of
    /// the next one of them.
    pub fn push_dependents(&mut self, owner: NodeId, kind: KindId, dependents: u32) {
        // Round and round: whoever is in the middle of them goes on until he has seen as many as there are now.
        if dependents > 0 && self.batches.insert(owner, dependents).is_none() {
            self.go_on(owner, kind);
        }
    }

    /// The next thing to look at: a single one, which is under way then; or an owner one of whose dependents is next, which
    /// goes on or stops. Lanes of which so many requests are under way come after all others.
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

    /// One of an owner's dependents has had its turn; `true` if there are more.
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

    /// The next one of an owner's dependents, of this kind, has its turn after others.
    pub fn go_on(&mut self, owner: NodeId, kind: KindId) {
        let hint = Hint::Dependents(owner);
        self.ready.push_back(lane(hint, kind), hint);
    }

    /// Whether the server wants to be left alone with writes to this kind.
    pub fn rests(&self, kind: KindId, now: Instant) -> bool {
        self.ready.rests(Lane { kind, asks: false }, now)
    }

    /// Whether many wait one by one already.
    pub fn is_long(&self) -> bool {
        self.marks.len() >= MANY
    }

    /// A request is sent.
    pub fn began(&mut self, lane: Lane, now: Instant) {
        self.ready.began(lane, now);
    }

    /// A request has come to its end, that began then.
    pub fn ended(&mut self, lane: Lane, begun: Instant, answer: Answer) {
        self.ready.ended(lane, begun, answer);
    }

    /// How many requests are under way that are slow, or of a kind that is: others do not wait for them.
    pub fn slow_under_way(&self, now: Instant) -> usize {
        self.ready.slow_under_way(now)
    }

    /// Begins something that was not queued, as a dependent in its turn; `false` if it is under way or put off already.
    pub fn begin(&mut self, hint: Hint, kind: KindId, now: Instant) -> bool {
        match self.marks.get_mut(&hint).map(|mark| &mut mark.stage) {
            None => {
                let stage = Stage::Busy { again: false };
                self.marks.insert(hint, Mark::new(lane(hint, kind), stage, now));
                true
            }
            // It has its own turn.
            Some(Stage::Ready) => false,
            Some(_) => {
                self.push(hint, kind, now);
                false
            }
        }
    }

    /// The dependents of this one need not be gone through now.
    pub fn stop(&mut self, id: NodeId) {
        // Its place among what is ready is found empty when its turn comes.
        self.batches.remove(&id);
    }

    /// It is done with, unless something happened to it meanwhile.
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
            // It has its turn again later.
            Stage::Ready | Stage::PutOff(_) => {}
        }
    }

    /// It came to nothing, and is tried again: after `pause` where that is known, else later with each time.
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

    /// It has its turn again later, though nothing failed.
    pub fn put_off(&mut self, hint: Hint, pause: Duration, now: Instant) {
        if let Some(mark) = self.marks.get_mut(&hint) {
            mark.stage = Stage::PutOff(now + pause);
            self.put_off.insert((now + pause, hint));
        }
    }

    /// It was not begun after all, and is the next again.
    pub fn put_back(&mut self, hint: Hint) {
        if let Some(mark) = self.marks.get_mut(&hint) {
            mark.stage = Stage::Ready;
            self.ready.push_front(mark.lane, hint);
        }
    }

    /// Whether it is under way.
    pub fn is_busy(&self, hint: Hint) -> bool {
        let stage = self.marks.get(&hint).map(|mark| mark.stage);
        matches!(stage, Some(Stage::Busy { .. }))
    }

    /// How often it was tried in vain.
    pub fn tries(&self, hint: Hint) -> u32 {
        self.marks.get(&hint).map_or(0, |mark| mark.tries)
    }

    /// When something that was put off is to be looked at next, or there may be room for something that waits.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = self.put_off.first().map(|(due, _)| *due);
        [first, self.ready.next_due(now)].into_iter().flatten().min()
    }

    /// How much there is to do.
    pub fn depth(&self) -> Depth {
        let single = self.ready.len().saturating_sub(self.batches.len()) as u64;
        let put_off = self.put_off.len() as u64;
        Depth {
            ready: single + self.batches.values().map(|&left| u64::from(left)).sum::<u64>(),
            busy: (self.marks.len() as u64).saturating_sub(single + put_off),
            put_off,
        }
    }

    /// Since when something waits, at the earliest.
    pub fn oldest(&self) -> Option<Instant> {
        self.marks.values().map(|mark| mark.since).min()
    }

    /// How it stands with this one, if it waits.
    pub fn look(&self, hint: Hint) -> Option<Waiting> {
        let mark = self.marks.get(&hint)?;
        Some(Waiting {
            since: mark.since,
            tries: mark.tries,
            trouble: mark.trouble.as_deref().map(str::to_owned),
        })
    }

    /// All that wait one by one, and since when.
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
