//! Metrics of the agent and of terminating pods.

use std::{fmt, time::Duration};

use super::page::{Page, since_epoch};
use crate::{
    counters::Counts,
    handover::{
        probes::ProbeState,
        report::{FenceReport, RoleReport},
        role::{RoleName, StandbyReasonName},
    },
    model::{
        kubelet_unit::{KubeletUnit, UnitState},
        trace::{Stage, Step},
    },
    ops::status::StatusReport,
    watch::SourceState,
};

pub(super) fn write(page: &mut Page<'_>, status: &StatusReport) -> fmt::Result {
    let build = [("version", status.version.as_str())];
    page.info("build", "Version of the agent; the value is always 1.", &build)?;
    page.counter(
        "panics",
        "Panics in the agent. The log has the place of each.",
        status.panics,
    )?;
    page.counter(
        "log_lines_dropped",
        "Log lines that were dropped because their reader was too slow.",
        status.log_lines_dropped,
    )?;
    if status.takes_pods {
        status.role.as_ref().map_or(Ok(()), |report| role(page, report))?;
        health(page, status)?;
        pods(page, status)?;
        counters(page, &status.counters)?;
    }
    Ok(())
}

fn role(page: &mut Page<'_>, report: &RoleReport) -> fmt::Result {
    page.gauges(
        "role",
        "1 for the role of this agent: active if it takes pods down, observing with --mode observe, else standby. None with --mode always.",
        RoleName::ALL.map(|role| ([("role", role.to_string())], u64::from(report.role == role))),
    )?;
    page.gauges(
        "standby_reason",
        "1 for the reason why this agent is on standby. All are 0 while it is active.",
        StandbyReasonName::ALL.map(|reason| {
            (
                [("reason", reason.to_string())],
                u64::from(report.reason == Some(reason)),
            )
        }),
    )?;
    let unit = report.kubelet_unit.as_ref().map(KubeletUnit::state);
    page.gauges(
        "kubelet_unit_state",
        "1 for the state of the kubelet's systemd unit while the kubelet does not work: restarting, failed, starting, running, stopping, masked, unloadable, condition-unmet or stopped. All are 0 while it works, and without systemd.",
        UnitState::ALL.map(|state| ([("state", state.to_string())], u64::from(unit == Some(state)))),
    )?;
    page.seconds(
        "role_since_timestamp",
        "When the role or the standby reason last changed, as Unix time.",
        since_epoch(report.since),
    )?;
    page.gauges(
        "kubelet_probe_alive",
        "1 while this probe of the kubelet reports alive, 0 while it reports down or unknown.",
        report.probes.iter().map(|probe| {
            (
                [("probe", probe.probe.clone())],
                u64::from(probe.state == ProbeState::Alive),
            )
        }),
    )?;
    page.gauge(
        "kubelet_failing_starts",
        "Starts of a kubelet that starts again and again and never works, since it last worked; else 0. The agent is active between them.",
        report.failing.as_ref().map_or(0, |failing| failing.starts.into()),
    )?;
    let FenceReport { stopped, failed, .. } = report.fencing;
    page.counters(
        "kubelets_fenced",
        "Attempts to stop the unit of a kubelet that does not work, by result. Only with --fence-kubelet.",
        [("stopped", stopped), ("failed", failed)].map(|(result, count)| ([("result", result)], count)),
    )
}

fn health(page: &mut Page<'_>, status: &StatusReport) -> fmt::Result {
    page.boolean(
        "blocked",
        "1 while the agent must not change anything on this node, such as beside a kubelet. pod-teardown status has the reason.",
        status.blocked.is_some(),
    )?;
    page.seconds(
        "credentials_expiry_timestamp",
        "When the node's credentials expire, as Unix time. No sample if that is unknown.",
        since_epoch(status.credentials_expire),
    )?;
    page.boolean(
        "paused",
        "1 from pod-teardown pause to pod-teardown resume.",
        status.paused.is_some(),
    )?;
    page.boolean(
        "absence_hold",
        "1 while a safety hold prevents conclusions from pods that are absent from a list. It needs pod-teardown approve.",
        status.watch.absence_hold.is_some(),
    )?;
    page.boolean(
        "node_uid_mismatch",
        "1 while the Node has another UID than the recorded one. The agent changes nothing until pod-teardown approve node-uid.",
        status.node_uid_mismatch,
    )?;
    page.boolean(
        "runtime_up",
        "1 while the container runtime answers.",
        status.runtime.version.is_some() && status.runtime.error.is_none(),
    )?;
    page.boolean(
        "watch_up",
        "1 while the watch of this node's pods works.",
        status.watch.state == SourceState::Watching,
    )?;
    page.boolean(
        "journal_up",
        "1 while the journal can be written. Without it, a restarted agent does not know which teardowns have started.",
        status.journal_error.is_none(),
    )?;
    page.gauge(
        "quarantined_files",
        "Unusable journal files that the agent has moved aside. They stay until an operator deletes them.",
        status.quarantined_files.len() as u64,
    )
}

