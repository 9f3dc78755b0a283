//! The text forms of the status. Pure.

use std::{fmt::Write as _, time::Duration};

use jiff::Timestamp;

use super::{CollectorReport, StatusReport};
use crate::{
    handover::{
        guard::holds::ABSENCE,
        probes::{LEASE, ProbeState},
        report::RoleReport,
    },
    model::{
        blocked::BlockedKind,
        role::{RoleName, StandbyReasonName},
        trace::{BlockedReason, Trace},
    },
    ops::{
        output::{age_since, cell, table, wide_cell},
        progress::step,
        remedies::{RENEW, expiry},
    },
    watch::SourceState,
    words::{age, format_count, some_of},
};

/// Formats the status as one line, for `systemctl status`.
pub fn line(report: &StatusReport) -> String {
    if !report.takes_pods {
        let collector = report.collector.as_ref().map(collector);
        return collector.map_or_else(String::new, |line| format!("collector {line}"));
    }
    let role = report.role.as_ref();
    if let Some((role, why)) = role.and_then(|role| Some((role.role, role.message.as_ref()?))) {
        return match role {
            RoleName::Active => format!("{role} {why}"),
            RoleName::Standby | RoleName::Observing => format!("{role}: {why}"),
        };
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
    let terminating = match report.pods.terminating.len() {
        0 => "none".to_owned(),
        pods => pods.to_string(),
    };
    format!(
        "{} on this node, {terminating} terminating",
        format_count(report.watch.pods as u64, "pod"),
    )
}

/// Formats the whole status. `is_wide`: with the agent, its counters, UIDs and attempts.
pub fn text(report: &StatusReport, is_wide: bool, now: Timestamp) -> String {
    let mut out = Lines::default();
    if is_wide {
        let uptime = age_since(report.since, now);
        let StatusReport { version, node, pid, .. } = report;
        let agent = format!("pod-teardown {version} on node {node}, pid {pid}, up {uptime}");
        out.add("Agent", &agent);
    }
    out.add("Role", &role(report, now));
    if report.blocked_by == Some(BlockedKind::OnlyObserves) {
        out.add(
            "",
            "--mode is observe, its default; to let the service act, add POD_TEARDOWN_MODE=auto to /etc/default/pod-teardown, and restart it with systemctl",
        );
    }
    if report.takes_pods {
        add_node(&mut out, report, now);
    }
    if let Some(report) = &report.collector {
        out.add("Collector", &collector(report));
    }
    let (panics, lines) = (report.panics, report.log_lines_dropped);
    out.add_count("Panics", panics, "panic", "since the start: report them with the log");
    let slow = "dropped: the journal or standard error was too slow";
    out.add_count("Log", lines, "line", slow);
    if !report.takes_pods {
        return out.0;
    }
    add_reasons(&mut out, report);
    add_leftovers(&mut out, report);
    if is_wide {
        let counts = &report.counters;
        let (started, deleted, finished) = (counts.started, counts.deleted, counts.finished);
        let attempts = format_count(counts.attempts_failed, "attempt");
        let hooks = format_count(counts.hooks_failed, "hook");
        let ended = format!("{deleted} deleted, {finished} finished; {attempts} and {hooks} failed");
        out.add("Counters", &format!("{started} started, {ended}"));
    }
    let (undeleted, finished) = (report.pods.awaiting_deletion, report.pods.awaiting_finalizers);
    out.add_count("Retained", undeleted as u64, "pod", "terminated, but not deleted");
    out.add_count("Retained", finished as u64, "pod", "finished, but kept by finalizers");
    format!("{}\n{}", out.0, pods_table(report, is_wide))
}

/// Lines of a label and a text.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, label: &str, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{label:<9} {text}");
    }

    /// A line for a number that is not zero.
    fn add_count(&mut self, label: &str, count: u64, thing: &str, what: &str) {
        if count > 0 {
            self.add(label, &format!("{} {what}", format_count(count, thing)));
        }
    }
}

fn role(report: &StatusReport, now: Timestamp) -> String {
    if !report.takes_pods {
        return "collector only (--mode never)".to_owned();
    }
    let Some(report) = &report.role else {
        return "active (--mode always)".to_owned();
    };
    let (role, reason, message) = (report.role, report.reason, report.message.as_ref());
    match (role, reason, message) {
        (RoleName::Active, _, Some(message)) => format!("{role} {message}"),
        (RoleName::Standby, None, None) => format!("{role}: the kubelet is not probed yet"),
        _ => {
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            let since = report.since.map(|since| format!(" for {}", age_since(since, now)));
            let since = since.unwrap_or_default();
            let message = message.map_or_else(String::new, |why| format!(": {why}"));
            format!("{role}{reason}{since}{message}")
        }
    }
}

