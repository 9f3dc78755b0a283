//! What the collector shows in numbers. Told in a time that does not grow with the objects, but for what is queued one by
//! one: whoever asks every few seconds keeps nobody from working.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::{census::Tally, core::Core, counts::Counts, kinds::KindId, limit::Pace, queue::Depth, sight::Watched};

/// See the module's documentation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Every kind can be seen.
    pub synced: bool,
    /// The kinds that are watched.
    pub kinds: Vec<KindFigures>,
    /// Objects with owners or dependents, and what somebody names as one.
    pub linked: u64,
    /// Objects without.
    pub lone: u64,
    /// What is to be looked at.
    pub queue: Depth,
    /// How long something has waited, at most.
    pub oldest: Duration,
    /// How fast writes may go, once any was answered.
    pub pace: Option<Pace>,
    /// What hangs or is kept.
    pub tally: Tally,
    /// For how long requests of a step have been refused with an HTTP status, as long as they are.
    pub refused: BTreeMap<(&'static str, u16), Duration>,
    /// What was done since this collector began.
    pub counts: Counts,
}

/// A kind that is watched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindFigures {
    /// API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// Its first list is complete, and its watch does not fail.
    pub synced: bool,
    /// Objects of it.
    pub objects: u64,
    /// How long its watch has told nothing, if it ever did.
    pub silent: Option<Duration>,
}

// === impl Figures ===

impl Figures {
    /// As things stand.
    pub fn of(core: &Core, now: Instant) -> Self {
        let (linked, lone) = core.graph.len();
        let objects = core.graph.counts();
        let kind = |(&id, watched): (&KindId, &Watched)| KindFigures {
            group: watched.group.clone(),
            resource: watched.resource.plural.clone(),
            synced: watched.synced && watched.trouble.is_none(),
            objects: objects.get(id.place()).copied().unwrap_or_default(),
            silent: watched.told.map(|told| now.saturating_duration_since(told)),
        };
        let mut refused: BTreeMap<_, Duration> = BTreeMap::new();
        for (key, it) in core.refusals.all(now) {
            let longest = refused.entry((key.step, key.code)).or_default();
            *longest = now.saturating_duration_since(it.since).max(*longest);
        }
        let oldest = core.queue.oldest();
        Self {
            synced: core.sight.unsynced_because(now).is_none(),
            kinds: core.sight.watched.iter().map(kind).collect(),
            linked: linked as u64,
            lone: lone as u64,
            queue: core.queue.depth(),
            oldest: oldest.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
            pace: core.pace,
            tally: core.tally,
            refused,
            counts: core.counts.clone(),
        }
    }
}
