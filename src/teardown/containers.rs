//! Stopping containers: hooks at once, then the stop signals in their order, all inside the one deadline.

use std::{convert::Infallible, time::Duration};

use backon::BackoffBuilder as _;
use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::{
    sync::{OnceCell, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    NOT_KILLED, busy,
    hooks::{self, HookError, HookPlace},
    late::{LATE, shown_when_late},
    stop::{MIN_STOP, Stop, passed},
};
use crate::{
    clock::pauses,
    model::{
        event::Reason,
        failure::Failure,
        pod::{ContainerView, Hook, Role},
        trace::{Blocked, Step},
    },
    node::{
        checkpoint::{self, JOURNAL},
        cri::types::{Container, ContainerState},
        effects::{Effect, EffectsBlocked},
        grpc::GrpcError,
    },
    teardown::{boundary::Counted, context::Context, journal::PodJournalExt as _},
};

/// Longest stop that is asked for; beyond it clocks and runtimes overflow.
const MAX_STOP: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Pauses between the calls that are to hasten one with more time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often the containers are listed while stops have no answer: before the deadline, in the first attempt.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// The same in later attempts, which repeat stops.
const LIST_EVERY_IF_REPEATED: Duration = Duration::from_secs(2);
/// First and longest pause between these lists after the deadline.
const FIRST_LATE_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_LATE_PAUSE: Duration = Duration::from_secs(5);

/// Longest wait for the address that the runtime knows; the status has one, too.
const LOOKUP: Duration = Duration::from_secs(5);

/// The effect that a hook is.
const HOOK: &str = "run the preStop hook of";

/// The pod's address, once a hook has needed it.
type Address = OnceCell<Option<String>>;

/// One container to stop, and the order it stands in.
struct Stoppable<'a> {
    container: &'a Container,
    spec: Option<&'a ContainerView>,
    /// Place in the spec's list; what it has not in its spec comes with the regular ones.
    place: usize,
    came: watch::Sender<Came>,
    /// The runtime shows that it has exited.
    has_exited: watch::Sender<bool>,
}

/// What came of a stop in this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// Not known yet.
    Open,
    /// It has ended.
    Ended,
    /// It may run on.
    Failed,
    /// It has not been told to stop.
    LeftOut,
}

/// What came of all of them.
#[derive(Default)]
pub(super) struct Stopped {
    pub failures: Vec<Failure>,
    /// Some were left to the next attempt. Then there are failures, too.
    pub left_out: bool,
}

