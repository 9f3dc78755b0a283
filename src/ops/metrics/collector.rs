//! Metrics of the garbage collector.

use std::{collections::BTreeMap, time::Duration};

use super::family::{Labels, Metrics, labels, since_epoch};
use crate::{
    collector::{
        counts::Totals,
        queue::Depth,
        report::{KindReport, WorkReport},
    },
    ops::{admin::collector::CollectorAdmin, gc_status::GcReport},
};

/// The data of one scrape of the collector.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Default))]
pub struct CollectorMetrics {
    /// Its status.
    pub status: GcReport,
    /// Totals of earlier terms as leader.
    pub earlier: Totals,
    /// Events that were dropped.
    pub events_dropped: u64,
}

// === impl CollectorMetrics ===

impl CollectorMetrics {
    pub(super) fn collect(admin: &CollectorAdmin) -> Self {
        // Under one lock, because a term replaces the totals when it ends.
        let earlier = admin.earlier.borrow();
        Self {
            status: admin.report(),
            earlier: earlier.clone(),
            events_dropped: admin.counters.counts().events_dropped,
        }
    }

    pub(super) fn register(&self, metrics: &mut Metrics<'_>) {
        let GcReport { election, work, .. } = &self.status;
        let counts = work.as_ref().map_or(&self.earlier.counts, |report| &report.counts);
        let report = work.clone().unwrap_or_default();
        let expire = since_epoch(self.status.credentials_expire);
        metrics.gauge("gc_active", election.standby.is_none());
        metrics.gauge("gc_lease_held", election.holds_lease);
        metrics.seconds("gc_credentials_expiry_timestamp", expire);
        metrics.counter("gc_activations", self.earlier.active_periods);
        metrics.counter("gc_graph_resets", self.earlier.resets);
        metrics.counter("gc_events_dropped", self.events_dropped);
        metrics.counter("gc_watch_events", counts.events);
        metrics.counter("gc_objects_deleted", counts.deleted);
        metrics.counter("gc_references_dropped", counts.references_dropped);
        metrics.counter("gc_finalizers_removed", counts.finalizers_removed);
        metrics.counter("gc_finalizers_removed_unsynced", counts.removed_unsynced);
        metrics.counter("gc_owner_lookups", counts.owner_lookups);
        metrics.counter("gc_conflicts", counts.conflicts);
        metrics.failures("gc_failures", &counts.failures);
        kinds(metrics, &report);
        waits(metrics, &report);
    }
}

fn kinds(metrics: &mut Metrics<'_>, report: &WorkReport) {
    let values = |value: fn(&KindReport) -> u64| report.kinds.iter().map(move |kind| (labels_of(kind), value(kind)));
    let silent = report
        .kinds
        .iter()
        .filter_map(|kind| Some((labels_of(kind), Duration::from_secs(kind.silent_seconds?))));
    metrics.gauge("gc_synced", report.synced);
    metrics.gauge("gc_objects_linked", report.linked);
    metrics.gauge("gc_objects_isolated", report.isolated);
    metrics.gauges("gc_kind_objects", values(|kind| kind.objects));
    metrics.gauges("gc_kind_synced", values(|kind| u64::from(kind.synced)));
    metrics.seconds_of("gc_kind_watch_silence", silent);
}

fn labels_of(kind: &KindReport) -> Labels {
    labels([("group", &kind.group), ("resource", &kind.plural)])
}

fn waits(metrics: &mut Metrics<'_>, report: &WorkReport) {
    let mut refused = BTreeMap::<(&str, u16), u64>::new();
    for it in &report.refused {
        let seconds = refused.entry((&it.step, it.code)).or_default();
        *seconds = it.since_seconds.max(*seconds);
    }
    let refused = refused.into_iter().map(|((step, code), seconds)| {
        let labels = labels([("step", step), ("reason", &code.to_string())]);
        (labels, Duration::from_secs(seconds))
    });
    let Depth { ready, busy, delayed } = report.queue;
    let states = [("ready", ready), ("busy", busy), ("delayed", delayed)];
    let finalizers = [
        ("foregroundDeletion", report.deletions_foreground),
        ("orphan", report.deletions_orphan),
    ];
    let longest = Duration::from_secs(report.longest_deletion_seconds);
    metrics.seconds_of("gc_refused", refused);
    metrics.gauges(
        "gc_queue_depth",
        states.map(|(state, depth)| (labels([("state", state)]), depth)),
    );
    metrics.seconds("gc_oldest_item", Duration::from_secs(report.oldest_seconds));
    metrics.gauges(
        "gc_deletions_waiting",
        finalizers.map(|(name, count)| (labels([("finalizer", name)]), count)),
    );
    metrics.seconds("gc_longest_deletion", longest);
    metrics.gauge("gc_references_unresolved", report.kept_references);
}
