//! The status of the agent, and its text form.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    api::expiry::expires_soon,
    counters::Counts,
    handover::{
        guard::holds::ABSENCE,
        report::{ProbeReport, RoleReport},
    },
    housekeeping::LeftoverReport,
    journal::paused::Paused,
    node::runtime::RuntimeReport,
    ops::{progress::describe, remedies::RENEW},
    watch::{SourceState, WatchReport},
    words::{format_count, seconds, some_of},
    workers::Overview,
};

/// The status of the agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The agent's version.
    pub version: String,
    /// Its process ID.
    pub pid: u32,
    /// When it was started.
    pub since: Timestamp,
    /// Its node.
    pub node: String,
    /// Whether it only logs what it would do.
    pub dry_run: bool,
    /// Number of panics since the start.
    #[serde(default)]
    pub panics: u64,
    /// Log lines that were dropped because no reader took them.
    #[serde(default)]
    pub log_lines_dropped: u64,
    /// Whether it takes pods down. Without that, most of the following fields are empty.
    pub takes_pods: bool,
    /// The garbage collector; `None` if this agent has none.
    #[serde(default)]
    pub collector: Option<CollectorReport>,
    /// The role; `None` without `--pods auto`.
    #[serde(default)]
    pub role: Option<RoleReport>,
    /// Why the agent may not act at the moment.
    pub blocked: Option<String>,
    /// Whether the reason is that the Node has another UID than the recorded one. An operator can approve it.
    #[serde(default)]
    pub node_uid_mismatch: bool,
    /// When the node's credentials expire, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_expire: Option<Timestamp>,
    /// The pause, if the agent is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// The container runtime.
    pub runtime: RuntimeReport,
    /// The watch of this node's pods.
    pub watch: WatchReport,
    /// Leftovers of deleted pods on this node.
    #[serde(default)]
    pub housekeeping: LeftoverReport,
    /// Terminating pods.
    pub pods: Overview,
    /// Why the journal cannot be written, if it cannot.
    #[serde(default)]
    pub journal_error: Option<String>,
    /// Quarantined journal files, until an operator deletes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined_files: Vec<String>,
    /// Counters since the start.
    pub counters: Counts,
}

/// Summary of the collector; `gc status` has the details.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CollectorReport {
    /// Why it is on standby; `None` while it is active.
    pub standby: Option<String>,
    /// Why not all kinds are synced; `None` if they are.
    pub not_synced: Option<String>,
}

// === impl RoleReport ===

impl RoleReport {
    fn line(&self, now: Timestamp) -> String {
        let duration = duration_since(self.since, now);
        match &self.message {
            Some(why) => format!("standby{duration}: {why}"),
            None => format!("active{duration}"),
        }
    }
}

// === impl ProbeReport ===

impl ProbeReport {
    fn line(&self, now: Timestamp) -> String {
        let Self {
            probe,
            state,
            seen,
            since,
        } = self;
        format!("{probe:<8} {state}{}: {seen}", duration_since(*since, now))
    }
}

/// Formats the time since then, with a leading comma; empty if unknown.
fn duration_since(since: Option<Timestamp>, now: Timestamp) -> String {
    let duration = since.and_then(|since| u64::try_from(now.duration_since(since).as_millis()).ok());
    duration.map_or_else(String::new, |ms| format!(", for {}", seconds(ms)))
}

// === impl CollectorReport ===

impl CollectorReport {
    fn line(&self) -> String {
        match (&self.standby, &self.not_synced) {
            (Some(why), _) => format!("standby: {why}"),
            (None, Some(why)) => format!("active; not synced: {why}"),
            (None, None) => "active; all kinds are synced".to_owned(),
        }
    }
}

/// Formats the status as one line, for `systemctl status`.
pub fn line(report: &StatusReport) -> String {
    if !report.takes_pods {
        let collector = report.collector.as_ref().map(CollectorReport::line);
        return collector.map_or_else(String::new, |line| format!("collector {line}"));
    }
    let role = report.role.as_ref();
    if let Some(why) = role.and_then(|role| role.message.as_ref()) {
        return format!("standby: {why}");
    }
    if let Some(why) = &report.blocked {
        return format!("blocked: {why}");
    }
    if let Some(paused) = &report.paused {
        return paused.why();
    }
    if let Some(why) = report.runtime.error.as_ref().or(report.watch.error.as_ref()) {
        return format!("waiting: {why}");
    }
    let terminating = report.pods.terminating.len() as u64;
    format!(
        "{} on this node, {} being taken down",
        format_count(report.watch.pods as u64, "pod"),
        if terminating == 0 {
            "none".to_owned()
        } else {
            terminating.to_string()
        }
    )
}

