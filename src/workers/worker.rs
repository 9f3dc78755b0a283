//! The worker of one pod: looks, stops, reports, cleans, deletes. Every attempt starts from what is really there, so
//! that it does not matter how far an earlier one came.

use std::{convert::Infallible, ffi::OsStr, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures::future::join_all;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    context::Context,
    node::{
        cgroups::{self, PodCgroup, Qos},
        cri::types::{RuntimePod, Sandbox},
        effects,
        fault::StepError,
        pod_dir::PodDir,
    },
    pod::PodView,
    record::{Record, Stage, Step},
    report::{
        events::Reason,
        final_delete,
        sender::{self, Sent},
        status::Stage as StatusStage,
        told::Told,
    },
    teardown::{
        Failure, cleanup,
        containers::{MIN_STOP, Stop, passed},
        volumes,
    },
    workers::quiet::Urgent,
};

/// Pauses between attempts: 1 s, doubling to a minute, each with jitter so that a node's pods do not move in step.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// While the guard holds everything back, it is asked so often whether it still does.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Until a container that had the shortest of all stops has its SIGKILL.
const AFTER_KILL: Duration = MIN_STOP.saturating_add(Duration::from_secs(1));

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
        let backoff = ExponentialBuilder::new()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_jitter()
            .without_max_times();
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
        self.guard(view, *removed, &observed)?;
        self.stop(view, *removed, &observed).await?;
        let stopped = self.look(view).await?;
        self.context.quiet.moved();
        self.nothing_runs(&stopped)?;
        self.all_are_known(view, &stopped)?;
        nothing_is_prepared(view)?;

        // The terminal status of a pod with attached volumes starts the controller's clock for a forced detach.
        let (mut gone, mut shown) = (*removed, None);
        if !view.attachable_volumes && !self.pod_dir(view)?.may_hold_attached() {
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

    /// Runtime, cgroups and the kubelet's directory must tell of the same pod. If they do not, this is the wrong runtime,
    /// or one that has lost its memory, or these are the wrong cgroups or the wrong directory: nothing may be concluded
    /// from what is not there. A kubelet removes the directory of a pod only after its object is gone.
    fn guard(&self, view: &PodView, removed: bool, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        let lives = observed.running().next().is_some() || observed.sandboxes.iter().any(Sandbox::is_ready);
        if lives && self.pod_cgroups(view).next().transpose()?.is_none() {
            let why = format!(
                "held: the pod runs, but has no cgroup below {}/kubepods; are --cgroup-root and --cgroup-driver the kubelet's?",
                self.context.cgroup_root.trim_end_matches('/')
            );
            return Err(vec![Failure::new(Step::Cgroup, "", why)]);
        }
        if !removed && !observed.is_gone() {
            let dir = self.pod_dir(view)?;
            let there = dir
                .open()
                .map_err(|fault| vec![Failure::new(Step::Volumes, "", fault)])?;
            if there.is_none() {
                let why = format!(
                    "held: the runtime has the pod, but there is no {}; is --kubelet-root the kubelet's --root-dir?",
                    dir.path().display()
                );
                return Err(vec![Failure::new(Step::Volumes, "", why)]);
            }
        }
        self.all_are_known(view, observed)
    }

    /// Again after the stop: a runtime that has lost its memory meanwhile calls what it does not know stopped, too.
    fn all_are_known(&self, view: &PodView, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        for cgroup in self.pod_cgroups(view) {
            let cgroup = cgroup?;
            let name = cgroup.path().display().to_string();
            let known = |child: &OsStr| is_known(observed, &child.to_string_lossy());
            let processes = self.context.cgroups.processes_but(&cgroup, known);
            let processes = processes.map_err(|error| vec![Failure::new(Step::Cgroup, &name, error)])?;
            if let Some(first) = processes.first() {
                let why = format!(
                    "held: it holds {} processes (first pid {first}) of which the runtime knows no container; \
                     is --cri-endpoint the runtime of this node's pods? If it is, end the processes by hand",
                    processes.len()
                );
                return Err(vec![Failure::new(Step::Cgroup, &name, why)]);
            }
        }
        Ok(())
    }

    /// Containers, then sandboxes. The stop of a sandbox kills what is left in it at once: where a container could not be
    /// stopped, it waits for the end of the grace period. The status as it is goes out meanwhile.
    async fn stop(&self, view: &PodView, removed: bool, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        let stop = Stop {
            context: &self.context,
            view,
            observed,
            deadline: self.deadline.clone(),
            record: &self.record,
        };
        let kill = async {
            let mut failures = stop.all().await;
            let in_time = *self.deadline.borrow() > Instant::now();
            if !observed.sandboxes.is_empty() && (failures.is_empty() || !in_time) {
                let span = self.record.span(Step::Sandbox, "");
                let stops = observed
                    .sandboxes
                    .iter()
                    .map(|sandbox| self.context.cri.stop_sandbox(&sandbox.id));
                let results = join_all(stops).await;
                let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
                match failed.first() {
                    Some(error) => span.failed(error),
                    None => span.done(),
                }
                failures.extend(failed.iter().map(|error| Failure::new(Step::Sandbox, "", error)));
            }
            failures
        };
        let kill = async {
            tokio::select! {
                failures = kill => failures,
                never = self.thaw(view) => match never {},
            }
        };
        if removed || observed.is_gone() {
            return collected(kill.await);
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
            failures = kill => collected(failures),
            () = as_it_is => unreachable!("pending never ends"),
        }
    }

    /// Once the runtime has sent its SIGKILL: what is frozen takes none, and the end of it would be waited for in vain.
    async fn thaw(&self, view: &PodView) -> Infallible {
        passed(self.deadline.clone()).await;
        sleep(AFTER_KILL).await;
        for cgroup in self.pod_cgroups(view) {
            let thawed = cgroup.and_then(|cgroup| {
                let thawed = self.context.cgroups.thaw(&cgroup, &self.context.effects);
                thawed.map_err(|error| vec![Failure::new(Step::Cgroup, "", error)])
            });
            match thawed {
                Ok(effects::Outcome::Nothing) => {}
                Ok(outcome) => tracing::info!(?outcome, "Frozen processes are thawed, to die of their SIGKILL"),
                Err(failures) => tracing::warn!(cause = first(&failures), "Frozen processes cannot be thawed"),
            }
        }
        std::future::pending().await
    }

    fn nothing_runs(&self, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        if self.context.effects.dry_run() {
            return Ok(());
        }
        let running = observed.running().map(|container| {
            Failure::new(
                Step::Kill,
                &container.name,
                format_args!("still {:?} after its stop", container.state),
            )
        });
        let ready = observed.sandboxes.iter().filter(|sandbox| sandbox.is_ready());
        let ready = ready.map(|sandbox| Failure::new(Step::Sandbox, &sandbox.id, "still ready after its stop"));
        collected(running.chain(ready).collect())
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
        match sender::send(&self.context, view, observed, stage, before, &self.record).await {
            Ok(Sent::Shown(status)) => Ok(Some(status)),
            Ok(Sent::Gone) => Ok(None),
            Err(failure) => Err(vec![failure]),
        }
    }

    /// Volumes first: what a memory volume holds is charged to the cgroup.
    async fn clean_node(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let dir = self.pod_dir(view)?;
        let span = self.record.span(Step::Volumes, "");
        let result = volumes::tear_down_volumes(&dir, &self.context.mounts, &self.context.effects).await;
        let result = result.map(drop).map_err(faults(Step::Volumes));
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result?;
        let span = self.record.span(Step::Cgroup, "");
        let mut failures = Vec::new();
        for cgroup in self.pod_cgroups(view) {
            let result = self.context.cgroups.destroy(&cgroup?, &self.context.effects).await;
            failures.extend(result.err().map(faults(Step::Cgroup)).into_iter().flatten());
        }
        let result = collected(failures);
        span.end(&result.as_ref().map_err(|failures| first(failures)));
        result
    }

    /// The pod's cgroups that are there, below whichever QoS parent: the class in the API is what somebody wrote, and a
    /// look costs little.
    fn pod_cgroups(&self, view: &PodView) -> impl Iterator<Item = Result<PodCgroup, Vec<Failure>>> {
        let uid = view.pod.uid.clone();
        [Qos::Burstable, Qos::Guaranteed, Qos::BestEffort]
            .into_iter()
            .map(move |qos| {
                cgroups::pod_cgroup_name(&self.context.cgroup_root, qos, uid.as_str())
                    .map_err(|error| vec![Failure::new(Step::Cgroup, "", error)])
            })
            .filter(|cgroup| cgroup.as_ref().map_or(true, |it| self.context.cgroups.exists(it)))
    }

    fn pod_dir(&self, view: &PodView) -> Result<PodDir, Vec<Failure>> {
        PodDir::new(&self.context.kubelet_root, view.pod.uid.as_str())
            .map_err(|error| vec![Failure::new(Step::Volumes, view.pod.uid.as_str(), error)])
    }

    async fn final_delete(&self, view: &PodView, shown: &PodStatus) -> Result<(), Vec<Failure>> {
        let span = self.record.span(Step::Delete, "");
        let result = final_delete::send(&self.context, view, shown).await;
        span.end(&result);
        result.map_err(|failure| vec![failure])
    }

    /// When nobody waits any more: containers, sandboxes, logs, directory.
    async fn clean_up(&self, view: &PodView) -> Result<(), Vec<Failure>> {
        let _place = self.context.quiet.place().await;
        let dir = self.pod_dir(view)?;
        let span = self.record.span(Step::Cleanup, "");
        let result = cleanup::remove(&self.context, view, &dir).await;
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

/// A terminal phase lets the claims be given to others, so it has to wait until the devices are released.
fn nothing_is_prepared(view: &PodView) -> Result<(), Vec<Failure>> {
    if view.dynamic_resources {
        let why = "the pod has dynamic resources (DRA), which this version cannot release; they and the pod wait for a kubelet";
        return Err(vec![Failure::new(Step::Sandbox, "", why)]);
    }
    Ok(())
}

/// Whether the processes in this cgroup below the pod's, or with an empty name in the pod's own, are the pod's to end.
/// Runtimes name a cgroup by the id of what is in it. Who is in the pod's own was moved there by somebody: a runtime
/// that remembers containers of the pod is the right one to end the pod all the same.
fn is_known(observed: &RuntimePod, child: &str) -> bool {
    if child.is_empty() {
        return !observed.containers.is_empty();
    }
    let containers = observed.containers.iter().map(|container| &container.id);
    let mut ids = containers.chain(observed.sandboxes.iter().map(|sandbox| &sandbox.id));
    ids.any(|id| !id.is_empty() && child.contains(id.as_str()))
}

fn collected(failures: Vec<Failure>) -> Result<(), Vec<Failure>> {
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

fn faults(step: Step) -> impl Fn(Vec<StepError>) -> Vec<Failure> {
    move |errors| {
        errors
            .iter()
            .map(|error| Failure::new(step, "", &error.fault))
            .collect()
    }
}

fn first(failures: &[Failure]) -> String {
    failures.first().map(ToString::to_string).unwrap_or_default()
}
