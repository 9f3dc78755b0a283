//! What `status` says.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    api::expiry::is_soon,
    counters::Counts,
    guard::held::ABSENCE,
    housekeeping::HouseReport,
    journal::paused::{PAUSED, Paused},
    liveness::report::{SignReport, TurnReport},
    node::runtime::RuntimeReport,
    ops::check::RENEW,
    record::{Stage, Step, Story},
    watch::{SourceState, WatchReport},
    words::{counted, some_of},
    workers::Overview,
};

/// All that the agent says of itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The agent's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since when it runs.
    pub since: Timestamp,
    /// Its node.
    pub node: String,
    /// Whether it only says what it would do.
    pub dry_run: bool,
    /// Whether it takes pods down; what follows but the counters is of them.
    pub takes_pods: bool,
    /// The collector, where one runs.
    #[serde(default)]
    pub collector: Option<CollectorReport>,
    /// Whose turn it is, where the agent stands by for a kubelet.
    #[serde(default)]
    pub understudy: Option<TurnReport>,
    /// Why nothing may be touched at the moment.
    pub held: Option<String>,
    /// When the credentials of the node end, where they tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_end: Option<Timestamp>,
    /// Who has paused the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// The container runtime.
    pub runtime: RuntimeReport,
    /// The watch of this node's pods.
    pub watch: WatchReport,
    /// What is left on this node of pods that are gone.
    #[serde(default)]
    pub house: HouseReport,
    /// Pods that end.
    pub pods: Overview,
    /// Why the journal cannot be written at the moment.
    #[serde(default)]
    pub journal: Option<String>,
    /// What is kept beside the journal because it is no use as one, until somebody takes it away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub journal_asides: Vec<String>,
    /// What happened how often.
    pub counters: Counts,
}

/// The collector in short; `gc status` tells more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CollectorReport {
    /// Why it stands by; nothing while it works.
    pub stands_by: Option<String>,
    /// Why not every kind can be seen, which matters while it works; nothing if they can.
    pub not_synced: Option<String>,
}

// === impl TurnReport ===

impl TurnReport {
    fn line(&self, now: Timestamp) -> String {
        let for_how_long = ago(self.since, now);
        match &self.stands_by {
            Some(why) => format!("{why}; standing by{for_how_long}"),
            None => format!("gone; its pods are taken down{for_how_long}"),
        }
    }
}

// === impl SignReport ===

impl SignReport {
    fn line(&self, now: Timestamp) -> String {
        let Self {
            sign,
            shows,
            seen,
            since,
        } = self;
        format!("{sign:<8} {shows}{}: {seen}", ago(*since, now))
    }
}

/// For how long something has been so.
fn ago(since: Option<Timestamp>, now: Timestamp) -> String {
    let lasts = since.and_then(|since| u64::try_from(now.duration_since(since).as_millis()).ok());
    lasts.map_or_else(String::new, |lasts| format!(", for {}", seconds(lasts)))
}

// === impl CollectorReport ===

impl CollectorReport {
    fn line(&self) -> String {
        match (&self.stands_by, &self.not_synced) {
            (Some(why), _) => format!("stands by: {why}"),
            (None, Some(why)) => format!("works; NOT SYNCED: {why}"),
            (None, None) => "works, and sees every kind".to_owned(),
        }
    }
}

/// On one line, for whoever looks at many services.
pub fn line(report: &StatusReport) -> String {
    if !report.takes_pods {
        let collector = report.collector.as_ref().map(CollectorReport::line);
        return collector.map_or_else(String::new, |line| format!("collector {line}"));
    }
    let turn = report.understudy.as_ref();
    if let Some(why) = turn.and_then(|turn| turn.stands_by.as_ref()) {
        return format!("standing by: {why}");
    }
    if let Some(why) = &report.held {
        return format!("held: {why}");
    }
    if let Some(paused) = &report.paused {
        return paused.why();
    }
    if let Some(why) = report.runtime.error.as_ref().or(report.watch.error.as_ref()) {
        return format!("waiting: {why}");
    }
    let ending = report.pods.terminating.len() as u64;
    format!(
        "{} on this node, {} being taken down",
        counted(report.watch.pods as u64, "pod"),
        if ending == 0 {
            "none".to_owned()
        } else {
            ending.to_string()
        }
    )
}

