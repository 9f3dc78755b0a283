//! Metrics of the garbage collector.

use std::{fmt, time::Duration};

use jiff::Timestamp;

use super::page::{Page, since_epoch};
use crate::{
    collector::{
        census::Tally,
        counts::{Counts, Totals},
        metrics_snapshot::{KindMetrics, MetricsSnapshot},
        queue::Depth,
    },
    ops::admin::collector::CollectorAdmin,
};

/// The data of one scrape of the collector.
#[derive(Debug, Clone, Default)]
pub struct CollectorMetrics {
    /// It is active, and not in a dry run.
    pub is_active: bool,
    /// It only logs what it would do.
    pub dry_run: bool,
    /// This agent certainly holds the Lease.
    pub holds_lease: bool,
    /// When its credentials expire, if known.
    pub credentials_end: Option<Timestamp>,
    /// Totals of earlier terms as leader.
    pub earlier: Totals,
    /// Events that were dropped.
    pub events_dropped: u64,
    /// Its state; `None` while it is on standby.
    pub snapshot: Option<MetricsSnapshot>,
}

// === impl CollectorMetrics ===

impl CollectorMetrics {
    pub(super) fn collect(admin: &CollectorAdmin) -> Self {
        let view = admin.election.view();
        let (earlier, snapshot) = {
            // Under one lock, because a term adds its counts to the totals when it ends.
            let earlier = admin.earlier.lock();
            (earlier.clone(), admin.query(MetricsSnapshot::new))
        };
        Self {
            is_active: view.stands_by.is_none() && !view.dry_run,
            dry_run: view.dry_run,
            holds_lease: view.holds_lease,
            credentials_end: admin.client.credentials_expiry(),
            events_dropped: admin.counters.counts().events_dropped,
            earlier,
            snapshot,
        }
    }

    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        page.boolean(
            "gc_works",
            "1 while it is this agent's turn to collect, 0 while it stands by, and in a dry run.",
            self.is_active,
        )?;
        page.boolean(
            "gc_dry_run",
            "1 if this agent's collector only tells what it would do.",
            self.dry_run,
        )?;
        page.boolean(
            "gc_lease_held",
            "1 while the collector's Lease is this agent's, for certain.",
            self.holds_lease,
        )?;
        page.seconds(
            "gc_credentials_expire",
            "When the collector's credentials end, since the Unix epoch; none where they do not tell.",
            since_epoch(self.credentials_end),
        )?;
        page.counter(
            "gc_turns",
            "Turns that this agent's collector began.",
            self.earlier.active_periods,
        )?;
        page.counter(
            "gc_forgets",
            "How often the collector forgot all that it knew, since the store was put back.",
            self.earlier.resets,
        )?;
        page.counter(
            "gc_events_dropped",
            "Events about owner references that nobody will read.",
            self.events_dropped,
        )?;
        let mut counts = self.earlier.counts.clone();
        if let Some(snapshot) = &self.snapshot {
            counts.add(&snapshot.counts);
        }
        work(page, &counts)?;
        let snapshot = self.snapshot.clone().unwrap_or_default();
        refusals(page, &snapshot)?;
        graph(page, &snapshot)?;
        waits(page, &snapshot)
    }
}

fn work(page: &mut Page<'_>, counts: &Counts) -> fmt::Result {
    let Counts {
        events,
        deleted,
        references_dropped,
        finalizers_removed,
        removed_while_unsynced,
        owner_gets,
        conflicts,
        failures,
    } = counts;
    for (name, help, value) in [
        ("gc_watch_events", "Events that watches told.", events),
        ("gc_objects_deleted", "Objects that the collector deleted.", deleted),
        (
            "gc_objects_released",
            "Objects of which the collector took owner references out.",
            references_dropped,
        ),
        (
            "gc_finalizers_removed",
            "Finalizers foregroundDeletion and orphan that the collector took off.",
            finalizers_removed,
        ),
        (
            "gc_deletions_ended_unseen",
            "Finalizers that the collector took off although not every kind could be seen.",
            removed_while_unsynced,
        ),
        (
            "gc_owners_asked",
            "Questions to the API server whether an owner is there.",
            owner_gets,
        ),
        (
            "gc_conflicts",
            "Writes that were refused since the object had changed; each is decided on again.",
            conflicts,
        ),
    ] {
        page.counter(name, help, *value)?;
    }
    page.failures(
        "gc_failures",
        "Requests that failed and are repeated, by step and by HTTP status or what else went wrong.",
        failures,
    )
}

