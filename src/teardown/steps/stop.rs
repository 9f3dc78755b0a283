//! Stops the pod's containers, then its sandboxes. The status before the stop is sent at the same time.

mod containers;
mod hooks;
pub mod stop_order;
pub mod without_network;

use std::{convert::Infallible, sync::Arc};

use futures::future::join_all;
use tokio::time::{Instant, sleep};

use self::{
    containers::{Stop, hook_of, stop_timeout},
    stop_order::StopPosition,
};
use super::{overrule, status};
use crate::{
    model::{
        failure::{Failure, first_message, ok_if_empty},
        pod::{ContainerView, Hook, PodView},
        trace::Step,
    },
    node::{
        cri::types::{Container, RuntimePod},
        effects,
    },
    teardown::{
        attempt::{AFTER_STOP, Attempt, Observed},
        evidence,
        late::report_if_late,
        locate,
        period::{AFTER_KILL, wait_for_deadline},
        plan::{PlanFacts, Planned, PlannedAction},
    },
    trace_context,
};

// === The decision ===

/// Whether the pod has a terminal phase and nothing of it runs, and so is not stopped.
fn has_exited_by_itself(view: &PodView, runtime_pod: &RuntimePod) -> bool {
    view.is_terminal_and_not_deleted() && !view.object.is_absent() && !runtime_pod.may_run()
}

// === The effect ===

/// Stops the pod unless it needs no stop.
///
/// # Errors
/// What failed, and what still runs. None prevents the stop of another container.
pub async fn run(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (worker, view) = (attempt.worker, Arc::clone(attempt.view()));
    let Observed { pod, is_overruled } = attempt.observed.clone();
    let has_exited = has_exited_by_itself(&view, &pod);
    if is_overruled || has_exited && !pod.has_unread_exit() {
        return Ok(());
    }
    if has_exited {
        attempt.stopped.pod = Arc::new(worker.query(&view, Step::Status, AFTER_STOP).await?);
        return Ok(());
    }
    begin(attempt);
    let stopped = tokio::select! {
        biased;
        stopped = stop(attempt) => stopped,
        () = overrule::wait_until_overruled(worker, &view) => Ok(()),
    };
    if stopped.is_err() && Instant::now() < worker.period.deadline() {
        overrule::record_named_processes(worker, &view).await;
    }
    if let Err(failures) = stopped
        && !(pod.may_run() && overrule::overrule_if_exited(worker, &view).await)
    {
        return without_network::unmount(attempt, failures).await;
    }
    let stopped = worker.query(&view, Step::Sandbox, AFTER_STOP).await?;
    let runs = stopped.may_run();
    if !runs {
        worker.recorder.set_runtime_state(None, None);
    }
    let is_overruled = runs && overrule::overrule_if_exited(worker, &view).await;
    let pod = Arc::new(match is_overruled {
        true => stopped.with_all_exited(),
        false => stopped.with_exits_from(&pod),
    });
    attempt.stopped = Observed { pod, is_overruled };
    Ok(())
}

/// Begins the grace period. The journal has an earlier time for that, so this does not wait for the disk.
fn begin(attempt: &Attempt<'_>) {
    let worker = attempt.worker;
    let grace_from = worker.period.begin().then(|| {
        worker.recorder.set_grace(worker.period.grace(), worker.period.end());
        worker.context.node.clock.now()
    });
    // If no container runs and the API shows the termination, a kubelet has nothing to do again.
    let is_in_progress = attempt.observed.runs() || !worker.terminates_by_api();
    let uid = &attempt.view().pod.uid;
    worker.context.journal.update(uid, |entry| {
        entry.in_progress = is_in_progress;
        if let Some(now) = grace_from {
            entry.begin_grace(now);
        }
    });
    worker.runtime_state.lock().requested.get_or_insert_with(Instant::now);
}

