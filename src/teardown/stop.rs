//! Ending what runs of a pod: its containers, then its sandboxes.

use std::{convert::Infallible, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{Failure, containers::Stopped, evidence, places};
use crate::{
    context::Context,
    node::{cri::types::RuntimePod, effects},
    pod::PodView,
    record::{Record, Step},
};

/// However little is left: below this a container could not even answer its signal.
pub(super) const MIN_STOP: Duration = Duration::from_secs(2);
/// Until a container that had the shortest of all stops has its SIGKILL.
const AFTER_KILL: Duration = MIN_STOP.saturating_add(Duration::from_secs(1));

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
    pub record: &'a Record,
}

impl Stop<'_> {
    /// Ends all of it. Failures are collected; none keeps another container from its stop.
    pub async fn everything(&self) -> Vec<Failure> {
        let stopped = async {
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
        if over || self.observed.running().next().is_none() || self.context.effects.dry_run() {
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
        let results = join_all(stops).await;
        let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        span.end(&failed.first().map_or(Ok(()), Err));
        failed
            .iter()
            .map(|error| Failure::new(Step::Sandbox, "", error))
            .collect()
    }

    /// Once the runtime has sent its SIGKILL: what is frozen takes none, and the end of it would be waited for in vain.
    async fn thaw(&self) -> Infallible {
        passed(self.deadline.clone()).await;
        sleep(AFTER_KILL).await;
        for cgroup in places::cgroups(self.context, self.view) {
            let thawed = cgroup.and_then(|cgroup| {
                let thawed = self.context.cgroups.thaw(&cgroup, &self.context.effects);
                thawed.map_err(|error| vec![Failure::new(Step::Cgroup, "", error)])
            });
            match thawed {
                Ok(effects::Outcome::Nothing) => {}
                Ok(outcome) => tracing::info!(?outcome, "Frozen processes are thawed, to die of their SIGKILL"),
                Err(failures) => tracing::warn!(cause = super::first(&failures), "Frozen processes cannot be thawed"),
            }
        }
        std::future::pending().await
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
