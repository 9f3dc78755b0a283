//! Ending what runs of a pod: its containers, then its sandboxes.

use std::{convert::Infallible, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    busy,
    containers::Stopped,
    evidence,
    late::{LATE, shown_when_late},
    locate,
};
use crate::{
    model::{
        failure::{self, Failure},
        pod::PodView,
        trace::Step,
    },
    node::{cri::types::RuntimePod, effects, grpc::GrpcError},
    teardown::context::Context,
    trace_recorder::TraceRecorder,
};

/// However little is left: below this a container could not even answer its signal.
pub(super) const MIN_STOP: Duration = Duration::from_secs(2);
/// Until a container that had the shortest of all stops has its SIGKILL.
pub const AFTER_KILL: Duration = MIN_STOP.saturating_add(Duration::from_secs(1));

/// Everything that ending one pod needs.
pub struct Stop<'a> {
    /// Clients and journal.
    pub context: &'a Context,
    /// The pod.
    pub view: &'a PodView,
    /// What of it runs.
    pub observed: &'a RuntimePod,
    /// When the grace period is over; it may come nearer while this runs.
    pub deadline: watch::Receiver<Instant>,
    /// The pod's story.
    pub record: &'a TraceRecorder,
}

impl Stop<'_> {
    /// Ends all of it. Failures are collected; none keeps another container from its stop.
    pub async fn everything(&self) -> Vec<Failure> {
        let stopped = async {
            if self.observed.running().next().is_some() {
                // A checkpoint of the pod may have left it frozen: neither a hook nor a stop signal would come to it.
                self.thaw_now("Frozen processes are thawed, to take their stop signal")
                    .await;
            }
            let Stopped { mut failures, left_out } = self.containers().await;
            // The stop of a sandbox kills what is left in it at once: it waits until each container was told to stop,
            // and, where one could not be stopped, for the end of the grace period.
            if left_out {
                return failures;
            }
            failures.extend(self.still_running().await);
            if failures.is_empty() || *self.deadline.borrow() <= Instant::now() {
                failures.extend(self.sandboxes().await);
            }
            failures
        };
        tokio::select! {
            biased;
            failures = stopped => failures,
            never = self.thaw() => match never {},
        }
    }

    /// What runs although its stop was said to be done, or was started meanwhile. Whatever had to be stopped is looked
    /// after once more: the stop of a sandbox gives nobody any time.
    async fn still_running(&self) -> Vec<Failure> {
        let over = *self.deadline.borrow() <= Instant::now();
        if over || self.observed.running().next().is_none() || self.context.effects.is_dry_run() {
            return Vec::new();
        }
        match self.context.cri.pod_brief(self.view.pod.uid.as_str()).await {
            Ok(now) => evidence::still_running(&now, Step::Term).collect(),
            Err(error) => vec![Failure::new(Step::Term, "", error)],
        }
    }

    async fn sandboxes(&self) -> Vec<Failure> {
        let sandboxes = &self.observed.sandboxes;
        if sandboxes.is_empty() {
            return Vec::new();
        }
        let span = self.record.span(Step::Sandbox, "");
        let stops = sandboxes
            .iter()
            .map(|sandbox| self.context.cri.stop_sandbox(&sandbox.id));
        let stops = join_all(stops);
        let results = shown_when_late(self.record, (Step::Sandbox, ""), LATE, "StopPodSandbox", stops).await;
        let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        span.end(&failed.first().map_or(Ok(()), Err));
        let mut failures = Vec::new();
        for error in &failed {
            if !matches!(error, GrpcError::Blocked { .. }) {
                self.record.set_sandbox_error(error.to_string());
            }
            failures.push(busy::explained(&self.context.storage, Failure::new(Step::Sandbox, "", error)).await);
        }
        failures
    }

    /// Once the runtime has sent its SIGKILL: what is frozen takes none, and the end of it would be waited for in vain.
    async fn thaw(&self) -> Infallible {
        passed(self.deadline.clone()).await;
        sleep(AFTER_KILL).await;
        self.thaw_now("Frozen processes are thawed, to die of their SIGKILL")
            .await;
        std::future::pending().await
    }

    async fn thaw_now(&self, why: &str) {
        const FAILED: &str = "Frozen processes cannot be thawed";
        let found = match locate::find_cgroups(self.context, self.view).await {
            Ok(found) => found,
            Err(failures) => {
                tracing::warn!(cause = failure::first(&failures), "{FAILED}");
                return;
            }
        };
        for cgroup in found {
            let cgroups = self.context.cgroups.clone();
            let thaw = self
                .context
                .effects
                .run_blocking(move |effects| cgroups.thaw(&cgroup, effects));
            let thawed = thaw.await.map_err(|why| why.to_string());
            let thawed = thawed.and_then(|thawed| thawed.map_err(|fault| fault.to_string()));
            match thawed {
                Ok(effects::Outcome::Nothing) => {}
                Ok(outcome) => tracing::info!(?outcome, "{why}"),
                Err(cause) => tracing::warn!(cause, "{FAILED}"),
            }
        }
    }
}

/// Returns when the deadline is over, wherever it has moved in the meantime.
pub async fn passed(mut deadline: watch::Receiver<Instant>) {
    loop {
        let at = *deadline.borrow_and_update();
        tokio::select! {
            // It only ever comes nearer: one that is over stays over.
            biased;
            () = sleep_until(at) => return,
            changed = deadline.changed() => if changed.is_err() {
                sleep_until(at).await;
                return;
            },
        }
    }
}
