//! Metrics of the agent and of terminating pods.

use std::{fmt, time::Duration};

use super::page::{Page, since_epoch};
use crate::{
    counters::Counts,
    handover::{
        probes::ProbeState,
        report::{FenceReport, RoleReport},
        role::Role,
    },
    model::trace::{Stage, Step},
    ops::status::StatusReport,
    watch::SourceState,
};

pub(super) fn write(page: &mut Page<'_>, status: &StatusReport) -> fmt::Result {
    let build = [("version", status.version.as_str())];
    page.info("build", "The agent's version.", &build)?;
    let since = u64::try_from(status.since.as_second()).unwrap_or_default();
    let since = Some(Duration::from_secs(since));
    page.seconds("start_time", "When the agent was started, since the Unix epoch.", since)?;
    page.counter("panics", "Panics in the agent; each is in the log.", status.panics)?;
    page.counter(
        "log_lines_dropped",
        "Lines of the log that were dropped, since nothing took them.",
        status.log_lines_dropped,
    )?;
    if status.takes_pods {
        status.understudy.as_ref().map_or(Ok(()), |report| role(page, report))?;
        health(page, status)?;
        pods(page, status)?;
        counters(page, &status.counters)?;
    }
    Ok(())
}

fn role(page: &mut Page<'_>, report: &RoleReport) -> fmt::Result {
    page.gauges(
        "turn",
        "1 for whose turn it is to take pods down: ours, or why this agent stands by; with --pods auto.",
        Role::KINDS.map(|kind| ([("turn", kind)], u64::from(report.turn == kind))),
    )?;
    let since = report.since.and_then(|since| u64::try_from(since.as_second()).ok());
    page.seconds(
        "turn_since",
        "Since when it is, since the Unix epoch.",
        since.map(Duration::from_secs),
    )?;
    page.gauges(
        "kubelet_lives",
        "1 while this sign of the kubelet shows that it lives, 0 while it does not, or cannot be looked at.",
        report.probes.iter().map(|probe| {
            (
                [("sign", probe.probe.clone())],
                u64::from(probe.shows == ProbeState::Alive),
            )
        }),
    )?;
    let FenceReport { stopped, failed, .. } = report.fenced;
    page.counters(
        "kubelets_fenced",
        "Kubelets that were wedged and whose unit was to be stopped, by what came of it; with --fence-kubelet.",
        [("stopped", stopped), ("failed", failed)].map(|(result, count)| ([("result", result)], count)),
    )
}

fn health(page: &mut Page<'_>, status: &StatusReport) -> fmt::Result {
    page.boolean(
        "held",
        "1 while nothing may be touched, such as beside a kubelet; status says why.",
        status.held.is_some(),
    )?;
    page.seconds(
        "credentials_expire",
        "When the node's credentials end, since the Unix epoch; none where they do not tell.",
        since_epoch(status.credentials_end),
    )?;
    page.boolean(
        "paused",
        "1 while somebody has paused the agent, until pod-teardown resume.",
        status.paused.is_some(),
    )?;
    page.boolean(
        "absence_held",
        "1 while nothing is concluded from what a list of pods lacks.",
        status.watch.held.is_some(),
    )?;
    page.boolean(
        "node_uid_held",
        "1 while nothing may be touched because the Node has another UID than the recorded one, until somebody releases it.",
        status.node_uid_held,
    )?;
    page.boolean(
        "runtime_up",
        "1 while the container runtime answers.",
        status.runtime.version.is_some() && status.runtime.error.is_none(),
    )?;
    page.boolean(
        "watch_up",
        "1 while this node's pods are watched.",
        status.watch.state == SourceState::Watching,
    )?;
    page.boolean(
        "journal_up",
        "1 while the journal can be written.",
        status.journal.is_none(),
    )?;
    page.gauge(
        "journal_asides",
        "Files that are kept beside the journal because they are no use as one, until somebody takes them away.",
        status.journal_asides.len() as u64,
    )
}