fn pods(page: &mut Page<'_>, status: &StatusReport) -> fmt::Result {
    page.gauge("pods", "Pods of this node in the API.", status.watch.pods as u64)?;
    page.gauge(
        "unmanaged_pods",
        "Pod UIDs with containers, cgroups or directories on this node that are not proven to belong to the API server. The agent does not touch them.",
        status.housekeeping.unmanaged.len() as u64,
    )?;
    page.gauge(
        "unused_volumes_stuck",
        "Volumes that no pod uses and that cannot be unmounted. pod-teardown status has the reasons.",
        status.housekeeping.unused_volumes.len() as u64,
    )?;
    let traces = &status.pods.terminating;
    page.gauge(
        "pods_on_hold",
        "Pods that wait for an approval. pod-teardown holds lists them.",
        traces.iter().filter(|trace| trace.mismatch.is_some()).count() as u64,
    )?;
    let stages = [
        (Stage::Terminating, "terminating"),
        (Stage::Terminated, "terminated"),
        (Stage::Deleted, "deleted"),
    ];
    let at = |stage: Stage| traces.iter().filter(|trace| trace.stage == stage).count() as u64;
    page.gauges(
        "pods_terminating",
        "Terminating pods, by stage.",
        stages.map(|(stage, name)| ([("stage", name)], at(stage))),
    )?;
    let failing = |step| traces.iter().filter(|trace| trace.failed_at() == Some(step)).count() as u64;
    page.gauges(
        "pods_failing",
        "Terminating pods whose last attempt failed and is retried, by the step that failed first.",
        Step::ALL.map(|step| ([("step", step.to_string())], failing(step))),
    )?;
    page.gauge(
        "pods_awaiting_deletion",
        "Pods that have terminated and whose object is not deleted.",
        status.pods.awaiting_deletion as u64,
    )?;
    page.gauge(
        "pods_awaiting_finalizers",
        "Pods whose teardown is finished and whose object stays because of finalizers.",
        status.pods.awaiting_finalizers as u64,
    )?;
    let longest = traces.iter().map(|trace| trace.elapsed_ms).max().unwrap_or_default();
    page.seconds(
        "longest_teardown",
        "Time since the start of the oldest teardown in progress; 0 if there is none.",
        Some(Duration::from_millis(longest)),
    )
}

fn counters(page: &mut Page<'_>, counts: &Counts) -> fmt::Result {
    let Counts {
        started,
        deleted,
        finished,
        attempts_failed,
        failures,
        hooks_failed,
        events_dropped,
        pods_unreadable,
        workers_panicked,
        leftovers_found,
        unused_volumes_failed,
        stop_requests_canceled,
        journal_writes_failed,
        traces_exported,
        traces_dropped,
        observations,
        // The histogram has them.
        journal_commits: _,
        journal_commits_us: _,
    } = counts;
    for (name, help, value) in [
        (
            "teardowns_started",
            "Teardowns that were started, also beside a kubelet, which may finish them instead.",
            started,
        ),
        (
            "pods_deleted",
            "Pods whose final delete was accepted, or whose object no longer existed.",
            deleted,
        ),
        ("teardowns_finished", "Teardowns that are finished.", finished),
        (
            "attempts_failed",
            "Attempts of teardowns that failed and were retried.",
            attempts_failed,
        ),
        (
            "hooks_failed",
            "preStop hooks that failed. The teardown continues after them.",
            hooks_failed,
        ),
        ("events_dropped", "Events about pods that were dropped.", events_dropped),
        (
            "pods_unreadable",
            "Pod objects that could not be parsed, completely or in part.",
            pods_unreadable,
        ),
        (
            "workers_panicked",
            "Workers that panicked and were restarted.",
            workers_panicked,
        ),
        (
            "stop_requests_canceled",
            "Requests by pod-teardown stop that were canceled because a kubelet was, or may have been, present.",
            stop_requests_canceled,
        ),
        (
            "leftovers_found",
            "Deleted pods of which the agent found leftovers on this node.",
            leftovers_found,
        ),
        (
            "unused_volumes_failed",
            "Failed attempts to unmount a volume that no pod uses. Each is retried.",
            unused_volumes_failed,
        ),
        (
            "traces_exported",
            "Traces that the OpenTelemetry collector has accepted. Only with OTEL_EXPORTER_OTLP_ENDPOINT.",
            traces_exported,
        ),
        (
            "traces_dropped",
            "Traces that were dropped: the collector did not accept them, or more than 256 waited.",
            traces_dropped,
        ),
        (
            "journal_writes_failed",
            "Failed writes of the journal.",
            journal_writes_failed,
        ),
    ] {
        page.counter(name, help, *value)?;
    }
    page.counters(
        "observations",
        "Terminations by the kubelet that were observed, by verdict. A terminal pod of which something is left when it is deleted \
         counts again. Only with --mode observe.",
        observations
            .iter()
            .map(|(verdict, count)| ([("verdict", verdict.to_string())], *count)),
    )?;
    page.failures(
        "failures",
        "Failures of teardown steps, by step and reason. Each is retried.",
        failures,
    )
}
