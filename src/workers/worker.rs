//! The worker of one pod: looks, stops, reports, cleans, deletes. Every attempt starts from what is really there, so
//! that it does not matter how far an earlier one came.

use std::{sync::Arc, time::Duration};

use backon::BackoffBuilder as _;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    clock::pauses,
    context::Context,
    events::{Reason, told::Told},
    node::{cri::types::RuntimePod, fault::Fault},
    pod::PodView,
    quiet::Urgent,
    record::{Record, Stage, Step},
    report::{
        final_delete,
        sender::{self, Sent},
        status::Stage as StatusStage,
    },
    teardown::{Failure, cleanup, collected, evidence, first, places, stop::Stop, volumes},
};

/// Pauses between attempts: 1 s, doubling to a minute, each with jitter so that a node's pods do not move in step.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// While the guard holds everything back, it is asked so often whether it still does.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A clean-up that takes longer keeps its place no more.
const LONG: Duration = Duration::from_secs(5);

/// What a worker is told about its pod; a newer one replaces an older one that it has not looked at.
#[derive(Debug, Clone)]
pub struct PodUpdate {
    /// The pod as it was last seen.
    pub view: Arc<PodView>,
    /// The API object is proven to be gone.
    pub removed: bool,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing of the pod is left here.
    Finished,
    /// Nothing of it runs, but it is not deleted: containers and logs stay to be looked at.
    Kept,
}

/// One pod's worker.
pub struct Worker {
    /// What it works with.
    pub context: Arc<Context>,
    /// News about the pod.
    pub updates: watch::Receiver<PodUpdate>,
    /// When the grace period is over.
    pub deadline: watch::Receiver<Instant>,
    /// The pod's story.
    pub record: Arc<Record>,
    /// What its events have told.
    pub told: Told,
}

// === impl Worker ===