impl Stop<'_> {
    /// Stops every container that may run.
    pub(super) async fn containers(&self) -> Stopped {
        let stoppables: Vec<_> = self
            .observed
            .running()
            .map(|container| self.stoppable(container))
            .collect();
        let address = Address::new();
        let stops = stoppables
            .iter()
            .map(|stoppable| self.one(stoppable, &stoppables, &address));
        let results = tokio::select! {
            biased;
            results = join_all(stops) => results,
            never = self.detect_exits(&stoppables) => match never {},
        };
        Stopped {
            failures: results.into_iter().filter_map(Result::err).collect(),
            left_out: stoppables.iter().any(|it| *it.came.borrow() == Came::LeftOut),
        }
    }

    fn stoppable<'a>(&'a self, container: &'a Container) -> Stoppable<'a> {
        let place = self
            .view
            .containers
            .iter()
            .position(|spec| *spec.name == container.name);
        Stoppable {
            container,
            spec: place.and_then(|place| self.view.containers.get(place)),
            place: place.unwrap_or(usize::MAX),
            came: watch::Sender::new(Came::Open),
            has_exited: watch::Sender::new(false),
        }
    }

    /// Marks the containers that the runtime shows to have exited. In CRI-O a stop may never be answered if the caller of an
    /// earlier stop has died (CRI-O issues 8748 and 9754). That caller may be this agent, or the kubelet before it.
    /// Before the deadline, a container that is not listed may still run: the stop of its sandbox would kill it early.
    async fn detect_exits(&self, stoppables: &[Stoppable<'_>]) -> Infallible {
        let every = if self.record.is_first_attempt() {
            LIST_EVERY
        } else {
            LIST_EVERY_IF_REPEATED
        };
        let mut pauses = pauses(FIRST_LATE_PAUSE, LONGEST_LATE_PAUSE).build();
        loop {
            let left = self.deadline.borrow().saturating_duration_since(Instant::now());
            let pause = if left.is_zero() {
                pauses.next().unwrap_or(LONGEST_LATE_PAUSE)
            } else {
                every.min(left + FIRST_LATE_PAUSE)
            };
            sleep(pause).await;
            let look = timeout(LATE, self.context.cri.pod_brief(self.view.pod.uid.as_str()));
            let Ok(Ok(pod)) = look.await else {
                continue;
            };
            let is_over = *self.deadline.borrow() <= Instant::now();
            for stoppable in stoppables {
                let listed = pod.containers.iter().find(|it| it.id == stoppable.container.id);
                let has_exited = listed.map_or(is_over, |it| !it.state.may_run());
                stoppable.has_exited.send_replace(has_exited);
            }
        }
    }

    async fn one(&self, stoppable: &Stoppable<'_>, all: &[Stoppable<'_>], address: &Address) -> Result<(), Failure> {
        let Stoppable {
            container, spec, came, ..
        } = stoppable;
        let message = format!("Stopping container {}", container.name);
        self.context.events.event(
            self.view,
            spec.map(|spec| (spec.role, &*spec.name)),
            Reason::Killing,
            &message,
        );
        if let Some((spec, hook)) = spec.and_then(|spec| Some((spec, spec.pre_stop.as_ref()?))) {
            // A hook is for a container that is known to run.
            if container.state == ContainerState::Running
                && let Err(held) = self.hook(container, spec, hook, address).await
            {
                // The gate may open again before the stop, which must not come first.
                came.send_replace(Came::LeftOut);
                return Err(Failure::new(Step::Hook, &container.name, held));
            }
        }
        if !self.turn_comes(stoppable, all).await {
            came.send_replace(Came::LeftOut);
            return Ok(());
        }
        let result = self.stop(stoppable).await;
        came.send_replace(if result.is_ok() { Came::Ended } else { Came::Failed });
        result
    }

    /// An error means that the hook may not run now, and that nothing was recorded of it.
    async fn hook(
        &self,
        container: &Container,
        spec: &ContainerView,
        hook: &Hook,
        address: &Address,
    ) -> Result<(), EffectsBlocked> {
        let Context {
            journal,
            clock,
            events,
            effects,
            ..
        } = self.context;
        let uid = &self.view.pod.uid;
        let before = journal
            .pod(uid)
            .and_then(|entry| entry.hooks.get(&container.id).cloned());
        if before.is_some_and(|before| before.ended) {
            tracing::info!(
                container = container.name,
                "preStop hook has ended before; it is not run again"
            );
            return Ok(());
        }
        if !effects.allow(&Effect::new(HOOK, &container.name))? {
            return Ok(());
        }
        let span = self.record.span(Step::Hook, &container.name);
        checkpoint::before(JOURNAL, &("hook started", &container.name));
        let recorded = journal.hook_started(uid, &container.id, clock.now()).await;
        checkpoint::after(JOURNAL, &("hook started", &container.name));
        if let Err(error) = recorded {
            tracing::error!(container = container.name, %error, "preStop hook runs unrecorded: after a crash it would run again");
        }
        let deadline = *self.deadline.borrow();
        let run = async {
            let place = HookPlace {
                container_id: container.id.clone(),
                address: self.address_for(hook, address).await,
            };
            hooks::run(&self.context.cri, effects, spec, hook, &place, deadline).await
        };
        let result = tokio::select! {
            biased;
            () = std::future::ready(()), if deadline <= Instant::now() => Err(HookError::NoTime),
            result = run => result,
            () = passed(self.deadline.clone()) => Err(HookError::Overrun),
        };
        checkpoint::after(HOOK, &container.name);
        if let Err(HookError::Blocked(blocked) | HookError::Runtime(GrpcError::Blocked { blocked, .. })) = result {
            span.failed(&blocked);
            return Err(blocked);
        }
        // A hook that the runtime was not asked for, or was lost on while it ran, is one that was interrupted.
        let interrupted = matches!(result, Err(HookError::Runtime(GrpcError::Unreachable { .. })));
        if !interrupted {
            checkpoint::before(JOURNAL, &("hook ended", &container.name));
            let recorded = journal.hook_ended(uid, &container.id).await;
            checkpoint::after(JOURNAL, &("hook ended", &container.name));
            if let Err(error) = recorded {
                tracing::error!(container = container.name, %error, "End of the preStop hook is not recorded");
            }
        }
        if let Err(error) = &result {
            tracing::warn!(container = container.name, hook = hook.kind(), %error, "preStop hook failed; the stop goes on");
            events.count(Counted::HookFailed);
            events.event(
                self.view,
                Some((spec.role, &spec.name)),
                Reason::FailedPreStopHook,
                match error {
                    HookError::NoTime => "PreStopHook was left out: no time was left of the grace period",
                    // What it printed may hold secrets.
                    _ => "PreStopHook failed",
                },
            );
        }
        span.end(&result);
        Ok(())
    }

    /// Main containers go at once; a sidecar waits until they and the sidecars behind it in the spec have ended, but not
    /// beyond the deadline. `false` if one of them does not end in this attempt: the next one tries that one first, and
    /// what serves it goes on until then.
    async fn turn_comes(&self, stoppable: &Stoppable<'_>, all: &[Stoppable<'_>]) -> bool {
        if role(stoppable.spec) != Role::Sidecar {
            return true;
        }
        let before = all.iter().filter(|other| match role(other.spec) {
            Role::Regular | Role::Init => true,
            Role::Sidecar => other.place > stoppable.place,
            Role::Ephemeral => false,
        });
        let ends = join_all(before.map(|other| async {
            let mut came = other.came.subscribe();
            let came = came.wait_for(|came| *came != Came::Open).await;
            // The sender outlives this borrow: an error cannot come.
            came.is_ok_and(|came| *came == Came::Ended)
        }));
        tokio::select! {
            biased;
            () = passed(self.deadline.clone()) => true,
            ended = ends => ended.into_iter().all(|ended| ended),
        }
    }

    /// One StopContainer, and another with less time whenever the deadline comes nearer, until one of these goes through.
    /// The earlier call stays open: taking it back would take back its SIGKILL, too.
    /// An exit that the runtime shows counts as an answer.
    async fn stop(&self, stoppable: &Stoppable<'_>) -> Result<(), Failure> {
        let container = stoppable.container;
        let mut has_exited = stoppable.has_exited.subscribe();
        let mut deadline = self.deadline.clone();
        let mut at = *deadline.borrow_and_update();
        let mut calls = FuturesUnordered::new();
        calls.push(self.stop_call(container, at));
        let mut open = true;
        let backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE);
        let mut pauses = backoff.build();
        let mut again = None;
        loop {
            tokio::select! {
                // What has ended needs no other call.
                biased;
                // Never empty here: each error that leaves calls behind goes on waiting for them.
                Some((of, result)) = calls.next() => match result {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        let failure = Failure::new(Step::Term, &container.name, &error);
                        let failure = busy::explained(&self.context.storage, failure).await;
                        if calls.is_empty() {
                            return Err(failure);
                        }
                        tracing::warn!(container = container.name, %error, "StopContainer failed; another call is under way");
                        // All others leave more time than there is.
                        if of == at {
                            self.tell_meanwhile(&failure);
                            again = Some(Instant::now() + pauses.next().unwrap_or(LONGEST_PAUSE));
                        }
                    }
                },
                // The sender outlives this borrow: an error cannot come.
                () = async { drop(has_exited.wait_for(|has_exited| *has_exited).await) } => {
                    tracing::warn!(
                        container = container.name,
                        "StopContainer has no answer, and the runtime shows that the container has exited; the call is given up"
                    );
                    return Ok(());
                }
                // Grace was shortened; a closed channel only means that it will not be again.
                changed = deadline.changed(), if open => {
                    open = changed.is_ok();
                    let nearer = *deadline.borrow_and_update();
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

    /// What failed while the attempt goes on, perhaps for as long as the grace period was before it was shortened.
    fn tell_meanwhile(&self, failure: &Failure) {
        self.context.events.count(Counted::Failed(failure));
        self.record.add_failure(Blocked::from(failure));
        let message = format!("{NOT_KILLED}: {failure}");
        self.context
            .events
            .event(self.view, None, Reason::FailedKillPod, &message);
    }

    /// With the deadline that it is for.
    async fn stop_call(&self, container: &Container, deadline: Instant) -> (Instant, Result<(), GrpcError>) {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .clamp(MIN_STOP, MAX_STOP);
        let kill_at = Instant::now() + left;
        let mut span = self.record.span(Step::Term, &container.name);
        let call = self.context.cri.stop_container(&container.id, left);
        tokio::pin!(call);
        let result = tokio::select! {
            biased;
            result = &mut call => result,
            () = sleep_until(kill_at) => {
                span = span.then(Step::Kill, &container.name);
                let doing = format!("StopContainer, whose timeout of {left:?} is over");
                shown_when_late(self.record, (Step::Kill, &container.name), LATE, &doing, call).await
            }
        };
        span.end(&result);
        (deadline, result)
    }

    /// Where an `httpGet` hook without host goes: to the address that the runtime tells, else to that in the status, else,
    /// for pods on its network, to the node. Looked up by the first hook that needs it, for all of them.
    async fn address_for(&self, hook: &Hook, address: &Address) -> Option<String> {
        match hook {
            Hook::HttpGet(get) if get.host.is_none() && self.view.host_network => self.view.host_ip.clone(),
            Hook::HttpGet(get) if get.host.is_none() => address.get_or_init(|| self.pod_address()).await.clone(),
            Hook::HttpGet(_) | Hook::Exec(_) | Hook::Sleep(_) | Hook::Invalid => None,
        }
    }

    async fn pod_address(&self) -> Option<String> {
        let mut ips = Vec::new();
        if let Some(sandbox) = self.observed.sandboxes.first() {
            // The request needs time, too.
            let left = self.deadline.borrow().saturating_duration_since(Instant::now());
            let patience = LOOKUP.min(left / 2);
            match timeout(patience, self.context.cri.pod_ips(&sandbox.id)).await {
                Ok(Ok(found)) => ips = found,
                Ok(Err(error)) => tracing::warn!(%error, "Pod IP is not to be had from the runtime"),
                Err(_) => tracing::warn!(?patience, "Pod IP is not told by the runtime in time"),
            }
        }
        ips.into_iter().next().or_else(|| self.view.ips.first().cloned())
    }
}

fn role(spec: Option<&ContainerView>) -> Role {
    spec.map_or(Role::Regular, |spec| spec.role)
}
