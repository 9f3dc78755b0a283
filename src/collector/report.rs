//! `gc status`: what the collector knows, does and waits for.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write as _};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    core::Core,
    counts::Counts,
    graph::{Graph, NodeId, NodeState, WorkItem},
    names::{object_label, qualified_name, truncate, unresolved_reason},
    queue::{Depth, Entry, Refusal},
};
use crate::words::format_count;

/// Maximum number of rows in a section.
const MAX_ROWS: usize = 10;

/// State and work of the collector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkReport {
    /// All kinds are synced.
    pub synced: bool,
    /// Which kinds are not synced, and why.
    pub unsynced: Option<String>,
    /// Requests that the API server has refused and that are retried, the longest-lasting first.
    pub refused: Vec<RefusedReport>,
    /// The kinds that are watched.
    pub kinds: Vec<KindReport>,
    /// Objects with owners or dependents, and owners that are only named.
    pub linked: u64,
    /// Objects without owners and dependents.
    pub isolated: u64,
    /// Depth of the work queue.
    pub queue: Depth,
    /// The items that wait longest.
    pub oldest: Vec<ObjectReport>,
    /// Age of the oldest item in seconds; 0 without any.
    pub oldest_seconds: u64,
    /// Some deletions that wait for dependents.
    pub deletions: Vec<ObjectReport>,
    /// Number of foreground deletions that wait for dependents.
    pub deletions_foreground: u64,
    /// Number of orphan deletions that wait for dependents.
    pub deletions_orphan: u64,
    /// Seconds since the collector saw the first of these; 0 without any.
    pub longest_deletion_seconds: u64,
    /// Some owners that cannot be resolved, and so keep their dependents.
    pub kept: Vec<ObjectReport>,
    /// Number of owners that cannot be resolved.
    pub kept_total: u64,
    /// Number of references to these owners.
    pub kept_references: u64,
    /// Counters since the agent's start.
    pub counts: Counts,
}

/// Requests that the API server has refused and that are retried.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RefusedReport {
    /// `get_owner`, `drop_reference`, `delete` or `remove_finalizer`.
    pub step: String,
    /// The resource, such as `deployments.apps`.
    pub resource: String,
    /// HTTP status.
    pub code: u16,
    /// Number of failed attempts for the objects that still wait.
    pub times: u64,
    /// Seconds that the first of these objects waits.
    pub since_seconds: u64,
    /// The last error about one of them.
    pub error: String,
}

/// A watched kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KindReport {
    /// Such as `deployments.apps/v1`.
    pub resource: String,
    /// API group, empty for the core group.
    pub group: String,
    /// Plural name.
    pub plural: String,
    /// Its first list is complete, and its watch does not fail.
    pub synced: bool,
    /// Number of objects.
    pub objects: u64,
    /// Seconds since the last answer or event. The API server sends a bookmark about once a minute.
    pub silent_seconds: Option<u64>,
    /// Its last resourceVersion.
    pub version: u64,
    /// The failure of list or watch, until a watch has been open for ten seconds again.
    pub error: Option<String>,
    /// The object that the API server cannot read, and the remedies.
    pub unreadable: Option<String>,
}

/// An object, and what it waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectReport {
    /// The object.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// What it waits for.
    pub why: String,
}

// === impl WorkReport ===

impl WorkReport {
    /// The report at `now`. It visits each object with owners or dependents once.
    pub fn new(core: &Core, now: Instant) -> Self {
        let graph = &core.graph;
        let unsynced = core.sync_state.unsynced_reason(now);
        let (linked, isolated) = graph.len();
        let (mut objects, mut unresolved) = (graph.isolated_counts(), Vec::new());
        for id in graph.nodes() {
            let node = graph.node(id);
            if node.state.contains(NodeState::OBSERVED)
                && let Some(count) = objects.get_mut(node.kind.index())
            {
                *count += 1;
            }
            if graph.is_unresolved(id) {
                unresolved.push(id);
            }
        }
        let mut deletions: Vec<(NodeId, Instant)> = core.waiting_deletions().collect();
        deletions.sort_unstable();
        let is_orphan = |(id, _): &&(NodeId, Instant)| graph.node(*id).state.in_orphan_deletion();
        let orphan = deletions.iter().filter(is_orphan).count() as u64;
        let longest = deletions.iter().map(|&(_, since)| seconds(now, since)).max();
        let dependents = unresolved.iter().map(|&id| u64::from(graph.node(id).num_dependents()));
        let entries = core.queue.entries();
        let mut oldest: Vec<(Instant, WorkItem)> = entries.map(|(&item, entry)| (entry.since, item)).collect();
        oldest.sort_unstable();
        let deletions_shown = deletions.iter().take(MAX_ROWS);
        let kept = unresolved.iter().take(MAX_ROWS);
        Self {
            synced: unsynced.is_none(),
            unsynced,
            refused: refused(core, now),
            kinds: kinds(core, &objects, now),
            linked: linked as u64,
            isolated: isolated as u64,
            queue: core.queue.depth(),
            oldest_seconds: oldest.first().map_or(0, |&(since, _)| seconds(now, since)),
            oldest: oldest
                .iter()
                .filter_map(|&(_, item)| waiting(core, item, now))
                .take(MAX_ROWS)
                .collect(),
            deletions_foreground: deletions.len() as u64 - orphan,
            deletions_orphan: orphan,
            longest_deletion_seconds: longest.unwrap_or_default(),
            deletions: deletions_shown.map(|&(id, _)| deletion(graph, id)).collect(),
            kept_references: dependents.sum(),
            kept_total: unresolved.len() as u64,
            kept: kept
                .map(|&id| {
                    let dependents = format_count(graph.node(id).num_dependents().into(), "dependent");
                    let why = format!("{dependents}: {}", unresolved_reason(graph, id));
                    ObjectReport::new(graph, id, why)
                })
                .collect(),
            counts: core.counts.clone(),
        }
    }