fn refusals(page: &mut Page<'_>, snapshot: &MetricsSnapshot) -> fmt::Result {
    let codes = snapshot
        .refused
        .iter()
        .map(|(&(step, code), &since)| (step, code.to_string(), since));
    let codes: Vec<_> = codes.collect();
    page.seconds_family(
        "gc_refused",
        "For how long the API server has been refusing requests of a step, as long as it goes on; absent if it does not.",
        codes.iter().map(|(step, code, since)| ([("step", *step), ("reason", code.as_str())], *since)),
    )
}

fn graph(page: &mut Page<'_>, snapshot: &MetricsSnapshot) -> fmt::Result {
    page.boolean(
        "gc_synced",
        "1 while it works and every kind can be seen, which the end of foreground deletions and orphaning rest on.",
        snapshot.synced,
    )?;
    page.gauge(
        "gc_objects_linked",
        "Objects with owners or dependents, and such as are only named by others.",
        snapshot.linked,
    )?;
    page.gauge(
        "gc_objects_alone",
        "Objects without owners and dependents.",
        snapshot.isolated,
    )?;
    let values = |value: fn(&KindMetrics) -> u64| snapshot.kinds.iter().map(move |kind| (labels(kind), value(kind)));
    page.gauges("gc_kind_objects", "Objects of a kind.", values(|kind| kind.objects))?;
    page.gauges(
        "gc_kind_synced",
        "1 while a kind is listed in full and its watch does not fail.",
        values(|kind| u64::from(kind.synced)),
    )?;
    let silent = snapshot
        .kinds
        .iter()
        .filter_map(|kind| Some((labels(kind), kind.silent?)));
    page.seconds_family(
        "gc_kind_watch_silence",
        "How long the watch of a kind has told nothing; the server tells how far it is at least once a minute.",
        silent,
    )
}

fn labels(kind: &KindMetrics) -> [(&'static str, &str); 2] {
    [("group", &kind.group), ("resource", &kind.resource)]
}

fn waits(page: &mut Page<'_>, snapshot: &MetricsSnapshot) -> fmt::Result {
    let Depth { ready, busy, delayed } = snapshot.queue;
    page.gauges(
        "gc_queue_depth",
        "What is to be looked at: ready, under way (busy), or to be tried again later (put_off).",
        [("ready", ready), ("busy", busy), ("put_off", delayed)].map(|(state, depth)| ([("state", state)], depth)),
    )?;
    page.seconds(
        "gc_oldest_waiting",
        "For how long something has been waiting in the queue, at most.",
        Some(snapshot.oldest),
    )?;
    let Tally {
        foreground,
        orphan,
        longest,
        unresolved,
    } = snapshot.tally;
    page.gauges(
        "gc_deletions_waiting",
        "Objects that are being deleted and wait for their dependents, by the finalizer that holds them.",
        [("foregroundDeletion", foreground), ("orphan", orphan)]
            .map(|(finalizer, count)| ([("finalizer", finalizer)], count)),
    )?;
    page.seconds(
        "gc_longest_deletion",
        "For how long the collector has seen one of these wait, at most; 0 if there is none.",
        Some(longest),
    )?;
    page.gauge(
        "gc_references_untold",
        "Owner references that nobody can follow, since the owner's kind is not served or nothing can have its name.",
        unresolved,
    )?;
    page.gauge(
        "gc_writes_at_once",
        "How many writes may be under way at once, as many as the server bears; 0 before the first.",
        snapshot.limit.map_or(0, |limit| limit.max_in_flight as u64),
    )?;
    page.seconds(
        "gc_write_latency",
        "How long the API server takes for a request of the collector, as a mean of long; absent at first.",
        snapshot
            .limit
            .and_then(|limit| limit.latency)
            .map(Duration::from_secs_f64),
    )
}
