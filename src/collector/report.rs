//! What `gc status` says.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    core::Core,
    counts::Counts,
    graph::{Graph, Hint, NodeId},
    kinds::KindId,
    names::{called, clipped, untold},
    queue::Depth,
    refusals::{Key, Refusal},
    sight::Watched,
};
use crate::words::counted;

/// So many of those that wait are told of, the oldest first.
const OLDEST: usize = 10;

/// What a collector knows and has to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkReport {
    /// Every kind can be seen.
    pub synced: bool,
    /// Why not.
    pub unsynced: Option<String>,
    /// What the server goes on refusing.
    #[serde(default)]
    pub refused: Vec<RefusedReport>,
    /// The kinds that are watched.
    pub kinds: Vec<KindReport>,
    /// Objects with owners or dependents, and what somebody names as one.
    pub linked: u64,
    /// Objects without.
    pub lone: u64,
    /// What is to be looked at.
    pub queue: Depth,
    /// What waits longest.
    pub oldest: Vec<WaitingReport>,
    /// Objects that are being deleted and wait for their dependents.
    pub deletions: Vec<DeletionReport>,
    /// Objects that are kept only because nobody can tell whether their owners are there, by what their owners are.
    pub kept: Vec<KeptReport>,
    /// What was done since this collector began.
    pub counts: Counts,
}

/// Requests that the server goes on refusing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedReport {
    /// `ask`, `release`, `delete` or `finish`.
    pub step: String,
    /// The resource, such as `deployments.apps`.
    pub resource: String,
    /// HTTP status.
    pub code: u16,
    /// How often.
    pub times: u64,
    /// The first time was so long ago.
    pub since_seconds: u64,
    /// The last time was so long ago.
    pub last_seconds: u64,
    /// What was said the last time.
    pub error: String,
}

/// A kind that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KindReport {
    /// Such as `deployments.apps/v1`.
    pub resource: String,
    /// Its first list is complete.
    pub synced: bool,
    /// Objects of it.
    pub objects: u64,
    /// How long ago its watch told anything; the server does at least once a minute.
    pub silent_seconds: Option<u64>,
    /// The last resourceVersion that it told.
    pub version: u64,
    /// What it fails by.
    pub trouble: Option<String>,
}

/// Something that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingReport {
    /// What is to be done: `decide` on it, or `ask` whether it is there.
    pub what: String,
    /// The object.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// For so long.
    pub seconds: u64,
    /// How often it was tried in vain.
    pub tries: u32,
    /// What the last try came to.
    pub why: Option<String>,
}

/// A deletion that waits for dependents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionReport {
    /// The object.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// `foregroundDeletion` or `orphan`.
    pub finalizer: String,
    /// How many dependents it waits for.
    pub dependents: u64,
    /// One of them.
    pub example: Option<String>,
}

/// Objects that are kept because of an owner nobody can tell of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptReport {
    /// The owner.
    pub owner: String,
    /// Its UID.
    pub uid: String,
    /// How many name it.
    pub dependents: u64,
    /// Why nobody can tell.
    pub why: String,
}

// === impl WorkReport ===

impl WorkReport {
    /// As things stand.
    pub fn of(core: &Core, now: Instant) -> Self {
        let graph = &core.graph;
        let unsynced = core.sight.unsynced_because(now);
        let (linked, lone) = graph.len();
        Self {
            synced: unsynced.is_none(),
            unsynced,
            refused: refused(core, now),
            kinds: kinds(core, now),
            linked: linked as u64,
            lone: lone as u64,
            queue: core.queue.depth(),
            oldest: oldest(core, now),
            deletions: deletions(graph),
            kept: kept(graph),
            counts: core.counts.clone(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = match &self.unsynced {
            None => writeln!(out, "synced     {} kinds", self.kinds.len()),
            Some(why) => writeln!(out, "NOT SYNCED {why}"),
        };
        for it in self.refused.iter().take(OLDEST) {
            let _ = writeln!(
                out,
                "REFUSED    {} of {}: {}, {}, for {} s, last {} s ago: {}",
                it.step,
                it.resource,
                it.code,
                counted(it.times, "time"),
                it.since_seconds,
                it.last_seconds,
                it.error
            );
        }
        if let more @ 1.. = self.refused.len().saturating_sub(OLDEST) {
            let _ = writeln!(
                out,
                "REFUSED    and {more} more of other resources or with other statuses"
            );
        }
        let _ = writeln!(
            out,
            "objects    {} with owners or dependents, {} without",
            self.linked, self.lone
        );
        let Depth { ready, busy, put_off } = self.queue;
        let _ = writeln!(
            out,
            "queue      {ready} ready, {busy} under way, {put_off} to be tried again"
        );
        let Counts {
            events,
            deleted,
            released,
            finished,
            unseen,
            asked,
            conflicts,
            failures,
        } = &self.counts;
        let _ = writeln!(
            out,
            "done       {deleted} deleted, {released} released, {finished} finalizers taken off; {asked} owners asked for, \
             {conflicts} conflicts, {events} events"
        );
        if *unseen > 0 {
            let _ = writeln!(
                out,
                "unseen     {} although not every kind could be seen",
                counted(*unseen, "finalizer taken off")
            );
        }
        for (failure, times) in failures {
            let _ = writeln!(out, "failed     {failure}, {times} times");
        }
        section(&mut out, "Deletions that wait for dependents", &self.deletions, |it| {
            let example = it
                .example
                .as_ref()
                .map_or_else(String::new, |example| format!(", such as {example}"));
            format!(
                "{} ({}): {}{example}; uid {}",
                it.object,
                it.finalizer,
                counted(it.dependents, "dependent"),
                it.uid
            )
        });
        section(&mut out, "Waits longest", &self.oldest, |it| {
            let why = it.why.as_deref().unwrap_or("its turn has not come");
            format!(
                "{} {}: {} s, {}: {why}; uid {}",
                it.what,
                it.object,
                it.seconds,
                counted(it.tries.into(), "attempt"),
                it.uid
            )
        });
        section(
            &mut out,
            "Kept, because nobody can tell whether their owner is there",
            &self.kept,
            |it| {
                format!(
                    "{} of {}: {}; uid {}",
                    counted(it.dependents, "dependent"),
                    it.owner,
                    it.why,
                    it.uid
                )
            },
        );
        let _ = writeln!(out, "\n{:48} {:>9} {:>8}  STATE", "KIND", "OBJECTS", "HEARD");
        for kind in &self.kinds {
            let state = match (&kind.trouble, kind.synced) {
                (Some(trouble), _) => trouble,
                (None, true) => "synced",
                (None, false) => "being listed",
            };
            let heard = kind
                .silent_seconds
                .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s"));
            let _ = writeln!(out, "{:48} {:>9} {heard:>8}  {state}", kind.resource, kind.objects);
        }
        out
    }
}

fn section<T>(out: &mut String, title: &str, rows: &[T], row: impl Fn(&T) -> String) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}:");
    for it in rows {
        let _ = writeln!(out, "  {}", row(it));
    }
}

