//! What `status` says.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    counters::Counts,
    node::runtime::RuntimeReport,
    record::{Stage, Story},
    watch::{SourceState, WatchReport},
    workers::Overview,
};

/// All that the agent says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// Why nothing may be touched at the moment.
    pub held: Option<String>,
    /// The container runtime.
    pub runtime: RuntimeReport,
    /// The watch of this node's pods.
    pub watch: WatchReport,
    /// Pods that end.
    pub pods: Overview,
    /// Why the journal cannot be written at the moment.
    #[serde(default)]
    pub journal: Option<String>,
    /// What happened how often.
    pub counters: Counts,
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
    let runtime = report.runtime.version.as_deref().unwrap_or("not reached yet");
    let _ = writeln!(out, "runtime   {runtime}");
    if let Some(error) = &report.runtime.error {
        let _ = writeln!(out, "          does not answer: {error}");
    }
    let watch = match report.watch.state {
        SourceState::Connecting => "not listed yet",
        SourceState::Watching => "watching",
        SourceState::Lost => "lost, waiting for it to return",
    };
    let _ = writeln!(out, "API       {watch}, {} pods on this node", report.watch.pods);
    if let Some(error) = &report.watch.error {
        let _ = writeln!(out, "          {error}");
    }
    if let Some(held) = report.held.iter().chain(&report.watch.held).next() {
        let _ = writeln!(out, "HELD      {held}");
    }
    if let Some(error) = &report.journal {
        // It says itself that it is the journal.
        let _ = writeln!(out, "{error}; a restart would not know what was begun");
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
        "teardowns {begun} begun, {deleted} deleted, {finished} finished; {attempts_failed} attempts and {hooks_failed} hooks failed"
    );
    if report.pods.kept > 0 {
        let _ = writeln!(out, "          {} have ended and are not deleted", report.pods.kept);
    }
    for story in &report.pods.terminating {
        let _ = writeln!(out, "\n{}/{}  {}", story.namespace, story.name, stands(story));
        let _ = writeln!(out, "  uid {}, attempt {}", story.uid, story.attempts);
        for failure in &story.failures {
            let _ = writeln!(out, "  waits for: {failure}");
        }
    }
    out
}

fn stands(story: &Story) -> String {
    let stage = match story.stage {
        Stage::Terminating => "containers are being stopped",
        Stage::Terminated => "nothing runs; volumes and cgroup are being removed",
        Stage::Deleted => "deleted; what is left in the runtime is being removed",
        Stage::Finished => "finished",
    };
    let elapsed = seconds(story.elapsed_ms);
    match story.grace_left_ms {
        0 => format!(
            "{stage}, for {elapsed}; the grace period of {} s is over",
            story.grace_seconds
        ),
        left => format!(
            "{stage}, for {elapsed}; {} of {} s grace left",
            seconds(left),
            story.grace_seconds
        ),
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