    /// The report as text. `is_wide`: with the resourceVersion of each kind.
    pub fn text(&self, is_wide: bool) -> String {
        let mut out = self.problems();
        out.push_str(&self.work());
        let deletions = self.deletions_foreground + self.deletions_orphan;
        let waiting = self.queue.ready + self.queue.busy + self.queue.delayed;
        for (title, rows, total) in [
            ("Deletions that wait for dependents", &self.deletions, deletions),
            ("Waits longest", &self.oldest, waiting),
            (
                "Kept, because it is unknown whether their owner exists",
                &self.kept,
                self.kept_total,
            ),
        ] {
            let shown = rows.len();
            // Writing to a String cannot fail.
            let _ = match shown {
                0 => continue,
                _ if total > shown as u64 => writeln!(out, "\n{title} ({shown} of {total}):"),
                _ => writeln!(out, "\n{title}:"),
            };
            for ObjectReport { object, uid, why } in rows {
                let _ = writeln!(out, "  {object}: {why}; uid {uid}");
            }
        }
        out.extend(["\n", &self.kinds_table(is_wide)]);
        out
    }

    /// Whether all kinds are synced, and what the API server refuses.
    fn problems(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = match &self.unsynced {
            None => writeln!(out, "synced     {} kinds", self.kinds.len()),
            Some(why) => writeln!(out, "NOT SYNCED {why}"),
        };
        for unreadable in self.kinds.iter().filter_map(|kind| kind.unreadable.as_ref()) {
            let _ = writeln!(out, "UNREADABLE {unreadable}");
        }
        for it in self.refused.iter().take(MAX_ROWS) {
            let _ = writeln!(
                out,
                "REFUSED    {} of {}: {}, {}, for {} s: {}",
                it.step,
                it.resource,
                it.code,
                format_count(it.times, "time"),
                it.since_seconds,
                it.error
            );
        }
        out
    }

    /// Sizes and counters.
    fn work(&self) -> String {
        let Depth { ready, busy, delayed } = self.queue;
        let Counts {
            events,
            deleted,
            references_dropped,
            finalizers_removed,
            removed_unsynced,
            owner_lookups,
            conflicts,
            failures,
        } = &self.counts;
        let mut out = format!(
            "objects    {} with owners or dependents, {} without\n\
             queue      {ready} ready, {busy} in progress, {delayed} delayed until a retry\n\
             done       {deleted} deleted, {references_dropped} with references dropped, {finalizers_removed} finalizers removed; \
             {owner_lookups} owners looked up, {conflicts} conflicts, {events} events\n",
            self.linked, self.isolated
        );
        if *removed_unsynced > 0 {
            let removed = format_count(*removed_unsynced, "removed finalizer");
            let _ = writeln!(out, "unsynced   {removed} while not every kind was synced");
        }
        for (step, reasons) in failures {
            for (reason, times) in reasons {
                let _ = writeln!(out, "failed     {step}: {reason}, {times} times");
            }
        }
        out
    }

