//! Stops containers: all hooks at once, then the stop signals in order, all within one deadline.

use std::{convert::Infallible, time::Duration};

use backon::BackoffBuilder as _;
use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::{
    sync::{OnceCell, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    hooks::{self, HookError},
    stop_order::StopPosition,
};
use crate::{
    clock::pauses,
    journal::{JournalError, PodEntry},
    model::{
        event::Reason,
        failure::Failure,
        pod::{ContainerView, Hook, PodView},
        trace::{Obstacle, Step},
    },
    node::{
        checkpoint::{self, JOURNAL},
        cri::types::{Container, ContainerState, RuntimePod},
        grpc::{CallFailure, GrpcError},
    },
    teardown::{
        NOT_KILLED,
        boundary::Counted,
        context::Context,
        late::{LATE, report_if_late},
        period::{MIN_STOP, RunningPeriod, wait_for_deadline},
    },
    trace_context,
    trace_recorder::TraceRecorder,
};

/// Longest timeout of a stop: longer ones overflow clocks of runtimes.
const MAX_STOP: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Pauses between repeated stops after the grace period was shortened.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often the containers are listed while stops are not answered: before the deadline, in the first attempt.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// The same in later attempts, which repeat stops.
const LIST_EVERY_IF_REPEATED: Duration = Duration::from_secs(2);
/// First and longest pause between these lists after the deadline.
const FIRST_LATE_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_LATE_PAUSE: Duration = Duration::from_secs(5);

/// Longest wait for the pod IP in the runtime. The status has one, too.
const LOOKUP: Duration = Duration::from_secs(5);

/// Name of the effect.
const HOOK: &str = "run the preStop hook of";

/// The pod IP, after the first hook has needed it.
type Address = OnceCell<Option<String>>;

/// The stop of one pod.
pub struct Stop<'a> {
    pub context: &'a Context,
    pub view: &'a PodView,
    /// The pod in the runtime.
    pub observed: &'a RuntimePod,
    /// The grace period. It may become shorter while this runs.
    pub period: watch::Receiver<RunningPeriod>,
    /// The teardown trace.
    pub recorder: &'a TraceRecorder,
}

/// One container to stop, with its position in the stop order.
struct Stoppable<'a> {
    container: &'a Container,
    spec: Option<&'a ContainerView>,
    position: StopPosition,
    result: watch::Sender<StopResult>,
    /// The runtime shows that it has exited.
    has_exited: watch::Sender<bool>,
}

/// Result of a stop in this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopResult {
    /// Not known yet.
    Pending,
    /// The container has exited.
    Exited,
    /// The container may still run.
    Failed,
    /// It was not stopped in this attempt.
    Skipped,
}

