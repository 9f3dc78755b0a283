//! `gc status`: what the collector knows, does and waits for.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    core::Core,
    counts::Counts,
    graph::{Graph, NodeId, WorkItem},
    kinds::KindId,
    names::{object_label, truncate, unresolved_reason},
    queue::Depth,
    refusals::{Key, Refusal},
    sync_state::WatchedKind,
    why::recreated,
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
    /// Requests that the API server keeps refusing.
    #[serde(default)]
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
    pub oldest: Vec<WaitingReport>,
    /// Some deletions that wait for dependents.
    pub deletions: Vec<DeletionReport>,
    /// Number of deletions that wait for dependents.
    #[serde(default)]
    pub deletions_total: u64,
    /// Some owners that cannot be resolved, and so keep their dependents.
    pub kept: Vec<KeptReport>,
    /// Number of owners that cannot be resolved.
    #[serde(default)]
    pub kept_total: u64,
    /// Counters since this collector's start.
    pub counts: Counts,
}

/// Requests that the API server keeps refusing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RefusedReport {
    /// `get_owner`, `drop_reference`, `delete` or `remove_finalizer`.
    pub step: String,
    /// The resource, such as `deployments.apps`.
    pub resource: String,
    /// HTTP status.
    pub code: u16,
    /// Number of refusals.
    pub times: u64,
    /// Seconds since the first one.
    pub since_seconds: u64,
    /// Seconds since the last one.
    pub last_seconds: u64,
    /// The last error.
    pub error: String,
}

/// A watched kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KindReport {
    /// Such as `deployments.apps/v1`.
    pub resource: String,
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
    #[serde(default)]
    pub unreadable: Option<String>,
}

/// A waiting item of the work queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaitingReport {
    /// `decide on`, `get owner` or `decide on the dependents of`.
    pub what: String,
    /// The object.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// Seconds since it was enqueued.
    pub seconds: u64,
    /// Number of failed attempts.
    pub tries: u32,
    /// The last error.
    pub why: Option<String>,
}

/// A deletion that waits for dependents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeletionReport {
    /// The object.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// `foregroundDeletion` or `orphan`.
    pub finalizer: String,
    /// Number of dependents that it waits for.
    pub dependents: u64,
    /// One of them.
    pub example: Option<String>,
    /// Number of dependents that were created since its foreground deletion was seen.
    #[serde(default)]
    pub created: u32,
}

/// An owner that cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KeptReport {
    /// The owner.
    pub owner: String,
    /// Its UID.
    pub uid: String,
    /// Number of dependents.
    pub dependents: u64,
    /// Why it cannot be resolved.
    pub why: String,
}

// === impl WorkReport ===

impl WorkReport {
    /// The report at `now`.
    pub fn new(core: &Core, now: Instant) -> Self {
        let graph = &core.graph;
        let unsynced = core.sync_state.unsynced_reason(now);
        let (linked, isolated) = graph.len();
        Self {
            synced: unsynced.is_none(),
            unsynced,
            refused: refused(core, now),
            kinds: kinds(core, now),
            linked: linked as u64,
            isolated: isolated as u64,
            queue: core.queue.depth(),
            oldest: oldest(core, now),
            deletions: waiting_deletions(graph)
                .take(MAX_ROWS)
                .map(|id| deletion(graph, id))
                .collect(),
            deletions_total: waiting_deletions(graph).count() as u64,
            kept: unresolved(graph).take(MAX_ROWS).map(|id| kept(graph, id)).collect(),
            kept_total: unresolved(graph).count() as u64,
            counts: core.counts.clone(),
        }
    }