impl Worker {
    /// Works until the pod is gone or kept.
    pub async fn run(mut self) -> Outcome {
        let mut urgent = Some(self.context.quiet.urgent());
        let backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE);
        let mut pauses = backoff.build();
        loop {
            if self.context.guard.why_held().is_some() {
                urgent = None;
                if !self.let_go().await {
                    return Outcome::Kept;
                }
            }
            let update = self.updates.borrow_and_update().clone();
            self.record.attempt();
            let attempt = self.attempt(&update, &mut urgent).await;
            if let Err(failures) = &attempt {
                self.report(&update.view, failures);
            }
            if self.context.effects.dry_run() {
                tracing::info!("Dry run: one pass is all");
                return Outcome::Finished;
            }
            let failures = match attempt {
                Ok(outcome) => {
                    self.record.set_stage(match outcome {
                        Outcome::Finished => Stage::Finished,
                        Outcome::Kept => Stage::Terminated,
                    });
                    return outcome;
                }
                Err(failures) => failures,
            };
            // Nobody is helped by a pod that waits: the clean-up of others goes on in the meantime.
            urgent = None;
            let asked = failures.iter().filter_map(|failure| failure.retry_after).max();
            let pause = pauses.next().unwrap_or(LONGEST_PAUSE).max(asked.unwrap_or_default());
            let context = Arc::clone(&self.context);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.matters(&update) => pauses = backoff.build(),
                () = context.stopping.cancelled() => return Outcome::Kept,
            }
        }
    }

    /// Waits until something may be touched: what is held is not tried, so that nobody is told of failures that were
    /// none. `false` if the agent stops.
    async fn let_go(&self) -> bool {
        while let Some(why) = self.context.guard.why_held() {
            self.record.set_failures(vec![format!("held: {why}")]);
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                () = self.context.stopping.cancelled() => return false,
            }
        }
        true
    }

    /// Returns when there is news worth another attempt at once: the deletion, or the object's end. Most news is the echo
    /// of what this worker has written itself.
    async fn matters(&mut self, update: &PodUpdate) {
        let news = |newer: &PodUpdate| newer.removed != update.removed || newer.view.deletion != update.view.deletion;
        if self.updates.wait_for(news).await.is_err() {
            // There will be no more news.
            std::future::pending::<()>().await;
        }
    }

    async fn attempt(&self, update: &PodUpdate, urgent: &mut Option<Urgent>) -> Result<Outcome, Vec<Failure>> {
        let PodUpdate { view, removed } = update;
        let (observed, ()) = tokio::join!(self.look(view), self.remembered());
        let observed = observed?;
        evidence::all_agree(&self.context, view, *removed, &observed)?;
        self.stop(view, *removed, &observed).await?;
        let stopped = self.look(view).await?;
        self.context.quiet.moved();
        evidence::nothing_runs(&self.context, view, &stopped)?;
        evidence::nothing_is_prepared(view)?;

        // The terminal status of a pod with attached volumes starts the controller's clock for a forced detach.
        let (mut gone, mut shown) = (*removed, None);
        if !view.attachable_volumes && !places::dir(&self.context, view)?.may_hold_attached() {
            shown = self.status(view, gone, &stopped, StatusStage::Stopped, None).await?;
            gone = shown.is_none();
        }
        self.record.set_stage(Stage::Terminated);
        self.clean_node(view).await?;
        shown = self
            .status(view, gone, &stopped, StatusStage::Terminated, shown.as_deref())
            .await?;
        match &shown {
            // The object is gone: only the node is left to clean.
            None => {}
            Some(_) if view.deletion.is_none() => return Ok(Outcome::Kept),
            Some(shown) => self.final_delete(view, shown).await?,
        }
        self.record.set_stage(Stage::Deleted);
        *urgent = None;
        self.clean_up(view).await?;
        Ok(Outcome::Finished)
    }

    async fn look(&self, view: &PodView) -> Result<RuntimePod, Vec<Failure>> {
        let observed = self.context.cri.pod(view.pod.uid.as_str()).await;
        observed.map_err(|error| vec![Failure::new(Step::Term, "", error)])
    }

    /// When the grace period began is on the disk before anything is told to stop, so that it cannot begin again after a
    /// crash. A disk that takes nothing keeps no pod from ending.
    async fn remembered(&self) {
        if let Err(error) = self.context.journal.durable().await {
            tracing::error!(%error, "Cannot remember when the grace period began: after a crash it would begin again");
        }
    }

    /// The status as it is goes out meanwhile.
    async fn stop(&self, view: &PodView, removed: bool, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        let stop = Stop {
            context: &self.context,
            view,
            observed,
            deadline: self.deadline.clone(),
            record: &self.record,
        };
        if removed || observed.is_gone() {
            return collected(stop.everything().await);
        }
        // Not waited for: what it says is older than what the next status will say, and the API server refuses it
        // once anything newer is there.
        let as_it_is = async {
            if let Err(failure) = sender::as_it_is(&self.context, view, observed).await {
                tracing::debug!(%failure, "Status before the stop is not sent");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            failures = stop.everything() => collected(failures),
            () = as_it_is => unreachable!("pending never ends"),
        }
    }

    /// The status that the API shows now; `None` if the object is gone.
    async fn status(
        &self,
        view: &PodView,
        removed: bool,
        observed: &RuntimePod,
        stage: StatusStage,
        before: Option<&PodStatus>,
    ) -> Result<Option<Box<PodStatus>>, Vec<Failure>> {
        if removed {
            return Ok(None);
        }
        // Boxed: a worker is small while it waits for containers, and that is most of the time.
        let send = sender::send(&self.context, view, observed, stage, before, &self.record);
        match Box::pin(send).await {
            Ok(Sent::Shown(status)) => Ok(Some(status)),
            Ok(Sent::Gone) => Ok(None),
            Err(failure) => Err(vec![failure]),
        }
    }

    /// Volumes first: what a memory volume holds is charged to the cgroup.
    async fn clean_node(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let dir = places::dir(&self.context, view)?;
        let span = self.record.span(Step::Volumes, "");
        let result = volumes::tear_down_volumes(&dir, &self.context.mounts, &self.context.effects).await;
        let result = result.map(drop).map_err(faults(Step::Volumes));
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result?;
        let span = self.record.span(Step::Cgroup, "");
        let mut failures = Vec::new();
        for cgroup in places::cgroups(&self.context, view) {
            let result = self.context.cgroups.destroy(&cgroup?, &self.context.effects).await;
            failures.extend(result.err().map(faults(Step::Cgroup)).into_iter().flatten());
        }
        let result = collected(failures);
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result
    }

    async fn final_delete(&self, view: &PodView, shown: &PodStatus) -> Result<(), Vec<Failure>> {
        let span = self.record.span(Step::Delete, "");
        let result = Box::pin(final_delete::send(&self.context, view, shown)).await;
        span.end(&result);
        result.map_err(|failure| vec![failure])
    }

    /// When nobody waits any more: containers, sandboxes, logs, directory.
    async fn clean_up(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let place = self.context.quiet.place().await;
        let dir = places::dir(&self.context, view)?;
        let span = self.record.span(Step::Cleanup, "");
        let mut removed = Box::pin(cleanup::remove(&self.context, view, &dir));
        let result = match timeout(LONG, &mut removed).await {
            Ok(result) => result,
            Err(_) => {
                // It hangs somewhere, and others can be cleaned up in its place.
                drop(place);
                removed.await
            }
        };
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result
    }

    fn report(&mut self, view: &PodView, failures: &[Failure]) {
        self.context.counters.attempt_failed();
        for failure in failures {
            tracing::warn!(step = %failure.step, what = (!failure.what.is_empty()).then_some(failure.what.as_str()), cause = failure.cause, "Teardown step failed and will be repeated");
        }
        let of = |steps: &[Step]| {
            let failures = failures.iter().filter(|failure| steps.contains(&failure.step));
            failures.map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let kill = of(&[Step::Term, Step::Kill, Step::Sandbox, Step::Cgroup]);
        self.tell(view, Reason::FailedKillPod, "error killing pod", &kill);
        self.tell(
            view,
            Reason::FailedUnMount,
            "error tearing down volumes",
            &of(&[Step::Volumes]),
        );
        self.record
            .set_failures(failures.iter().map(ToString::to_string).collect());
    }

    fn tell(&mut self, view: &PodView, reason: Reason, what: &str, failures: &str) {
        let message = format!("{what}: {failures}");
        if !failures.is_empty() && self.told.is_news(reason, &message, Instant::now()) {
            self.context.events.pod(view, reason, &message);
        }
    }
}

fn faults(step: Step) -> impl Fn(Vec<Fault>) -> Vec<Failure> {
    move |faults| faults.iter().map(|fault| Failure::new(step, "", fault)).collect()
}