impl Stop<'_> {
    /// Stops every container that may run. Returns the failures, and whether some stops were left to the next attempt: a failure has
    /// the reason.
    pub async fn containers(&self) -> (Vec<Failure>, bool) {
        let stoppables = self.observed.possibly_running().map(|container| Stoppable {
            container,
            spec: self.view.container(&container.name),
            position: StopPosition::of(self.view, &container.name),
            result: watch::Sender::new(StopResult::Pending),
            has_exited: watch::Sender::new(false),
        });
        let stoppables: Vec<_> = stoppables.collect();
        let address = Address::new();
        let stops = stoppables.iter().map(|it| self.stop_one(it, &stoppables, &address));
        let results = tokio::select! {
            biased;
            results = join_all(stops) => results,
            never = self.detect_exits(&stoppables) => match never {},
        };
        let failures = results.into_iter().filter_map(Result::err).collect();
        let mut results = stoppables.iter().map(|it| *it.result.borrow());
        (failures, results.any(|result| result == StopResult::Skipped))
    }

    /// Marks the containers that the runtime shows as exited. CRI-O may never answer a stop if the caller of an earlier stop has
    /// exited (CRI-O issues 8748 and 9754): this agent, or the kubelet before it. Before the deadline, a container that is not
    /// listed may still run, and the stop of its sandbox would kill it early.
    async fn detect_exits(&self, stoppables: &[Stoppable<'_>]) -> Infallible {
        let every = match self.recorder.is_first_attempt() {
            true => LIST_EVERY,
            false => LIST_EVERY_IF_REPEATED,
        };
        let mut pauses = pauses(FIRST_LATE_PAUSE, LONGEST_LATE_PAUSE).build();
        loop {
            let left = self.time_left();
            let pause = match left.is_zero() {
                true => pauses.next().unwrap_or(LONGEST_LATE_PAUSE),
                false => every.min(left + FIRST_LATE_PAUSE),
            };
            sleep(pause).await;
            let query = timeout(LATE, self.context.node.cri.pod_brief(self.view.pod.uid.as_str()));
            let Ok(Ok(pod)) = query.await else {
                continue;
            };
            let is_over = self.time_left().is_zero();
            for stoppable in stoppables {
                let listed = pod.containers.iter().find(|it| it.id == stoppable.container.id);
                let has_exited = listed.map_or(is_over, |it| !it.state.may_run());
                stoppable.has_exited.send_replace(has_exited);
            }
        }
    }

    async fn stop_one(
        &self,
        stoppable: &Stoppable<'_>,
        all: &[Stoppable<'_>],
        address: &Address,
    ) -> Result<(), Failure> {
        let (container, result) = (stoppable.container, &stoppable.result);
        let message = format!("Stopping container {}", container.name);
        let declared = stoppable.spec.map(|spec| (spec.role, &*spec.name));
        let events = &self.context.events;
        events.event(self.view, declared, Reason::Killing, &message);
        if let Some((spec, hook)) = hook_of(container, stoppable.spec)
            && let Err(failure) = self.hook(container, spec, hook, address).await
        {
            // The gate may open again, and the hook must run before the stop.
            result.send_replace(StopResult::Skipped);
            return Err(failure);
        }
        if !self.wait_for_stop_order(stoppable, all).await {
            result.send_replace(StopResult::Skipped);
            return Ok(());
        }
        let stopped = self.stop(stoppable).await;
        result.send_replace(match &stopped {
            Ok(()) => StopResult::Exited,
            Err(_) => StopResult::Failed,
        });
        stopped
    }

    /// Runs the hook, unless it has ended before. An error means that it may not run now, and that nothing was recorded.
    async fn hook(
        &self,
        container: &Container,
        spec: &ContainerView,
        hook: &Hook,
        address: &Address,
    ) -> Result<(), Failure> {
        let blocked_hook = |blocked| Failure::new(Step::Hook, &container.name, blocked);
        let Context { journal, node, .. } = self.context;
        let uid = &self.view.pod.uid;
        let has_ended = |entry: &PodEntry| entry.hooks.get(&container.id).is_some_and(|hook| hook.ended);
        if journal.read(uid, has_ended) {
            tracing::info!(container = container.name, "preStop hook is finished and not rerun");
            return Ok(());
        }
        node.effects.allow(HOOK, &container.name).map_err(blocked_hook)?;
        let span = self.recorder.span(Step::Hook, &container.name);
        let started = journal.hook_started(uid, &container.id, node.clock.now());
        record(container, "hook started", started).await;
        let deadline = self.deadline();
        let run = async {
            let address = self.address_for(hook, address).await;
            hooks::run(node, hook, (&container.id, spec), address.as_deref(), deadline).await
        };
        let result = tokio::select! {
            biased;
            () = std::future::ready(()), if deadline <= Instant::now() => Err(HookError::NoTime),
            result = trace_context::scope(span.context(), run) => result,
            () = wait_for_deadline(self.period.clone()) => Err(HookError::Overrun),
        };
        checkpoint::after(HOOK, &container.name);
        if let Err(
            HookError::Blocked(blocked)
            | HookError::Runtime(GrpcError {
                failure: CallFailure::Blocked(blocked),
                ..
            }),
        ) = result
        {
            span.failed(&blocked);
            return Err(blocked_hook(blocked));
        }
        // A hook is interrupted, not finished, if the runtime could not be called or became unreachable.
        let is_interrupted = |error: &GrpcError| matches!(error.failure, CallFailure::Unreachable(..));
        let interrupted = matches!(&result, Err(HookError::Runtime(error)) if is_interrupted(error));
        if !interrupted {
            record(container, "hook ended", journal.hook_ended(uid, &container.id)).await;
        }
        if let Err(error) = &result {
            self.report_failed_hook(spec, hook, error);
        }
        span.end(&result);
        Ok(())
    }

    fn report_failed_hook(&self, spec: &ContainerView, hook: &Hook, error: &HookError) {
        let container = (spec.role, &*spec.name);
        tracing::warn!(container = container.1, hook = hook.kind(), %error, "preStop hook failed; the stop continues");
        // Its output may contain secrets.
        let message = match error {
            HookError::NoTime => "PreStopHook was skipped: the grace period has no time left",
            _ => "PreStopHook failed",
        };
        let events = &self.context.events;
        events.count(Counted::HookFailed);
        events.event(self.view, Some(container), Reason::FailedPreStopHook, message);
    }

    /// Waits until the container may be stopped. A sidecar waits for main containers and the sidecars after it in the spec, until
    /// the deadline. `false` if one of these does not exit in this attempt: the next attempt stops that one first, and the
    /// sidecar keeps running until then.
    async fn wait_for_stop_order(&self, stoppable: &Stoppable<'_>, all: &[Stoppable<'_>]) -> bool {
        let before = all.iter().filter(|other| stoppable.position.waits_for(other.position));
        let ends = join_all(before.map(|other| async {
            let mut result = other.result.subscribe();
            let result = result.wait_for(|result| *result != StopResult::Pending).await;
            // The sender lives longer than this borrow.
            result.is_ok_and(|result| *result == StopResult::Exited)
        }));
        tokio::select! {
            biased;
            () = wait_for_deadline(self.period.clone()) => true,
            ended = ends => ended.into_iter().all(|ended| ended),
        }
    }

    /// Calls StopContainer, and again with less time whenever the deadline becomes earlier, until one call succeeds. Earlier
    /// calls stay open: if they were canceled, their SIGKILL would be, too. An exit that the runtime shows counts as success.
    async fn stop(&self, stoppable: &Stoppable<'_>) -> Result<(), Failure> {
        let container = stoppable.container;
        let mut has_exited = stoppable.has_exited.subscribe();
        let mut period = self.period.clone();
        let mut at = period.borrow_and_update().deadline();
        let mut calls = FuturesUnordered::new();
        calls.push(self.stop_call(container, at));
        let mut open = true;
        let backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE);
        let mut pauses = backoff.build();
        let mut again = None;
        loop {
            tokio::select! {
                // An exited container needs no further call.
                biased;
                // `calls` is never empty here: an error is returned only if no call is left.
                Some((of, result)) = calls.next() => match result {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        let failure = Failure::new(Step::Term, &container.name, &error);
                        if calls.is_empty() {
                            return Err(failure);
                        }
                        tracing::warn!(container = container.name, %error, "StopContainer failed; another call is in progress");
                        // All other calls have a later deadline.
                        if of == at {
                            self.report_meanwhile(&failure);
                            again = Some(Instant::now() + pauses.next().unwrap_or(LONGEST_PAUSE));
                        }
                    }
                },
                // The sender lives longer than this borrow.
                () = async { drop(has_exited.wait_for(|has_exited| *has_exited).await) } => {
                    tracing::warn!(
                        container = container.name,
                        "No answer to StopContainer, but the container has exited; the call is canceled"
                    );
                    return Ok(());
                }
                // The grace period was shortened. A closed channel only means that it will not be again.
                changed = period.changed(), if open => {
                    open = changed.is_ok();
                    let nearer = period.borrow_and_update().deadline();
                    if nearer < at {
                        (at, again, pauses) = (nearer, None, backoff.build());
                        calls.push(self.stop_call(container, at));
                    }
                }
                () = sleep_until(again.unwrap_or(at)), if again.is_some() => {
                    again = None;
                    calls.push(self.stop_call(container, at));
                }
            }
        }
    }

    /// Reports a failure while the attempt continues, possibly until the end of the original grace period.
    fn report_meanwhile(&self, failure: &Failure) {
        self.context.events.count(Counted::Failed(failure));
        self.recorder.add_failure(Obstacle::from(failure));
        let (events, message) = (&self.context.events, format!("{NOT_KILLED}: {failure}"));
        events.event(self.view, None, Reason::FailedKillPod, &message);
    }

    /// Returns the deadline with the result.
    async fn stop_call(&self, container: &Container, deadline: Instant) -> (Instant, Result<(), GrpcError>) {
        let mut span = self.recorder.span(Step::Term, &container.name);
        // The shortest timeout still ends at the deadline.
        let no_later_than = deadline.checked_sub(MIN_STOP).unwrap_or(deadline);
        let slot = self.context.limits.containers.acquire_by(no_later_than).await;
        // It may have become earlier meanwhile.
        let deadline = deadline.min(self.deadline());
        let left = stop_timeout(deadline.saturating_duration_since(Instant::now()));
        let kill_at = Instant::now() + left;
        let call = self.context.node.cri.stop_container(&container.id, left);
        let call = slot.run(trace_context::scope(span.context(), call));
        tokio::pin!(call);
        let result = tokio::select! {
            biased;
            result = &mut call => result,
            () = sleep_until(kill_at) => {
                span = span.then(Step::Kill, &container.name);
                let call_name = format!("StopContainer (timeout {left:?})");
                report_if_late(self.recorder, (Step::Kill, &container.name), &call_name, call).await
            }
        };
        span.end(&result);
        (deadline, result)
    }

    /// The host of an `httpGet` hook without `host`: the pod IP in the runtime, else in the status, else the node's IP for pods
    /// with host network. The first hook that needs it queries it for all.
    async fn address_for(&self, hook: &Hook, address: &Address) -> Option<String> {
        match hook {
            Hook::HttpGet(get) if get.host.is_none() && self.view.host_network => self.view.host_ip.clone(),
            Hook::HttpGet(get) if get.host.is_none() => address.get_or_init(|| self.pod_address()).await.clone(),
            Hook::HttpGet(_) | Hook::Exec(_) | Hook::Sleep(_) | Hook::Invalid => None,
        }
    }

    /// End of the grace period.
    fn deadline(&self) -> Instant {
        self.period.borrow().deadline()
    }

    /// What is left of the grace period now.
    pub fn time_left(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    async fn pod_address(&self) -> Option<String> {
        let mut ips = Vec::new();
        if let Some(sandbox) = self.observed.sandboxes.first() {
            // The hook's request needs time, too.
            let patience = LOOKUP.min(self.time_left() / 2);
            match timeout(patience, self.context.node.cri.pod_ips(&sandbox.id)).await {
                Ok(Ok(found)) => ips = found,
                Ok(Err(error)) => tracing::warn!(%error, "Pod IP cannot be read from the runtime"),
                Err(_) => tracing::warn!(?patience, "Runtime does not report the pod IP in time"),
            }
        }
        ips.into_iter().next().or_else(|| self.view.ips.first().cloned())
    }
}

/// Waits until the disk has `what` of the container's hook. The hook goes on even if the disk is full.
async fn record(container: &Container, what: &str, recorded: impl Future<Output = Result<(), JournalError>>) {
    checkpoint::before(JOURNAL, &(what, &container.name));
    let recorded = recorded.await;
    checkpoint::after(JOURNAL, &(what, &container.name));
    if let Err(error) = recorded {
        tracing::error!(container = container.name, what, %error, "preStop hook is not recorded: after a crash it would run again");
    }
}

/// The hook of the container. Hooks run only in running containers.
pub fn hook_of<'a>(container: &Container, spec: Option<&'a ContainerView>) -> Option<(&'a ContainerView, &'a Hook)> {
    let is_running = container.state == ContainerState::Running;
    spec.filter(|_| is_running)
        .and_then(|spec| Some((spec, spec.pre_stop.as_ref()?)))
}

/// The timeout of a StopContainer with this time left.
pub fn stop_timeout(left: Duration) -> Duration {
    left.clamp(MIN_STOP, MAX_STOP)
}
