//! Metrics of the garbage collector.

use std::fmt;

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
    /// It is active.
    pub is_active: bool,
    /// This agent certainly holds the Lease.
    pub holds_lease: bool,
    /// When its credentials expire, if known.
    pub credentials_expire: Option<Timestamp>,
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
            is_active: view.standby.is_none(),
            holds_lease: view.holds_lease,
            credentials_expire: admin.client.credentials_expiry(),
            events_dropped: admin.counters.counts().events_dropped,
            earlier,
            snapshot,
        }
    }

    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        page.boolean(
            "gc_active",
            "1 while this agent's collector is active, 0 while it is on standby.",
            self.is_active,
        )?;
        page.boolean(
            "gc_lease_held",
            "1 while this agent certainly holds the collector's Lease.",
            self.holds_lease,
        )?;
        page.seconds(
            "gc_credentials_expiry_timestamp",
            "When the collector's credentials expire, as Unix time. No sample if that is unknown.",
            since_epoch(self.credentials_expire),
        )?;
        page.counter(
            "gc_activations",
            "How often this agent's collector became active.",
            self.earlier.active_periods,
        )?;
        page.counter(
            "gc_graph_resets",
            "How often the collector rebuilt its graph because etcd was restored from a backup.",
            self.earlier.resets,
        )?;
        page.counter(
            "gc_events_dropped",
            "Events about owner references that were dropped.",
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
        removed_unsynced,
        owner_lookups,
        conflicts,
        failures,
    } = counts;
    for (name, help, value) in [
        ("gc_watch_events", "Watch events that were received.", events),
        ("gc_objects_deleted", "Objects that the collector deleted.", deleted),
        (
            "gc_references_dropped",
            "Objects from which the collector removed owner references.",
            references_dropped,
        ),
        (
            "gc_finalizers_removed",
            "Finalizers foregroundDeletion and orphan that the collector removed.",
            finalizers_removed,
        ),
        (
            "gc_finalizers_removed_unsynced",
            "Finalizers that the collector removed while not every kind was synced: ten minutes after an aggregated API group or an unreadable kind had failed.",
            removed_unsynced,
        ),
        ("gc_owner_lookups", "GETs of owners.", owner_lookups),
        (
            "gc_conflicts",
            "Writes that met a conflict because the object had changed. Each is decided again.",
            conflicts,
        ),
    ] {
        page.counter(name, help, *value)?;
    }
    page.failures(
        "gc_failures",
        "Failed requests, by step and reason. Each is retried.",
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
        "How long the API server has refused requests, by step and HTTP status. No sample if it refuses none.",
        codes
            .iter()
            .map(|(step, code, since)| ([("step", *step), ("reason", code.as_str())], *since)),
    )
}

fn graph(page: &mut Page<'_>, snapshot: &MetricsSnapshot) -> fmt::Result {
    page.boolean(
        "gc_synced",
        "1 while the collector is active and every kind is synced. Foreground deletions and orphaning wait for that.",
        snapshot.synced,
    )?;
    page.gauge(
        "gc_objects_linked",
        "Objects with owners or dependents, and owners that exist only in references.",
        snapshot.linked,
    )?;
    page.gauge(
        "gc_objects_isolated",
        "Objects without owners and dependents.",
        snapshot.isolated,
    )?;
    let values = |value: fn(&KindMetrics) -> u64| snapshot.kinds.iter().map(move |kind| (labels(kind), value(kind)));
    page.gauges("gc_kind_objects", "Objects of a kind.", values(|kind| kind.objects))?;
    page.gauges(
        "gc_kind_synced",
        "1 while a kind is listed completely and its watch works.",
        values(|kind| u64::from(kind.synced)),
    )?;
    let silent = snapshot
        .kinds
        .iter()
        .filter_map(|kind| Some((labels(kind), kind.silent?)));
    page.seconds_family(
        "gc_kind_watch_silence",
        "Time since the last event of a kind's watch. The API server sends a bookmark about once a minute.",
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
        "Items in the work queue, by state: ready, busy, or delayed until a retry.",
        [("ready", ready), ("busy", busy), ("delayed", delayed)].map(|(state, depth)| ([("state", state)], depth)),
    )?;
    page.seconds(
        "gc_oldest_item",
        "Age of the oldest item in the work queue.",
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
        "Deleted objects that wait for their dependents, by finalizer.",
        [("foregroundDeletion", foreground), ("orphan", orphan)]
            .map(|(finalizer, count)| ([("finalizer", finalizer)], count)),
    )?;
    page.seconds(
        "gc_longest_deletion",
        "How long the collector has seen the longest of these wait; 0 if there is none.",
        Some(longest),
    )?;
    page.gauge(
        "gc_references_unresolved",
        "Owner references to a kind that the API server does not serve, or to an impossible name. Their objects are kept.",
        unresolved,
    )?;
    page.gauge(
        "gc_write_concurrency",
        "Current limit of concurrent writes; 0 before the first write.",
        snapshot.max_in_flight.unwrap_or(0) as u64,
    )
}