    /// The report as text. `is_wide`: with the resourceVersion of each kind.
    pub fn text(&self, is_wide: bool) -> String {
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
                "REFUSED    {} of {}: {}, {}, for {} s, last {} s ago: {}",
                it.step,
                it.resource,
                it.code,
                format_count(it.times, "time"),
                it.since_seconds,
                it.last_seconds,
                it.error
            );
        }
        if let more @ 1.. = self.refused.len().saturating_sub(MAX_ROWS) {
            let _ = writeln!(
                out,
                "REFUSED    and {more} more of other resources or with other statuses"
            );
        }
        let _ = writeln!(
            out,
            "objects    {} with owners or dependents, {} without",
            self.linked, self.isolated
        );
        let Depth { ready, busy, delayed } = self.queue;
        let _ = writeln!(
            out,
            "queue      {ready} ready, {busy} in progress, {delayed} delayed until a retry"
        );
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
        let _ = writeln!(
            out,
            "done       {deleted} deleted, {references_dropped} with references dropped, {finalizers_removed} finalizers removed; \
             {owner_lookups} owners looked up, {conflicts} conflicts, {events} events"
        );
        if *removed_unsynced > 0 {
            let _ = writeln!(
                out,
                "unsynced   {} while not every kind was synced",
                format_count(*removed_unsynced, "removed finalizer")
            );
        }
        for (step, reasons) in failures {
            for (reason, times) in reasons {
                let _ = writeln!(out, "failed     {step}: {reason}, {times} times");
            }
        }
        let title = "Deletions that wait for dependents";
        section(&mut out, title, &self.deletions, self.deletions_total, |it| {
            let example = it
                .example
                .as_ref()
                .map_or_else(String::new, |example| format!(", such as {example}"));
            let created = recreated(it.created).map_or_else(String::new, |created| format!("; {created}"));
            format!(
                "{} ({}): {}{example}{created}; uid {}",
                it.object,
                it.finalizer,
                format_count(it.dependents, "known dependent"),
                it.uid
            )
        });
        let waiting = self.queue.ready + self.queue.busy + self.queue.delayed;
        section(&mut out, "Waits longest", &self.oldest, waiting, |it| {
            let why = it.why.as_deref().unwrap_or("it is in the queue");
            format!(
                "{} {}: {} s, {}: {why}; uid {}",
                it.what,
                it.object,
                it.seconds,
                format_count(it.tries.into(), "attempt"),
                it.uid
            )
        });
        section(
            &mut out,
            "Kept, because it is unknown whether their owner exists",
            &self.kept,
            self.kept_total,
            |it| {
                format!(
                    "{} of {}: {}; uid {}",
                    format_count(it.dependents, "dependent"),
                    it.owner,
                    it.why,
                    it.uid
                )
            },
        );
        out.extend(["\n", &self.kinds_table(is_wide)]);
        out
    }

    fn kinds_table(&self, is_wide: bool) -> String {
        let mut out = String::new();
        let mut add = |kind: &str, objects: &str, event: &str, version: &str, state: &str| {
            let version = if is_wide {
                format!(" {version:>16}")
            } else {
                String::new()
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{kind:48} {objects:>9} {event:>10}{version}  {state}");
        };
        add("KIND", "OBJECTS", "LAST-EVENT", "RESOURCE-VERSION", "STATE");
        for kind in &self.kinds {
            let state = match (&kind.error, kind.synced) {
                (Some(_), _) if kind.unreadable.is_some() => "UNREADABLE, see above",
                (Some(error), _) => error,
                (None, true) => "synced",
                (None, false) => "being listed",
            };
            let event = kind
                .silent_seconds
                .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds}s"));
            let (objects, version) = (kind.objects.to_string(), kind.version.to_string());
            add(&kind.resource, &objects, &event, &version, state);
        }
        out
    }
}

/// Some rows of a total.
fn section<T>(out: &mut String, title: &str, rows: &[T], total: u64, row: impl Fn(&T) -> String) {
    let shown = rows.len();
    let _ = match shown {
        0 => return,
        _ if total > shown as u64 => writeln!(out, "\n{title} ({shown} of {total}):"),
        _ => writeln!(out, "\n{title}:"),
    };
    for it in rows {
        let _ = writeln!(out, "  {}", row(it));
    }
}