fn pods(page: &mut Page<'_>, status: &StatusReport) -> fmt::Result {
    page.gauge(
        "pods",
        "Pods of this node that the API shows.",
        status.watch.pods as u64,
    )?;
    page.gauge(
        "strangers",
        "UIDs of which something is here and that cannot be proven to be those of pods of the API: left alone.",
        status.house.unmanaged.len() as u64,
    )?;
    page.gauge(
        "unused_volumes_stuck",
        "Volumes that no pod uses and that cannot be taken off the node for now; status says why.",
        status.house.volumes.len() as u64,
    )?;
    let traces = &status.pods.terminating;
    page.gauge(
        "pods_held",
        "Pods that wait for a person's decision, see pod-teardown held.",
        traces.iter().filter(|trace| trace.mismatch.is_some()).count() as u64,
    )?;
    let stages = [
        (Stage::Terminating, "terminating"),
        (Stage::Terminated, "terminated"),
        (Stage::Deleted, "deleted"),
    ];
    let at = |stage: Stage| traces.iter().filter(|trace| trace.stage == stage).count() as u64;
    page.gauges(
        "pods_ending",
        "Pods that are being taken down, by how far they are.",
        stages.map(|(stage, name)| ([("stage", name)], at(stage))),
    )?;
    let failing = |step| traces.iter().filter(|trace| trace.failed_at() == Some(step)).count() as u64;
    page.gauges(
        "pods_failing",
        "Pods whose last attempt failed and is repeated, by the step that failed first.",
        Step::ALL.map(|step| ([("step", step.to_string())], failing(step))),
    )?;
    page.gauge(
        "pods_kept",
        "Pods that have ended and are not deleted.",
        status.pods.kept as u64,
    )?;
    page.gauge(
        "pods_finished",
        "Pods that are taken down and whose object stays, held by finalizers.",
        status.pods.finished as u64,
    )?;
    let longest = traces.iter().map(|trace| trace.elapsed_ms).max().unwrap_or_default();
    page.seconds(
        "longest_teardown",
        "For how long the pod that has taken longest is being taken down; 0 if there is none.",
        Some(Duration::from_millis(longest)),
    )
}

fn counters(page: &mut Page<'_>, counts: &Counts) -> fmt::Result {
    let Counts {
        begun,
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
        requests_given_up,
        journal_writes_failed,
        journal_commits,
        journal_commits_us,
    } = counts;
    for (name, help, value) in [
        ("teardowns_begun", "Teardowns that were begun.", begun),
        ("pods_deleted", "Pods whose final delete has come to its end.", deleted),
        (
            "teardowns_finished",
            "Teardowns of which nothing is left to do.",
            finished,
        ),
        (
            "attempts_failed",
            "Attempts that failed and were repeated.",
            attempts_failed,
        ),
        ("hooks_failed", "preStop hooks that failed.", hooks_failed),
        (
            "events_dropped",
            "Events about pods that nobody will read.",
            events_dropped,
        ),
        (
            "pods_unreadable",
            "Pods of which the object, or fields of it, could not be read.",
            pods_unreadable,
        ),
        (
            "workers_panicked",
            "Workers that panicked and were started again.",
            workers_panicked,
        ),
        (
            "requests_given_up",
            "Requests by kill and evict that were given up, since a kubelet has come before the pod had ended, or may have.",
            requests_given_up,
        ),
        (
            "leftovers_found",
            "Pods that were gone and of which something was found and taken down.",
            leftovers_found,
        ),
        (
            "unused_volumes_failed",
            "Attempts to take a volume that no pod uses off the node that failed and are repeated.",
            unused_volumes_failed,
        ),
        (
            "journal_writes_failed",
            "Writes of the journal that failed.",
            journal_writes_failed,
        ),
        (
            "journal_commits",
            "Durable writes of the journal, each for all pods that had something to write.",
            journal_commits,
        ),
    ] {
        page.counter(name, help, *value)?;
    }
    page.failures(
        "failures",
        "What failed in attempts that were repeated, by step and by what went wrong.",
        failures,
    )?;
    page.seconds_counter(
        "journal_commits",
        "Time that durable writes of the journal took.",
        Duration::from_micros(*journal_commits_us),
    )
}