/// Formats the whole status.
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
    if report.panics > 0 {
        let times = format_count(report.panics, "panic");
        let _ = writeln!(
            out,
            "PANICKED  {times} since the start: please report them with the log"
        );
    }
    if report.log_lines_dropped > 0 {
        let lines = format_count(report.log_lines_dropped, "line");
        let _ = writeln!(out, "log       {lines} dropped, since nothing took them");
    }
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
    let pods = format_count(report.watch.pods as u64, "pod");
    let _ = writeln!(out, "API       {watch}, {pods} on this node");
    if let Some(error) = &report.watch.error {
        let _ = writeln!(out, "          {error}");
    }
    if let Some(end) = report.credentials_expire.filter(|end| expires_soon(*end, now)) {
        let verb = if end > now { "expire" } else { "have expired" };
        let _ = writeln!(out, "          the credentials {verb}: {end:.0}; {RENEW}");
    }
    if let Some(role) = &report.role {
        let _ = writeln!(out, "kubelet   {}", role.line(now));
        for probe in &role.probes {
            let _ = writeln!(out, "          {}", probe.line(now));
        }
        if let Some(last) = &role.fencing.last {
            let _ = writeln!(out, "          {last}");
        }
    }
    for blocked in report.blocked.iter().chain(&report.watch.absence_hold) {
        let _ = writeln!(out, "Blocked   {blocked}");
    }
    if let Some(paused) = &report.paused {
        let _ = writeln!(out, "Paused    {}", paused.why());
    }
    if report.watch.absence_hold.is_some() {
        let _ = writeln!(
            out,
            "          nothing is concluded from what is missing; if it is right: pod-teardown approve {ABSENCE}"
        );
    }
    if !report.watch.unmanaged.is_empty() {
        let unmanaged = &report.watch.unmanaged;
        let (count, some) = (
            format_count(unmanaged.len() as u64, "pod"),
            some_of(unmanaged.iter().cloned()),
        );
        let _ = writeln!(
            out,
            "besides   {count} of the runtime that cannot be proven to be the API server's, left alone: {some}"
        );
    }
    if !report.housekeeping.unused_volumes.is_empty() {
        let some = some_of(report.housekeeping.unused_volumes.iter().cloned());
        let _ = writeln!(
            out,
            "volumes   not all that no pod uses can be taken off the node: {some}"
        );
    }
    for (label, what, pods) in [
        (
            "leftovers",
            "that are gone, taken down when they have been there for a while",
            &report.housekeeping.leftovers,
        ),
        (
            "besides",
            "of which something is left and that cannot be proven to be the API server's, left alone",
            &report.housekeeping.unmanaged,
        ),
    ] {
        if !pods.is_empty() {
            let (count, some) = (format_count(pods.len() as u64, "pod"), some_of(pods.iter().cloned()));
            let _ = writeln!(out, "{label:<9} {count} {what}: {some}");
        }
    }
    if let Some(error) = &report.journal_error {
        // The message names the journal.
        let _ = writeln!(out, "{error}; a restart would not know what was begun");
    }
    for file in &report.quarantined_files {
        let _ = writeln!(
            out,
            "journal   {file} could not be used and is quarantined; remove it once nothing in it matters to you"
        );
    }
    let Counts {
        started,
        deleted,
        finished,
        attempts_failed,
        hooks_failed,
        ..
    } = report.counters;
    let _ = writeln!(
        out,
        "Teardowns {started} started, {deleted} deleted, {finished} finished; {} and {} failed",
        format_count(attempts_failed, "attempt"),
        format_count(hooks_failed, "hook"),
    );
    if report.pods.awaiting_deletion > 0 {
        let _ = writeln!(
            out,
            "          ended and not deleted: {}",
            report.pods.awaiting_deletion
        );
    }
    for trace in &report.pods.terminating {
        let _ = writeln!(
            out,
            "\n{}/{}  {}",
            trace.namespace,
            trace.name,
            describe(trace, report.blocked.is_some())
        );
        let _ = writeln!(out, "  uid {}, attempt {}", trace.uid, trace.attempts);
        for failure in &trace.blocked {
            let _ = writeln!(out, "  waits for: {failure}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_has_a_line_if_there_is_one() {
        let status = |collector: Option<CollectorReport>| {
            let report = StatusReport {
                collector,
                ..StatusReport::default()
            };
            text(&report, Timestamp::UNIX_EPOCH)
        };
        assert!(!status(None).contains("collector"));
        let (by, unseen) = (
            Some("another agent is active".to_owned()),
            Some("secrets (403)".to_owned()),
        );
        for (standby, not_synced, line) in [
            (None, None, "collector active; all kinds are synced\n"),
            (None, unseen.clone(), "collector active; not synced: secrets (403)\n"),
            (by, unseen, "collector standby: another agent is active\n"),
        ] {
            let status = status(Some(CollectorReport { standby, not_synced }));
            assert!(status.contains(line), "{line:?} is not in {status}");
        }
    }
}