/// For people.
pub fn text(report: &StatusReport, now: Timestamp) -> String {
    let mut out = String::new();
    let since = seconds(u64::try_from(now.as_second() - report.since.as_second()).unwrap_or(0) * 1000);
    let dry_run = if report.dry_run { ", dry run" } else { "" };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "pod-teardown {} on node {}, pid {}, up {since}{dry_run}",
        report.version, report.node, report.pid
    );
    if let Some(collector) = &report.collector {
        let _ = writeln!(out, "collector {}", collector.line());
    }
    if !report.takes_pods {
        let _ = writeln!(out, "pods      left alone (--pods never); see `pod-teardown gc status`");
        return out;
    }
    let runtime = report.runtime.version.as_deref().unwrap_or("not reached yet");
    let _ = writeln!(out, "runtime   {runtime}");
    if let Some(error) = &report.runtime.error {
        let _ = writeln!(out, "          does not answer: {error}");
    }
    let watch = match report.watch.state {
        SourceState::Connecting => "not listed yet",
        SourceState::Watching => "watching",
        SourceState::Lost => "lost, waiting for it to return; deletions since then are not seen",
    };
    let pods = counted(report.watch.pods as u64, "pod");
    let _ = writeln!(out, "API       {watch}, {pods} on this node");
    if let Some(error) = &report.watch.error {
        let _ = writeln!(out, "          {error}");
    }
    if let Some(end) = report.credentials_end.filter(|end| is_soon(*end, now)) {
        let told = if end > now { "expire" } else { "have expired" };
        let _ = writeln!(out, "          the credentials {told}: {end:.0}; {RENEW}");
    }
    if let Some(turn) = &report.understudy {
        let _ = writeln!(out, "kubelet   {}", turn.line(now));
        for sign in &turn.signs {
            let _ = writeln!(out, "          {}", sign.line(now));
        }
        if let Some(last) = &turn.fenced.last {
            let _ = writeln!(out, "          {last}");
        }
    }
    for held in report.held.iter().chain(&report.watch.held) {
        let _ = writeln!(out, "HELD      {held}");
    }
    if let Some(paused) = &report.paused {
        let _ = writeln!(out, "PAUSED    {}: nothing is begun", paused.why());
    }
    if report.watch.held.is_some() {
        let _ = writeln!(
            out,
            "          nothing is concluded from what is missing; if it is right: pod-teardown release {ABSENCE}"
        );
    }
    if !report.watch.strangers.is_empty() {
        let strangers = &report.watch.strangers;
        let (count, some) = (
            counted(strangers.len() as u64, "pod"),
            some_of(strangers.iter().cloned()),
        );
        let _ = writeln!(
            out,
            "besides   {count} of the runtime that cannot be proven to be the API server's, left alone: {some}"
        );
    }
    if !report.house.volumes.is_empty() {
        let some = some_of(report.house.volumes.iter().cloned());
        let _ = writeln!(
            out,
            "volumes   not all that no pod uses can be taken off the node: {some}"
        );
    }
    for (name, what, of) in [
        (
            "leftovers",
            "that are gone, taken down when they have been there for a while",
            &report.house.leftovers,
        ),
        (
            "besides",
            "of which something is left and that cannot be proven to be the API server's, left alone",
            &report.house.strangers,
        ),
    ] {
        if !of.is_empty() {
            let (count, some) = (counted(of.len() as u64, "pod"), some_of(of.iter().cloned()));
            let _ = writeln!(out, "{name:<9} {count} {what}: {some}");
        }
    }
    if let Some(error) = &report.journal {
        // It says itself that it is the journal.
        let _ = writeln!(out, "{error}; a restart would not know what was begun");
    }
    for aside in &report.journal_asides {
        let _ = writeln!(out, "journal   one is {aside}; take it away when you have looked at it");
    }
    let Counts {
        begun,
        deleted,
        finished,
        attempts_failed,
        hooks_failed,
        ..
    } = report.counters;
    let _ = writeln!(
        out,
        "teardowns {begun} begun, {deleted} deleted, {finished} finished; {} and {} failed",
        counted(attempts_failed, "attempt"),
        counted(hooks_failed, "hook"),
    );
    if report.pods.kept > 0 {
        let _ = writeln!(out, "          ended and not deleted: {}", report.pods.kept);
    }
    for story in &report.pods.terminating {
        let _ = writeln!(
            out,
            "\n{}/{}  {}",
            story.namespace,
            story.name,
            stands(story, report.held.is_some())
        );
        let _ = writeln!(out, "  uid {}, attempt {}", story.uid, story.attempts);
        for failure in &story.failures {
            let _ = writeln!(out, "  waits for: {failure}");
        }
    }
    out
}

