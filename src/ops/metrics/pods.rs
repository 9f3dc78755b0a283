//! Metrics of the agent and of terminating pods.

use std::time::Duration;

use prometheus_client::metrics::{histogram::Histogram, info::Info};
use strum::VariantArray as _;

use super::family::{Metrics, labels, since_epoch};
use crate::{
    counters::Counts,
    handover::{
        probes::ProbeState,
        report::{FenceReport, RoleReport},
    },
    histogram::Histograms,
    model::{
        kubelet_unit::KubeletUnit,
        trace::{Stage, Step},
    },
    ops::{admin::PodsAdmin, status::StatusReport},
    watch::SourceState,
};

/// Histograms about pods.
#[derive(Debug)]
pub struct PodDurations {
    /// Finished teardowns.
    pub teardowns: Histogram,
    /// Their steps.
    pub steps: Histograms<1>,
    /// Durable writes of the journal.
    pub commits: Histogram,
    /// Calls to the container runtime.
    pub runtime: Histograms<2>,
}

// === impl PodDurations ===

impl PodDurations {
    pub(super) fn new(pods: &PodsAdmin) -> Self {
        Self {
            teardowns: pods.counters.teardown_durations.clone(),
            steps: pods.counters.step_durations.clone(),
            commits: pods.journal.commit_durations(),
            runtime: pods.runtime_calls.0.clone(),
        }
    }

    pub(super) fn register(&self, metrics: &mut Metrics<'_>) {
        metrics.register_seconds("teardown_duration", self.teardowns.clone());
        metrics.register_seconds("teardown_step_duration", self.steps.clone());
        metrics.register_seconds("journal_commit_duration", self.commits.clone());
        metrics.register_seconds("runtime_request_duration", self.runtime.clone());
    }
}

pub(super) fn register(metrics: &mut Metrics<'_>, status: &StatusReport) {
    metrics.register("build", Info::new(labels([("version", &status.version)])));
    metrics.counter("panics", status.panics);
    metrics.counter("log_lines_dropped", status.log_lines_dropped);
    if status.takes_pods {
        if let Some(report) = &status.role {
            role(metrics, report);
        }
        health(metrics, status);
        pods(metrics, status);
        since_start(metrics, &status.counters);
    }
}

fn role(metrics: &mut Metrics<'_>, report: &RoleReport) {
    let unit = report.kubelet_unit.as_ref().map(KubeletUnit::state);
    let probes = report.probes.iter().map(|probe| {
        let is_alive = probe.state == ProbeState::Alive;
        (labels([("probe", &probe.probe)]), u64::from(is_alive))
    });
    let failing_starts = report.failing.as_ref().map_or(0, |failing| failing.starts);
    let FenceReport { stopped, failed, .. } = report.fencing;
    let fenced = [("stopped", stopped), ("failed", failed)];
    let fenced = fenced.map(|(result, count)| (labels([("result", result)]), count));
    metrics.state("role", "role", Some(&report.role));
    metrics.state("standby_reason", "reason", report.reason.as_ref());
    metrics.state("kubelet_unit_state", "state", unit.as_ref());
    metrics.seconds("role_since_timestamp", since_epoch(report.since));
    metrics.gauges("kubelet_probe_alive", probes);
    metrics.gauge("kubelet_failing_starts", failing_starts);
    metrics.counters("kubelets_fenced", fenced);
}

fn health(metrics: &mut Metrics<'_>, status: &StatusReport) {
    let runtime_answers = status.runtime.version.is_some() && status.runtime.error.is_none();
    metrics.gauge("blocked", status.blocked.is_some());
    metrics.seconds("credentials_expiry_timestamp", since_epoch(status.credentials_expire));
    metrics.gauge("paused", status.paused.is_some());
    metrics.gauge("absence_hold", status.watch.absence_hold.is_some());
    metrics.gauge("node_uid_mismatch", status.node_uid_mismatch);
    metrics.gauge("runtime_up", runtime_answers);
    metrics.gauge("watch_up", status.watch.state == SourceState::Watching);
    metrics.gauge("journal_up", status.journal_error.is_none());
    metrics.count("quarantined_files", status.quarantined_files.len());
}

fn pods(metrics: &mut Metrics<'_>, status: &StatusReport) {
    let traces = &status.pods.terminating;
    let stages = [
        (Stage::Terminating, "terminating"),
        (Stage::Terminated, "terminated"),
        (Stage::Deleted, "deleted"),
    ];
    let at = |stage: Stage| traces.iter().filter(|trace| trace.stage == stage).count() as u64;
    let failing = |step| traces.iter().filter(|trace| trace.failed_at() == Some(step)).count() as u64;
    let longest = traces.iter().map(|trace| trace.elapsed_ms).max().unwrap_or_default();
    let on_hold = traces.iter().filter(|trace| trace.mismatch.is_some()).count();
    let stages = stages.map(|(stage, name)| (labels([("stage", name)]), at(stage)));
    let failing = Step::VARIANTS
        .iter()
        .map(|&step| (labels([("step", step.name())]), failing(step)));
    metrics.count("pods", status.watch.pods);
    metrics.count("unmanaged_pods", status.housekeeping.unmanaged.len());
    metrics.count("unused_volumes_stuck", status.housekeeping.unused_volumes.len());
    metrics.count("pods_on_hold", on_hold);
    metrics.gauges("pods_terminating", stages);
    metrics.gauges("pods_failing", failing);
    metrics.count("pods_awaiting_deletion", status.pods.awaiting_deletion);
    metrics.count("pods_awaiting_finalizers", status.pods.awaiting_finalizers);
    metrics.seconds("longest_teardown", Duration::from_millis(longest));
}

/// The journal's commits are a histogram.
fn since_start(metrics: &mut Metrics<'_>, counts: &Counts) {
    let observations = counts.observations.iter();
    let observations = observations.map(|(verdict, count)| (labels([("verdict", &verdict.to_string())]), *count));
    for (name, value) in [
        ("teardowns_started", counts.started),
        ("pods_deleted", counts.deleted),
        ("teardowns_finished", counts.finished),
        ("attempts_failed", counts.attempts_failed),
        ("hooks_failed", counts.hooks_failed),
        ("events_dropped", counts.events_dropped),
        ("pods_unreadable", counts.pods_unreadable),
        ("workers_panicked", counts.workers_panicked),
        ("stop_requests_canceled", counts.stop_requests_canceled),
        ("leftovers_found", counts.leftovers_found),
        ("unused_volumes_failed", counts.unused_volumes_failed),
        ("traces_exported", counts.traces_exported),
        ("traces_dropped", counts.traces_dropped),
        ("journal_writes_failed", counts.journal_writes_failed),
    ] {
        metrics.counter(name, value);
    }
    metrics.counters("observations", observations);
    metrics.failures("failures", &counts.failures);
}