/// The longest-lasting first.
fn refused(core: &Core, now: Instant) -> Vec<RefusedReport> {
    let mut all: Vec<_> = core.refusals.current(now).collect();
    all.sort_by_key(|(_, it)| it.since);
    let report = |(key, it): (&Key, &Refusal)| RefusedReport {
        step: key.step.to_owned(),
        resource: key.resource.clone(),
        code: key.code,
        times: it.times,
        since_seconds: seconds(now, it.since),
        last_seconds: seconds(now, it.last),
        error: it.error.clone(),
    };
    all.into_iter().map(report).collect()
}

fn kinds(core: &Core, now: Instant) -> Vec<KindReport> {
    let counts = core.graph.counts();
    let report = |(&id, watched): (&KindId, &WatchedKind)| KindReport {
        resource: format!("{}/{}", watched.name(), watched.resource.version),
        synced: watched.unsynced_since(now).is_none(),
        objects: counts.get(id.index()).copied().unwrap_or_default(),
        silent_seconds: watched.last_event.map(|last_event| seconds(now, last_event)),
        version: watched.progress,
        error: watched.failure(now).map(|error| error.text.clone()),
        unreadable: watched.unreadable(now),
    };
    let mut kinds: Vec<KindReport> = core.sync_state.watched.iter().map(report).collect();
    kinds.sort_by(|one, other| one.resource.cmp(&other.resource));
    kinds
}

fn oldest(core: &Core, now: Instant) -> Vec<WaitingReport> {
    let mut waiting: Vec<(Instant, WorkItem)> = core.queue.items().collect();
    waiting.sort_unstable();
    let report = |(since, item): (Instant, WorkItem)| {
        let (what, id) = match item {
            WorkItem::Decide(id) => ("decide on", id),
            WorkItem::GetOwner(id) => ("get owner", id),
            WorkItem::Dependents(id) => ("decide on the dependents of", id),
        };
        let it = core.queue.status(item).filter(|_| core.graph.contains(id))?;
        Some(WaitingReport {
            what: what.to_owned(),
            object: object_label(&core.graph, id),
            uid: truncate(&core.graph.uid(id)),
            seconds: seconds(now, since),
            tries: it.num_requeues,
            why: it.hanging_request(item, now).or(it.last_error).or_else(|| {
                let in_progress = it.in_progress_since.is_some();
                in_progress.then(|| "a request is in progress".to_owned())
            }),
        })
    };
    waiting.into_iter().filter_map(report).take(MAX_ROWS).collect()
}

fn waiting_deletions(graph: &Graph) -> impl Iterator<Item = NodeId> {
    graph.nodes().filter(|&id| {
        let state = graph.node(id).state;
        state.exists() && state.has_deletion_finalizer()
    })
}

fn deletion(graph: &Graph, id: NodeId) -> DeletionReport {
    let node = graph.node(id);
    let orphans = node.state.in_orphan_deletion();
    let mut dependents = graph
        .dependents(id)
        .filter(|link| link.node != id && (orphans || link.blocking));
    DeletionReport {
        object: object_label(graph, id),
        uid: truncate(&graph.uid(id)),
        finalizer: if orphans { "orphan" } else { "foregroundDeletion" }.to_owned(),
        dependents: if orphans { node.dependents } else { node.blocking }.into(),
        example: dependents.next().map(|link| object_label(graph, link.node)),
        created: graph.created_since_deletion(id),
    }
}

fn unresolved(graph: &Graph) -> impl Iterator<Item = NodeId> {
    graph.nodes().filter(|&id| graph.is_unresolved(id))
}

fn kept(graph: &Graph, id: NodeId) -> KeptReport {
    KeptReport {
        owner: object_label(graph, id),
        uid: truncate(&graph.uid(id)),
        dependents: graph.node(id).dependents.into(),
        why: unresolved_reason(graph, id).to_owned(),
    }
}

fn seconds(now: Instant, since: Instant) -> u64 {
    now.saturating_duration_since(since).as_secs()
}