    fn kinds_table(&self, is_wide: bool) -> String {
        let version = |version: &str| match is_wide {
            true => format!(" {version:>16}"),
            false => String::new(),
        };
        let mut out = format!(
            "{:48} {:>9} {:>10}{}  STATE\n",
            "KIND",
            "OBJECTS",
            "LAST-EVENT",
            version("RESOURCE-VERSION")
        );
        for kind in &self.kinds {
            let state = match (&kind.error, kind.synced) {
                (Some(_), _) if kind.unreadable.is_some() => "UNREADABLE, see above",
                (Some(error), _) => error,
                (None, true) => "synced",
                (None, false) => "being listed",
            };
            let event = kind
                .silent_seconds
                .map_or("-".to_owned(), |seconds| format!("{seconds}s"));
            let (resource, objects, version) = (&kind.resource, kind.objects, version(&kind.version.to_string()));
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{resource:48} {objects:>9} {event:>10}{version}  {state}");
        }
        out
    }
}

// === impl ObjectReport ===

impl ObjectReport {
    fn new(graph: &Graph, id: NodeId, why: String) -> Self {
        Self {
            object: object_label(graph, id),
            uid: truncate(&graph.uid(id)),
            why,
        }
    }
}

fn refused(core: &Core, now: Instant) -> Vec<RefusedReport> {
    let mut all = BTreeMap::<_, RefusedReport>::new();
    for (_, entry) in core.queue.entries() {
        let (Some(Refusal { step, code, since }), kind) = (entry.refused, entry.kind()) else {
            continue;
        };
        let report = all.entry((step, code, kind)).or_default();
        report.times += u64::from(entry.num_requeues);
        report.since_seconds = report.since_seconds.max(seconds(now, since));
        if let (Some(error), true) = (&entry.last_error, report.error.is_empty()) {
            report.error = error.to_string();
        }
    }
    let kinds = &core.graph.kinds;
    let report = all.into_iter().map(|((step, code, kind), it)| RefusedReport {
        step: step.to_owned(),
        resource: kinds
            .resource(kind)
            .map_or_else(String::new, |it| qualified_name(&it.plural, kinds.group(kind))),
        code,
        ..it
    });
    let mut report: Vec<RefusedReport> = report.collect();
    report.sort_by_key(|it| Reverse(it.since_seconds));
    report
}

fn kinds(core: &Core, objects: &[u64], now: Instant) -> Vec<KindReport> {
    let report = core.sync_state.watched.iter().map(|(id, watched)| KindReport {
        resource: format!("{}/{}", watched.name(), watched.resource.version),
        group: watched.group.clone(),
        plural: watched.resource.plural.clone(),
        synced: watched.unsynced_since(now).is_none(),
        objects: objects.get(id.index()).copied().unwrap_or_default(),
        silent_seconds: watched.last_event.map(|last_event| seconds(now, last_event)),
        version: watched.progress,
        error: watched.failure(now).map(|error| error.text.clone()),
        unreadable: watched.unreadable(now),
    });
    let mut kinds: Vec<KindReport> = report.collect();
    kinds.sort_by(|one, other| one.resource.cmp(&other.resource));
    kinds
}

/// An item of the queue.
fn waiting(core: &Core, item: WorkItem, now: Instant) -> Option<ObjectReport> {
    let (what, id) = match item {
        WorkItem::GetOwner(id) => ("a GET", id),
        WorkItem::Decide(id) | WorkItem::Dependents(id) => ("a decision", id),
    };
    let entry = core.queue.entry(item).filter(|_| core.graph.contains(id))?;
    Some(ObjectReport::new(&core.graph, id, queued(what, entry, now)))
}

/// How long an item waits for `what`, and why.
pub fn queued(what: &str, entry: &Entry, now: Instant) -> String {
    let waits = format!("queued for {}s for {what}", seconds(now, entry.since));
    match (entry.hanging_request(now), &entry.last_error) {
        (Some(hangs), _) => format!("{waits}: {hangs}"),
        (None, Some(error)) => format!("{waits}, failed {} times, last: {error}", entry.num_requeues),
        (None, None) => waits,
    }
}

fn deletion(graph: &Graph, id: NodeId) -> ObjectReport {
    let node = graph.node(id);
    let orphans = node.state.in_orphan_deletion();
    let mut dependents = graph
        .dependents(id)
        .filter(|link| link.node != id && (orphans || link.blocking));
    let example = dependents.next().map(|link| object_label(graph, link.node));
    let (finalizer, count) = match orphans {
        true => ("orphan", node.num_dependents()),
        false => ("foregroundDeletion", node.blocking),
    };
    let example = example.map_or_else(String::new, |example| format!(", such as {example}"));
    let dependents = format_count(count.into(), "known dependent");
    ObjectReport::new(graph, id, format!("{finalizer}, {dependents}{example}"))
}

fn seconds(now: Instant, since: Instant) -> u64 {
    now.saturating_duration_since(since).as_secs()
}