async fn stop(attempt: &Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (worker, view, observed) = (attempt.worker, attempt.view(), &*attempt.observed.pod);
    let stop = Stop {
        context: &worker.context,
        view,
        observed,
        period: worker.period.subscribe(),
        recorder: &worker.recorder,
    };
    // With attached volumes the API keeps the last running container statuses, also in later attempts.
    if attempt.is_gone || observed.is_empty() || !attempt.observed.runs() && status::may_hold_attached(attempt).await? {
        return ok_if_empty(stop.stop_all().await);
    }
    // The stop does not wait for it. The API server rejects it once it has a newer status.
    let prestop_status = async {
        if let Err(failures) = status::send_prestop(attempt).await {
            tracing::debug!(failure = %first_message(&failures), "Pre-stop status is not sent");
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // No report comes before the stop.
        biased;
        failures = stop.stop_all() => ok_if_empty(failures),
        () = prestop_status => unreachable!("pending never returns"),
    }
}

impl Stop<'_> {
    /// Stops everything. Returns all failures: none prevents the stop of another container.
    async fn stop_all(&self) -> Vec<Failure> {
        let stopped = async {
            if self.observed.possibly_running().next().is_some() {
                // A checkpoint may have left the pod frozen: it would get neither a hook nor a stop signal.
                self.thaw_now("Frozen processes thawed for their stop signal").await;
            }
            let (mut failures, has_skipped) = self.containers().await;
            // The stop of a sandbox kills its containers at once. It waits until each container was stopped, and for the end of
            // the grace period if a stop failed.
            if has_skipped {
                return failures;
            }
            failures.extend(self.still_running().await);
            if failures.is_empty() || self.time_left().is_zero() {
                // The sandbox's stop is the SIGKILL of containers that could not be stopped.
                let waits = failures.is_empty();
                failures.extend(self.sandboxes(waits).await);
            }
            failures
        };
        tokio::select! {
            biased;
            failures = stopped => failures,
            never = self.thaw_after_kill() => match never {},
        }
    }

    /// Containers that still run although their stop succeeded, or that were started meanwhile. Called before the sandboxes are
    /// stopped, which kills containers without a grace period.
    async fn still_running(&self) -> Vec<Failure> {
        if self.time_left().is_zero() || self.observed.possibly_running().next().is_none() {
            return Vec::new();
        }
        match self.context.node.cri.pod_brief(self.view.pod.uid.as_str()).await {
            Ok(now) => evidence::still_running(&now, Step::Term).collect(),
            Err(error) => vec![Failure::new(Step::Term, "", error)],
        }
    }

    /// Stops the sandboxes. `waits`: when the runtime works on few enough others.
    async fn sandboxes(&self, waits: bool) -> Vec<Failure> {
        let sandboxes = &self.observed.sandboxes;
        if sandboxes.is_empty() {
            return Vec::new();
        }
        let span = self.recorder.span(Step::Sandbox, "");
        let limit = &self.context.limits.sandboxes;
        let slot = match waits {
            true => limit.acquire().await,
            false => limit.acquire_by(Instant::now()).await,
        };
        let cri = &self.context.node.cri;
        let stops = sandboxes.iter().map(|sandbox| cri.stop_sandbox(&sandbox.id));
        let stops = slot.run(trace_context::scope(span.context(), join_all(stops)));
        let results = report_if_late(self.recorder, (Step::Sandbox, ""), "StopPodSandbox", stops).await;
        let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        span.end(&failed.first().map_or(Ok(()), Err));
        let mut failures = Vec::new();
        for error in &failed {
            if !error.is_blocked() {
                // Only the first error is kept: some runtimes report a network failure once and then succeed.
                self.recorder.change(|trace| {
                    trace.sandbox_error.get_or_insert_with(|| error.to_string());
                });
            }
            failures.push(Failure::new(Step::Sandbox, "", error));
        }
        failures
    }

    /// Thaws the pod after the runtime has sent its SIGKILL: a frozen process does not exit.
    async fn thaw_after_kill(&self) -> Infallible {
        wait_for_deadline(self.period.clone()).await;
        sleep(AFTER_KILL).await;
        self.thaw_now("Frozen processes thawed for their SIGKILL").await;
        std::future::pending().await
    }

    async fn thaw_now(&self, why: &str) {
        let (outcome, failures) = locate::thaw_cgroups(self.context, self.view).await;
        if outcome != effects::Outcome::Nothing {
            tracing::info!(?outcome, "{why}");
        }
        for failure in failures {
            tracing::warn!(%failure, "Frozen processes cannot be thawed");
        }
    }
}