/// Where a pod's end is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nothing is done to it.
    Held,
    /// Its end waits for that of others, and its grace period has not begun.
    Waits,
    /// This step is under way.
    Now(Step),
    /// This step has failed and will be tried again.
    Again(Step),
    /// Between two steps.
    Between,
}

/// Why nothing is done for it, if somebody has paused the agent.
pub(super) fn paused(story: &Story) -> Option<&str> {
    let mut held = story
        .failures
        .iter()
        .filter_map(|failure| failure.strip_prefix("held: "));
    held.find(|why| why.starts_with(PAUSED))
}

fn at(story: &Story, held: bool) -> At {
    let held = held || paused(story).is_some();
    // So does a driver that others need; while all is held, that comes first.
    if !held && story.failures.iter().any(|failure| failure.starts_with("held: ")) {
        return At::Waits;
    }
    // A hold of this pod alone is a failure that says so.
    if held || story.failures.iter().any(|failure| failure.contains(": held: ")) {
        return At::Held;
    }
    let open = story.spans.iter().filter(|span| span.end_ms.is_none());
    if let Some(step) = open.map(|span| span.step).min() {
        return At::Now(step);
    }
    story.failed_at().map_or(At::Between, At::Again)
}

/// Where a pod's end is at, in words.
pub(super) fn stands(story: &Story, held: bool) -> String {
    let at = at(story, held);
    let doing = match (at, story.stage) {
        (_, Stage::Finished) => "finished".to_owned(),
        (At::Held, _) => "held".to_owned(),
        (At::Waits, _) => "its end waits for that of others".to_owned(),
        (At::Now(step), _) => under_way(step).to_owned(),
        (At::Again(step), Stage::Deleted) => format!("deleted; {} will be tried again", thing(step)),
        (At::Again(step), _) => format!("{} will be tried again", thing(step)),
        (At::Between, Stage::Terminating) => under_way(Step::Term).to_owned(),
        (At::Between, Stage::Terminated) => "nothing runs; volumes and cgroup are being removed".to_owned(),
        (At::Between, Stage::Deleted) => under_way(Step::Cleanup).to_owned(),
    };
    let elapsed = seconds(story.elapsed_ms);
    // The status is sent, and the object deleted, when nothing runs any more: nobody has a use for grace then.
    let runs = story.stage == Stage::Terminating
        && !matches!(
            at,
            At::Waits | At::Now(Step::Status | Step::Delete) | At::Again(Step::Status | Step::Delete)
        );
    match story.grace_left_ms {
        _ if !runs => format!("{doing}, for {elapsed}"),
        0 => format!(
            "{doing}, for {elapsed}; the grace period of {} s is over",
            story.grace_seconds
        ),
        left => format!(
            "{doing}, for {elapsed}; {} of {} s grace left",
            seconds(left),
            story.grace_seconds
        ),
    }
}

fn under_way(step: Step) -> &'static str {
    match step {
        Step::Hook | Step::Term | Step::Kill => "containers are being stopped",
        Step::Sandbox => "the sandbox is being stopped",
        Step::Devices => "nothing runs; its devices are being released",
        Step::Volumes => "nothing runs; volumes are being removed",
        Step::Cgroup => "nothing runs; the cgroup is being removed",
        Step::Status => "nothing runs; the status is being sent",
        Step::Delete => "nothing is left; the object is being deleted",
        Step::Cleanup => "deleted; what is left in the runtime is being removed",
    }
}