/// The kubelet, the runtime and the API server.
fn add_node(out: &mut Lines, report: &StatusReport, now: Timestamp) {
    if let Some(role) = &report.role {
        let probes = role.probes.iter().map(|probe| {
            let name = if probe.probe == LEASE { "Lease" } else { &probe.probe };
            let since = probe.since.map(|since| age_since(since, now));
            match (name, probe.state, since) {
                // A Lease is renewed every 10 seconds only.
                ("Lease", ProbeState::Alive, Some(since)) => format!("Lease renewed {since} ago"),
                ("Lease", ProbeState::Down, Some(since)) => format!("Lease not renewed for {since}"),
                (name, state, since) => format!(
                    "{name} {state}{}",
                    since.map_or_else(String::new, |it| format!(" {it}"))
                ),
            }
        });
        let probes = match (role.probes.is_empty(), &report.runtime.version) {
            (false, _) => probes.collect::<Vec<_>>().join(", "),
            (true, None) => "not probed yet: the agent waits for the container runtime".to_owned(),
            (true, Some(_)) => "not probed yet".to_owned(),
        };
        out.add("Kubelet", &probes);
        if let Some(unit) = &role.kubelet_unit {
            out.add("", &unit.details());
            out.add("", &unit.remedy());
        }
        if let Some(last) = &role.fencing.last {
            out.add("Fencing", last);
        }
    }
    let runtime = report.runtime.version.as_deref().unwrap_or("not reached yet");
    out.add("Runtime", runtime);
    if let Some(error) = &report.runtime.error {
        out.add("", &format!("does not answer: {error}"));
    }
    let watch = match report.watch.state {
        SourceState::Connecting => "not listed yet",
        SourceState::Watching => "watching",
        SourceState::Lost => "disconnected; later deletions are not seen",
    };
    let pods = format_count(report.watch.pods as u64, "pod");
    out.add("API", &format!("{watch}, {pods}"));
    if let Some(error) = &report.watch.error {
        out.add("", error);
    }
    if let Some(expiry) = report.credentials_expire.and_then(|end| expiry(end, now, RENEW)) {
        out.add("", &expiry);
    }
}

/// Why the agent does less than it could.
fn add_reasons(out: &mut Lines, report: &StatusReport) {
    // The role shows these.
    let is_in_role = matches!(
        report.blocked_by,
        Some(BlockedKind::OnlyObserves | BlockedKind::Standby)
    );
    if let Some(blocked) = report.blocked.as_ref().filter(|_| !is_in_role) {
        out.add("Blocked", blocked);
    }
    if let Some(hold) = &report.watch.absence_hold {
        out.add("Hold", hold);
        out.add(
            "",
            &format!(
                "pods that a list lacks are not treated as deleted; see pod-teardown holds, and then pod-teardown approve {ABSENCE} \
                 --digest DIGEST"
            ),
        );
    }
    if let Some(paused) = &report.paused {
        out.add("Paused", &paused.period());
    }
    if let Some(error) = &report.journal_error {
        let lost = format!("{error}; a restart would lose the state of terminating pods");
        out.add("Journal", &lost);
    }
    for file in &report.quarantined_files {
        let quarantined = format!("{file} was unusable and is quarantined; delete it when you do not need it");
        out.add("Journal", &quarantined);
    }
}

fn add_leftovers(out: &mut Lines, report: &StatusReport) {
    let found = &report.housekeeping;
    let (unmanaged, leftovers) = (&found.unmanaged, &found.leftovers);
    let named = |what, pods: &[String]| format!("{what}: {}", some_of(pods.iter().cloned()));
    let why = named("not proven to be of the API server; not touched", unmanaged);
    out.add_count("Unmanaged", unmanaged.len() as u64, "pod", &why);
    let why = named("of deleted pods; removed by the agent", leftovers);
    out.add_count("Leftovers", leftovers.len() as u64, "pod", &why);
    if !found.unused_volumes.is_empty() {
        let some = some_of(found.unused_volumes.iter().cloned());
        out.add("Volumes", &format!("unused volumes cannot be unmounted: {some}"));
    }
}

fn pods_table(report: &StatusReport, is_wide: bool) -> String {
    let traces = &report.pods.terminating;
    if traces.is_empty() {
        return "No pod is terminating.\n".to_owned();
    }
    let row = |trace: &Trace| {
        let (step, grace, waits_for) = match wait_for_role(trace, report.role.as_ref()) {
            Some(waits_for) => ("-", "-".to_owned(), waits_for.to_owned()),
            None => (step(trace), grace(trace), waits_for(trace)),
        };
        [
            cell("NAMESPACE", &trace.namespace),
            cell("NAME", &trace.name),
            cell("STEP", step),
            cell("AGE", age(Duration::from_millis(trace.elapsed_ms))),
            cell("GRACE", grace),
            wide_cell("ATTEMPTS", trace.attempts),
            wide_cell("UID", &trace.uid),
            cell("WAITING-FOR", waits_for),
        ]
    };
    table(traces.iter().map(row), is_wide)
}

/// What a pod waits for if only the role of the agent blocks it.
fn wait_for_role(trace: &Trace, role: Option<&RoleReport>) -> Option<&'static str> {
    let [blocked] = trace.blocked.as_slice() else {
        return None;
    };
    if blocked.step.is_some() || blocked.reason != BlockedReason::Guard {
        return None;
    }
    match (role?.role, role?.reason) {
        (RoleName::Observing, _) | (_, Some(StandbyReasonName::KubeletAlive)) => Some("the kubelet"),
        (_, Some(StandbyReasonName::KubeletStarted)) if role?.failing.is_some() => Some("the kubelet's exit"),
        (_, Some(StandbyReasonName::KubeletStarted)) => Some("the kubelet"),
        (_, Some(StandbyReasonName::TakeoverPending)) => Some("the takeover"),
        _ => None,
    }
}

/// The rest of the grace period.
fn grace(trace: &Trace) -> String {
    let left = age(Duration::from_millis(trace.grace_left_ms));
    let begun = trace.awaits_grace_period().then_some(" (not begun)");
    format!("{left}{}", begun.unwrap_or_default())
}

/// The first reason, and the number of others.
fn waits_for(trace: &Trace) -> String {
    match trace.blocked.as_slice() {
        [] => "-".to_owned(),
        [one] => one.to_string(),
        [first, others @ ..] => format!("{first} (and {} more)", others.len()),
    }
}

fn collector(report: &CollectorReport) -> String {
    match (&report.standby, &report.not_synced) {
        (Some(why), _) => format!("standby: {why}"),
        (None, Some(why)) => format!("active; not synced: {why}"),
        (None, None) => "active; all kinds are synced".to_owned(),
    }
}

#[cfg(test)]
mod tests;
