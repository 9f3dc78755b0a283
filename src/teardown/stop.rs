//! Stops a pod's containers, then its sandboxes.

use std::{convert::Infallible, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    busy, evidence,
    late::{LATE, report_if_late},
    locate,
    stop_throttle::MAX_SANDBOX_WAIT,
};
use crate::{
    model::{failure::Failure, pod::PodView, trace::Step},
    node::{cri::types::RuntimePod, effects, grpc::GrpcError},
    teardown::context::Context,
    trace_context,
    trace_recorder::TraceRecorder,
};

/// Shortest timeout of a stop: with less a container could not react to its signal.
pub(super) const MIN_STOP: Duration = Duration::from_secs(2);
/// Time until a container that is stopped with the shortest timeout gets its SIGKILL.
pub const AFTER_KILL: Duration = MIN_STOP.saturating_add(Duration::from_secs(1));

/// The stop of one pod.
pub struct Stop<'a> {
    /// Clients and journal.
    pub context: &'a Context,
    /// The pod.
    pub view: &'a PodView,
    /// The pod in the runtime.
    pub observed: &'a RuntimePod,
    /// End of the grace period. It may become earlier while this runs.
    pub deadline: watch::Receiver<Instant>,
    /// The teardown trace.
    pub recorder: &'a TraceRecorder,
}

/// Results of all stops.
#[derive(Default)]
pub(super) struct Stopped {
    pub failures: Vec<Failure>,
    /// Some stops were left to the next attempt. `failures` has the reason.
    pub has_skipped: bool,
}

impl Stop<'_> {
    /// Stops everything. Returns all failures: none prevents the stop of another container.
    pub async fn stop_all(&self) -> Vec<Failure> {
        let stopped = async {
            if self.observed.possibly_running().next().is_some() {
                // A checkpoint may have left the pod frozen: it would get neither a hook nor a stop signal.
                self.thaw_now("Frozen processes thawed for their stop signal").await;
            }
            let Stopped {
                mut failures,
                has_skipped,
            } = self.containers().await;
            // The stop of a sandbox kills its containers at once. It waits until each container was stopped, and for the end of
            // the grace period if a stop failed.
            if has_skipped {
                return failures;
            }
            failures.extend(self.still_running().await);
            if failures.is_empty() || *self.deadline.borrow() <= Instant::now() {
                // The sandbox's stop is the SIGKILL of containers that could not be stopped.
                let max_wait = if failures.is_empty() {
                    MAX_SANDBOX_WAIT
                } else {
                    Duration::ZERO
                };
                failures.extend(self.sandboxes(max_wait).await);
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
        let over = *self.deadline.borrow() <= Instant::now();
        if over || self.observed.possibly_running().next().is_none() {
            return Vec::new();
        }
        match self.context.node.cri.pod_brief(self.view.pod.uid.as_str()).await {
            Ok(now) => evidence::still_running(&now, Step::Term).collect(),
            Err(error) => vec![Failure::new(Step::Term, "", error)],
        }
    }

    async fn sandboxes(&self, max_wait: Duration) -> Vec<Failure> {
        let sandboxes = &self.observed.sandboxes;
        if sandboxes.is_empty() {
            return Vec::new();
        }
        let span = self.recorder.span(Step::Sandbox, "");
        let slot = self.context.stop_throttle.acquire_for_sandbox(max_wait).await;
        let stops = sandboxes
            .iter()
            .map(|sandbox| self.context.node.cri.stop_sandbox(&sandbox.id));
        let stops = slot.run(trace_context::scope(span.context(), join_all(stops)));
        let results = report_if_late(self.recorder, (Step::Sandbox, ""), LATE, "StopPodSandbox", stops).await;
        let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        span.end(&failed.first().map_or(Ok(()), Err));
        let mut failures = Vec::new();
        for error in &failed {
            if !matches!(error, GrpcError::Blocked { .. }) {
                self.recorder.set_sandbox_error(error.to_string());
            }
            failures.push(busy::with_holders(&self.context.node.storage, Failure::new(Step::Sandbox, "", error)).await);
        }
        failures
    }

    /// Thaws the pod after the runtime has sent its SIGKILL: a frozen process does not exit.
    async fn thaw_after_kill(&self) -> Infallible {
        wait_for_deadline(self.deadline.clone()).await;
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

/// Returns when the deadline has passed, even if it changes meanwhile.
pub async fn wait_for_deadline(mut deadline: watch::Receiver<Instant>) {
    loop {
        let at = *deadline.borrow_and_update();
        tokio::select! {
            // It only becomes earlier: a passed deadline stays passed.
            biased;
            () = sleep_until(at) => return,
            changed = deadline.changed() => if changed.is_err() {
                sleep_until(at).await;
                return;
            },
        }
    }
}