/// Those that go on for longest first.
fn refused(core: &Core, now: Instant) -> Vec<RefusedReport> {
    let mut all: Vec<_> = core.refusals.all(now).collect();
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
    let report = |(&id, watched): (&KindId, &Watched)| KindReport {
        resource: format!("{}/{}", watched.name(), watched.resource.version),
        synced: watched.synced,
        objects: counts.get(id.place()).copied().unwrap_or_default(),
        silent_seconds: watched.told.map(|told| seconds(now, told)),
        version: watched.progress,
        trouble: watched.trouble.as_ref().map(|trouble| trouble.text.clone()),
    };
    let mut kinds: Vec<KindReport> = core.sight.watched.iter().map(report).collect();
    kinds.sort_by(|one, other| one.resource.cmp(&other.resource));
    kinds
}

fn oldest(core: &Core, now: Instant) -> Vec<WaitingReport> {
    let mut waiting: Vec<(Instant, Hint)> = core.queue.waiting().collect();
    waiting.sort_unstable();
    let report = |(since, hint): (Instant, Hint)| {
        let (what, id) = match hint {
            Hint::Decide(id) => ("decide on", id),
            Hint::Ask(id) => ("ask for", id),
            Hint::Dependents(id) => ("decide on the dependents of", id),
        };
        let it = core.queue.look(hint).filter(|_| core.graph.lives(id))?;
        Some(WaitingReport {
            what: what.to_owned(),
            object: called(&core.graph, id),
            uid: clipped(&core.graph.uid(id)),
            seconds: seconds(now, since),
            tries: it.tries,
            why: it
                .trouble
                .or_else(|| core.queue.is_busy(hint).then(|| "a request is under way".to_owned())),
        })
    };
    waiting.into_iter().filter_map(report).take(OLDEST).collect()
}

fn deletions(graph: &Graph) -> Vec<DeletionReport> {
    let waits = |id: &NodeId| {
        let state = graph.node(*id).state;
        state.is_there() && (state.waits() || state.orphans())
    };
    let report = |id: NodeId| {
        let node = graph.node(id);
        let orphans = node.state.orphans();
        let mut dependents = graph
            .dependents(id)
            .filter(|link| link.node != id && (orphans || link.blocking));
        DeletionReport {
            object: called(graph, id),
            uid: clipped(&graph.uid(id)),
            finalizer: if orphans { "orphan" } else { "foregroundDeletion" }.to_owned(),
            dependents: if orphans { node.dependents } else { node.blocking }.into(),
            example: dependents.next().map(|link| called(graph, link.node)),
        }
    };
    graph.nodes().filter(waits).take(OLDEST).map(report).collect()
}

fn kept(graph: &Graph) -> Vec<KeptReport> {
    let report = |id: NodeId| KeptReport {
        owner: called(graph, id),
        uid: clipped(&graph.uid(id)),
        dependents: graph.node(id).dependents.into(),
        why: untold(graph, id).to_owned(),
    };
    graph
        .nodes()
        .filter(|&id| graph.is_untold(id))
        .take(OLDEST)
        .map(report)
        .collect()
}

fn seconds(now: Instant, since: Instant) -> u64 {
    now.saturating_duration_since(since).as_secs()
}