// === The plan ===

/// Hooks, stops of containers and of sandboxes.
pub async fn plan(facts: &PlanFacts) -> Planned {
    let timeout_seconds = stop_timeout(facts.grace.left()).as_secs();
    let sandboxes = |pod: &RuntimePod| {
        let ids = pod.sandboxes.iter().map(|it| it.id.clone());
        ids.map(|id| PlannedAction::StopSandbox { id }).collect()
    };
    let stops = |pod: &RuntimePod| stops(&facts.reads.view, pod, timeout_seconds);
    let hooks = facts.of_runtime(|pod| unfinished_hooks(facts, pod)).await;
    vec![
        (Step::Hook, hooks),
        (Step::Term, facts.of_runtime(stops).await),
        (Step::Sandbox, facts.of_runtime(sandboxes).await),
    ]
}

/// Hooks whose end is not recorded.
fn unfinished_hooks(facts: &PlanFacts, pod: &RuntimePod) -> Vec<PlannedAction> {
    let has_run = |id: &str| {
        let hook = facts.entry.as_ref().and_then(|entry| entry.hooks.get(id));
        hook.is_some_and(|hook| hook.ended)
    };
    let running = pod.possibly_running().filter(|container| !has_run(&container.id));
    let hooks = running.filter_map(|container| {
        let (spec, hook) = hook_of(container, facts.reads.view.container(&container.name))?;
        Some(PlannedAction::RunHook {
            container: container.name.clone(),
            id: container.id.clone(),
            handler: hook.kind().to_owned(),
            target: target_of(&facts.reads.view, spec, hook),
        })
    });
    hooks.collect()
}

fn target_of(view: &PodView, spec: &ContainerView, hook: &Hook) -> String {
    match hook {
        Hook::Exec(command) => command.join(" "),
        Hook::HttpGet(get) => {
            let own = match view.host_network {
                true => view.host_ip.as_ref(),
                false => view.ips.first(),
            };
            let own = own.map_or("POD-IP", String::as_str);
            let url = hooks::url(get, hooks::scheme(get), spec, Some(own));
            url.unwrap_or_else(|error| error.to_string())
        }
        Hook::Sleep(seconds) => format!("{seconds}s"),
        Hook::Invalid => String::new(),
    }
}

/// The stops, main containers before sidecars.
fn stops(view: &PodView, pod: &RuntimePod, timeout_seconds: u64) -> Vec<PlannedAction> {
    let running = pod.possibly_running();
    let running: Vec<_> = running.map(|it| (it, StopPosition::of(view, &it.name))).collect();
    let stopped_before = |position: StopPosition| -> Vec<String> {
        let others = running.iter().filter(move |(_, other)| position.waits_for(*other));
        others.map(|(other, _)| other.name.clone()).collect()
    };
    let mut ordered: Vec<_> = running
        .iter()
        .map(|(it, position)| (it, stopped_before(*position)))
        .collect();
    ordered.sort_by_key(|(_, after)| after.len());
    let stop = |(container, after): (&&Container, _)| PlannedAction::StopContainer {
        container: container.name.clone(),
        id: container.id.clone(),
        timeout_seconds,
        after,
    };
    ordered.into_iter().map(stop).collect()
}