fn thing(step: Step) -> &'static str {
    match step {
        Step::Hook | Step::Term | Step::Kill => "the stop of its containers",
        Step::Sandbox => "the stop of its sandbox",
        Step::Devices => "the release of its devices",
        Step::Volumes => "the removal of its volumes",
        Step::Cgroup => "the removal of its cgroup",
        Step::Status => "its status in the API",
        Step::Delete => "the delete of its object",
        Step::Cleanup => "the clean-up of the runtime",
    }
}

/// Milliseconds as people read them.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{}.{:01} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Span;

    fn story(stage: Stage, open: &[Step], failures: &[&str]) -> Story {
        let span = |step: &Step| Span {
            step: *step,
            what: String::new(),
            start_ms: 0,
            end_ms: None,
            failure: None,
        };
        Story {
            grace_left_ms: 12_000,
            stage,
            elapsed_ms: 18_000,
            failures: failures.iter().map(|&failure| failure.to_owned()).collect(),
            spans: open.iter().map(span).collect(),
            ..Story::sample()
        }
    }

    #[test]
    fn a_line_names_what_really_waits_and_grace_only_while_something_runs() {
        let grace = "; 12.0 s of 30 s grace left";
        let (ending, ended, gone) = (Stage::Terminating, Stage::Terminated, Stage::Deleted);
        let no_status = "status: PATCH /api/v1: connection refused";
        let guard = "cgroup /kubepods/x: held: it holds 2 processes";
        for (stage, open, failures, held, doing, grace) in [
            (
                ending,
                &[Step::Term][..],
                &[][..],
                false,
                "containers are being stopped",
                grace,
            ),
            (
                ending,
                &[Step::Status],
                &[],
                false,
                "nothing runs; the status is being sent",
                "",
            ),
            (
                ending,
                &[],
                &[no_status],
                false,
                "its status in the API will be tried again",
                "",
            ),
            (
                ending,
                &[Step::Sandbox],
                &[no_status],
                false,
                "the sandbox is being stopped",
                grace,
            ),
            (
                ending,
                &[],
                &["term main: hangs"],
                false,
                "the stop of its containers will be tried again",
                grace,
            ),
            (ending, &[], &["term main: no"], true, "held", grace),
            (ending, &[], &[guard], false, "held", grace),
            (
                ending,
                &[],
                &["held: ns/db that end need this pod as a driver"],
                false,
                "its end waits for that of others",
                "",
            ),
            (
                ended,
                &[],
                &["volumes: busy"],
                false,
                "the removal of its volumes will be tried again",
                "",
            ),
            (
                gone,
                &[],
                &["cleanup: x"],
                false,
                "deleted; the clean-up of the runtime will be tried again",
                "",
            ),
            (
                gone,
                &[],
                &[],
                false,
                "deleted; what is left in the runtime is being removed",
                "",
            ),
        ] {
            let told = stands(&story(stage, open, failures), held);
            assert_eq!(told, format!("{doing}, for 18.0 s{grace}"), "{open:?} {failures:?}");
        }
    }

    #[test]
    fn the_collector_has_a_line_of_its_own_where_there_is_one() {
        let said = |collector: Option<CollectorReport>| {
            let report = StatusReport {
                collector,
                ..StatusReport::default()
            };
            text(&report, Timestamp::UNIX_EPOCH)
        };
        assert!(!said(None).contains("collector"));
        let (by, unseen) = (
            Some("it is another's turn".to_owned()),
            Some("secrets (403)".to_owned()),
        );
        for (stands_by, not_synced, line) in [
            (None, None, "collector works, and sees every kind\n"),
            (None, unseen.clone(), "collector works; NOT SYNCED: secrets (403)\n"),
            (by, unseen, "collector stands by: it is another's turn\n"),
        ] {
            let said = said(Some(CollectorReport { stands_by, not_synced }));
            assert!(said.contains(line), "{line:?} is not in {said}");
        }
    }
}
