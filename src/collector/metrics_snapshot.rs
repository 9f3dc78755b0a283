//! The collector's metrics. The time to make them is linear in kinds, refusals and queued items, whatever the number
//! of objects.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::{census::Tally, core::Core, counts::Counts, kinds::KindId, queue::Depth, sync_state::WatchedKind};

/// Values of all collector metrics at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricsSnapshot {
    /// All kinds are synced.
    pub synced: bool,
    /// The kinds that are watched.
    pub kinds: Vec<KindMetrics>,
    /// Objects with owners or dependents, and owners that are only named.
    pub linked: u64,
    /// Objects without owners and dependents.
    pub isolated: u64,
    /// Depth of the work queue.
    pub queue: Depth,
    /// Age of the oldest item.
    pub oldest: Duration,
    /// Limit of writes in flight; `None` before the first answer.
    pub max_in_flight: Option<usize>,
    /// Waiting deletions and unresolved references.
    pub tally: Tally,
    /// How long a step has been refused with an HTTP status, while it is.
    pub refused: BTreeMap<(&'static str, u16), Duration>,
    /// Counters since this collector's start.
    pub counts: Counts,
}

/// Metrics of a watched kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindMetrics {
    /// API group, empty for the core group.
    pub group: String,
    /// Plural name.
    pub resource: String,
    /// Its first list is complete, and its watch does not fail.
    pub synced: bool,
    /// Number of objects.
    pub objects: u64,
    /// Time since the last answer or event, if there was one.
    pub silent: Option<Duration>,
}

// === impl MetricsSnapshot ===

impl MetricsSnapshot {
    /// The metrics at `now`.
    pub fn new(core: &Core, now: Instant) -> Self {
        let (linked, isolated) = core.graph.len();
        let objects = core.graph.counts();
        let kind = |(&id, watched): (&KindId, &WatchedKind)| KindMetrics {
            group: watched.group.clone(),
            resource: watched.resource.plural.clone(),
            synced: watched.unsynced_since(now).is_none(),
            objects: objects.get(id.index()).copied().unwrap_or_default(),
            silent: watched
                .last_event
                .map(|last_event| now.saturating_duration_since(last_event)),
        };
        let mut refused: BTreeMap<_, Duration> = BTreeMap::new();
        for (key, it) in core.refusals.current(now) {
            let longest = refused.entry((key.step, key.code)).or_default();
            *longest = now.saturating_duration_since(it.since).max(*longest);
        }
        let oldest = core.queue.oldest();
        Self {
            synced: core.sync_state.unsynced_reason(now).is_none(),
            kinds: core.sync_state.watched.iter().map(kind).collect(),
            linked: linked as u64,
            isolated: isolated as u64,
            queue: core.queue.depth(),
            oldest: oldest.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
            max_in_flight: core.max_in_flight,
            tally: core.tally,
            refused,
            counts: core.counts.clone(),
        }
    }
}
