//! The worker of one pod: looks, stops, reports, cleans, deletes. Every attempt starts from what is really there, so
//! that it does not matter how far an earlier one came.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use backon::BackoffBuilder as _;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

mod cleaning;
mod driver_hold;
mod held;
mod mounts;
mod rest;
mod runtime_state;
mod status;

pub use self::runtime_state::RuntimeState;
use self::{mounts::PodMounts, rest::Wakes};
use super::{
    NOT_KILLED,
    boundary::{Attempt, Counted},
    context::Context,
    ends::Ends,
    evidence, final_delete,
    journal::PodJournalExt as _,
    late::{LATE, shown_when_late},
    period::Period,
    places,
    precedence::{First, Precedence},
    remembered,
    status::{Phase, Stage as StatusStage},
    stop::Stop,
    volumes,
};
use crate::{
    cleanup_throttle::StoppingPod,
    clock::pauses,
    model::{
        event::Reason,
        failure::{Failure, collected, first},
        pod::PodView,
        termination::{self, Eviction},
        trace::{Blocked, Stage, Step},
    },
    node::{
        checkpoint::{self, JOURNAL},
        cri::types::{Container, RuntimePod},
    },
    trace_recorder::TraceRecorder,
};

/// Pauses between attempts: 1 s, doubling to a minute, each with jitter so that a node's pods do not move in step.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A pod that is not gone so long after its grace period, and whose last attempt failed, is blocked.
const BLOCKED_AFTER: Duration = Duration::from_secs(30);
/// What a container's status tells before the stop is no reason to let the others wait for their stop.
const BEFORE_STOP: Duration = Duration::from_secs(2);
/// Longest wait for the status of a container that was stopped, which has its exit code.
const AFTER_STOP: Duration = Duration::from_secs(30);
/// How often the end of a container is read in vain before it counts as unknown.
const READS: u32 = 5;

/// KiB of large objects that workers hold together.
pub const LARGE_AT_ONCE: u32 = 32 << 10;

/// What a worker is told about its pod; a newer one replaces an older one that it has not looked at.
#[derive(Debug, Clone)]
pub struct PodUpdate {
    /// The pod as it was last seen.
    pub view: Arc<PodView>,
    /// The API object is proven to be gone.
    pub removed: bool,
    /// The end that somebody decided on.
    pub imposed: Option<Arc<Eviction>>,
    /// How often a user has approved a mismatch about it.
    pub releases: u32,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing of the pod is left here.
    Finished,
    /// Nothing of it runs, but it is not deleted: containers and logs stay to be looked at.
    Kept,
    /// The agent stops before the pod is finished. The next start goes on.
    Stopping,
    /// A kubelet has ended it, or the rest of it.
    EndedByKubelet,
    /// A user requested to stop it, and a kubelet came before it had terminated: it is that kubelet's.
    Cancelled,
}

/// How an attempt ended that has not finished the pod.
#[derive(Debug)]
enum Unfinished {
    /// It gave way before its next step, and nothing failed.
    Yielded(Yielded),
    /// Steps failed. They are tried again.
    Failed(Vec<Failure>),
}

/// What an attempt gave way to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Yielded {
    /// The agent stops.
    Stop,
    /// Nothing may begin: a kubelet starts or is there, or the agent is paused.
    Guard,
    /// A kubelet that came before the pod had terminated, which only a request asks for.
    Kubelet,
}

/// One pod's worker.
pub struct Worker {
    /// What it works with.
    pub context: Arc<Context>,
    /// News about the pod.
    pub updates: watch::Receiver<PodUpdate>,
    /// The grace period.
    pub period: Arc<Period>,
    /// The pod's story.
    pub record: Arc<TraceRecorder>,
    /// Whether others come first.
    pub precedence: Precedence,
    /// How often the end of a container was read in vain.
    pub reads: AtomicU32,
    /// Whether the runtime's word still counts.
    pub runtime_state: RuntimeState,
    /// Room for large objects, in KiB of [`LARGE_AT_ONCE`].
    pub large: Arc<Semaphore>,
}

// === impl Unfinished ===

impl From<Vec<Failure>> for Unfinished {
    fn from(failures: Vec<Failure>) -> Self {
        Self::Failed(failures)
    }
}

impl From<Yielded> for Unfinished {
    fn from(to: Yielded) -> Self {
        Self::Yielded(to)
    }
}

// === impl PodUpdate ===

impl PodUpdate {
    /// Whether the pod ends, whoever has asked this agent for what.
    pub fn ends_anyway(&self) -> bool {
        termination::cause(&self.view, self.removed, false).is_some()
    }
}

// === impl Worker ===

impl Worker {
    /// Works until the pod is gone or kept.
    pub async fn run(mut self) -> Outcome {
        let mut urgent = Some(self.context.cleanup_throttle.stopping_pod());
        let backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE);
        let mut pauses = backoff.build();
        let mut mounts: Option<PodMounts> = None;
        let mut first: Option<First> = None;
        let mut kept: Option<Box<dyn Attempt>> = None;
        loop {
            let gate = &self.context.gate;
            let kept_on = kept.take().filter(|_| gate.may_repeat());
            let goes_on = kept_on.filter(|kept| kept.begin_retry());
            let Some(under_way) = goes_on.or_else(|| gate.begin(self.record.pod())) else {
                urgent = None;
                if let Some(outcome) = self.let_go(&mut first).await {
                    return outcome;
                }
                if first.is_none() {
                    self.precedence.others().await;
                }
                continue;
            };
            if self.is_cancelled() {
                return Outcome::Cancelled;
            }
            let update = self.updates.borrow_and_update().clone();
            if update.ends_anyway() {
                self.context.journal.request_is_confirmed(&update.view.pod.uid);
            }
            self.record.attempt();
            let attempt = self.attempt(&update, &mut urgent, first.take()).await;
            // A hand-back waits for no pause, and tells of those that are not at a safe point.
            let is_midway = self.context.journal.is_midway(&update.view.pod.uid);
            kept = Some(under_way).filter(|_| is_midway).inspect(|kept| kept.set_failed());
            let is_dry_run = self.context.effects.is_dry_run();
            let failures = match attempt {
                Ok(_) if is_dry_run => Vec::new(),
                Ok(outcome) => {
                    self.is_unblocked();
                    self.record.set_stage(match outcome {
                        Outcome::Finished => Stage::Finished,
                        Outcome::Kept | Outcome::Stopping | Outcome::EndedByKubelet | Outcome::Cancelled => {
                            Stage::Terminated
                        }
                    });
                    return outcome;
                }
                Err(Unfinished::Failed(failures)) => {
                    self.report(&update.view, &failures);
                    failures
                }
                Err(Unfinished::Yielded(to)) => {
                    tracing::debug!(?to, "Attempt gives way");
                    self.is_unblocked();
                    Vec::new()
                }
            };
            if is_dry_run {
                tracing::info!("Dry run: one pass is all");
                return Outcome::Finished;
            }
            // Nobody is helped by a pod that waits: the clean-up of others goes on in the meantime.
            urgent = None;
            let asked = failures.iter().filter_map(|failure| failure.retry_after).max();
            let pause = pauses.next().unwrap_or(LONGEST_PAUSE).max(asked.unwrap_or_default());
            match self.rest(&update, &failures, &mut mounts, kept.as_deref(), pause).await {
                Wakes::Stopping => return Outcome::Stopping,
                Wakes::News => pauses = backoff.build(),
                Wakes::ForMore => {}
            }
        }
    }

    /// Looks at the node's files for this step, where it holds up nobody else if one of them hangs.
    async fn on_node<T: Send + 'static>(
        &self,
        view: &Arc<PodView>,
        step: Step,
        look: impl FnOnce(&Context, &PodView) -> Result<T, Vec<Failure>> + Send + 'static,
    ) -> Result<T, Vec<Failure>> {
        let (context, view) = (Arc::clone(&self.context), Arc::clone(view));
        let looked = self.context.reads.run_blocking(move || look(&context, &view)).await;
        looked.unwrap_or_else(|why| Err(vec![Failure::new(step, "", why)]))
    }

    async fn attempt(
        &self,
        update: &PodUpdate,
        urgent: &mut Option<StoppingPod>,
        first: Option<First>,
    ) -> Result<Outcome, Unfinished> {
        if update.view.abridged > 0 && !update.removed {
            let kib = update.view.abridged.min(LARGE_AT_ONCE);
            // Not waited for: the pod may be removed meanwhile, or a kubelet may come.
            let Ok(_room) = self.large.try_acquire_many(kib) else {
                let why = format!(
                    "its object is large ({} KiB), and other large pods that are terminating take all of the {} KiB for these",
                    update.view.abridged, LARGE_AT_ONCE
                );
                return Err(Unfinished::Failed(vec![Failure::new(self.first_step(), "", why)]));
            };
            let view = self.read(&update.view).await?;
            let whole = PodUpdate { view, ..update.clone() };
            return Box::pin(self.attempt_on(&whole, urgent, first)).await;
        }
        self.attempt_on(update, urgent, first).await
    }

    async fn attempt_on(
        &self,
        update: &PodUpdate,
        urgent: &mut Option<StoppingPod>,
        first: Option<First>,
    ) -> Result<Outcome, Unfinished> {
        let PodUpdate { view, removed, .. } = update;
        // On the disk with what is waited for below, and so before anything is told to stop.
        self.context.journal.tries(&view.pod.uid, self.context.clock.now());
        let (first_step, began) = (self.first_step(), self.context.clock.now().since_boot);
        let (observed, ()) = tokio::join!(self.look(view, first_step, BEFORE_STOP), self.remembered());
        let mut observed = observed?;
        self.runtime_state.saw(&observed, began);
        let is_wrong = self.kernel_still_counts(view, &observed).await;
        let mut overruled = is_wrong;
        if is_wrong {
            observed = observed.with_all_exited();
        }
        let observed = Arc::new(observed);
        let (shown, removed) = (Arc::clone(&observed), *removed);
        self.on_node(view, first_step, move |context, view| {
            evidence::all_agree(context, view, removed, first_step, &shown)
        })
        .await?;
        let stopped = if is_wrong {
            Arc::clone(&observed)
        } else if has_ended_by_itself(update, &observed) {
            if observed.has_unread_exit() {
                Arc::new(self.look(view, Step::Status, AFTER_STOP).await?)
            } else {
                Arc::clone(&observed)
            }
        } else {
            self.wait_for_dependents(view, &observed).await?;
            self.goes_on()?;
            self.begins(view, &observed);
            let stopped = tokio::select! {
                biased;
                stopped = self.stop(update, &observed) => stopped,
                () = self.until_kernel_counts(view) => Ok(()),
            };
            if let Err(failures) = stopped
                && !(observed.running().next().is_some() && self.kernel_counts(view).await)
            {
                let failures = self.unmount_without_network_teardown(update, &observed, failures).await;
                return Err(Unfinished::Failed(failures));
            }
            let stopped = self.look(view, Step::Sandbox, AFTER_STOP).await?;
            let runs = stopped.running().next().is_some();
            if !runs {
                self.record.set_runtime_state(None);
            }
            overruled = runs && self.kernel_counts(view).await;
            Arc::new(if overruled {
                stopped.with_all_exited()
            } else {
                stopped.with_exits_from(&observed)
            })
        };
        drop(first);
        // All containers are stopped. Those of a pod that is not deleted a kubelet would start again, unless the API shows that
        // it is over.
        self.goes_on()?;
        // A runtime may say so of one that runs on, which is found below.
        if stopped.running().next().is_none() {
            self.safe_point(self.ends_anyway())?;
        }
        self.context.cleanup_throttle.progressed();
        self.kill_released(view, &stopped).await?;
        let shown = Arc::clone(&stopped);
        self.on_node(view, Step::Cgroup, move |context, view| {
            evidence::nothing_runs(context, view, &shown)
        })
        .await?;
        self.release_devices(view, &observed).await?;
        if !removed {
            self.ends_are_read(view, &stopped)?;
            self.remember_ends(view, &observed, &stopped).await;
        }

        // The terminal status of a pod with attached volumes starts the controller's clock for a forced detach.
        let (mut gone, mut shown, mut failures) = (removed, None, Vec::new());
        if !self.may_hold_attached(view).await? {
            match self.status(view, gone, &stopped, StatusStage::Stopped, None).await {
                Ok(status) => (gone, shown) = (status.is_none(), status),
                Err(unsent) => failures = unsent,
            }
        }
        let is_over = self.ends_anyway() || gone || shown.as_deref().is_some_and(Phase::is_over);
        self.safe_point(is_over)?;
        if overruled {
            // The cgroup shows that the runtime is wrong. Once that is removed, only the journal does.
            let recorded = self.on_disk("ends", "that the kernel has overruled the runtime").await;
            recorded.map_err(|failure| vec![failure])?;
        }
        if failures.is_empty() {
            self.reached(view, Stage::Terminated);
        } else if let Err(unremembered) = self.ends_are_durable(view, &observed, &stopped).await {
            // What the API does not know goes from nowhere before the disk has it.
            failures.push(unremembered);
            return Err(Unfinished::Failed(failures));
        }
        // An API server that takes no status keeps no memory and no secrets here: only what follows rests on it.
        failures.extend(self.clean_node(view).await.err().into_iter().flatten());
        collected(failures)?;
        self.goes_on()?;
        self.may_be_left(is_over)?;
        shown = self
            .status(view, gone, &stopped, StatusStage::Terminated, shown.as_deref())
            .await?;
        match &shown {
            // The object is gone: only the node is left to clean.
            None => {}
            Some(_) if view.deletion.is_none() || !self.is_deleted() => {
                if !is_over {
                    self.context.journal.is_safe(&view.pod.uid);
                }
                return Ok(Outcome::Kept);
            }
            Some(shown) => self.final_delete(view, shown).await?,
        }
        self.reached(view, Stage::Deleted);
        *urgent = None;
        self.clean_up(view).await?;
        Ok(Outcome::Finished)
    }

    /// Nothing of the pod is to be done again by a kubelet, and none starts it again, if the API shows that it ends.
    fn safe_point(&self, ends: bool) -> Result<(), Yielded> {
        if ends {
            self.context.journal.is_safe(&self.record.pod().uid);
        }
        self.may_be_left(ends)
    }

    /// No call is under way: here the pod is left to a kubelet that is about to start, if it may be. It goes on with the next
    /// attempt.
    fn may_be_left(&self, may_be: bool) -> Result<(), Yielded> {
        if may_be && self.context.gate.why_no_new_work().is_some() {
            return Err(Yielded::Guard);
        }
        Ok(())
    }

    /// Whether the API shows a reason for the pod's end, as far as is known by now: a store that was restored may have taken that
    /// back since the attempt began.
    fn ends_anyway(&self) -> bool {
        self.updates.borrow().ends_anyway()
    }

    /// Whether it shows its deletion.
    fn is_deleted(&self) -> bool {
        let update = self.updates.borrow();
        update.removed || update.view.deletion.is_some()
    }

    fn is_cancelled(&self) -> bool {
        self.context.journal.is_cancelled(&self.record.pod().uid)
    }

    /// The step before may have lasted for all of a kubelet's life.
    fn goes_on(&self) -> Result<(), Yielded> {
        match self.is_cancelled() {
            true => Err(Yielded::Kubelet),
            false => Ok(()),
        }
    }

    /// Nothing keeps the pod from going on.
    fn is_unblocked(&self) {
        self.record.set_blocked(Vec::new());
        self.record.set_mismatch(None);
    }

    /// Asks the runtime for the pod, for this step.
    async fn look(&self, view: &PodView, step: Step, patience: Duration) -> Result<RuntimePod, Vec<Failure>> {
        let look = self.context.cri.pod(view.pod.uid.as_str(), patience);
        let observed = shown_when_late(&self.record, (step, ""), LATE, "what the runtime has of the pod", look).await;
        observed.map_err(|error| vec![Failure::new(step, "", error)])
    }

    /// The step that an attempt begins with: of a pod whose containers are stopped, nothing is stopped any more.
    fn first_step(&self) -> Step {
        match self.record.stage() {
            Stage::Terminating => Step::Term,
            Stage::Terminated => Step::Volumes,
            Stage::Deleted | Stage::Finished => Step::Cleanup,
        }
    }

    /// A failure as long as how a container ended may still be read. After some tries it is unknown.
    fn ends_are_read(&self, view: &PodView, stopped: &RuntimePod) -> Result<(), Vec<Failure>> {
        let latest = Arc::clone(&self.updates.borrow().view);
        let object = latest.object.as_ref().or(view.object.as_ref());
        let ends = self.context.journal.ends(&view.pod.uid);
        let Some(name) = remembered::unread(stopped, &ends, object.and_then(|object| object.pod.status.as_ref()))
        else {
            return Ok(());
        };
        let reads = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        if reads >= READS || self.context.effects.is_dry_run() {
            tracing::warn!(
                container = name,
                reads,
                "How a container ended cannot be read; its exit code is unknown"
            );
            return Ok(());
        }
        let why =
            format!("how it ended cannot be read from the runtime (try {reads} of {READS}); after that it is unknown");
        Err(vec![Failure::new(Step::Status, name, why)])
    }

    /// When the grace period began is on the disk before anything is told to stop, so that it cannot begin again after a
    /// crash. A disk that takes nothing keeps no pod from ending.
    async fn remembered(&self) {
        checkpoint::before(JOURNAL, &"begun");
        let recorded = self.context.journal.durable().await;
        checkpoint::after(JOURNAL, &"begun");
        if let Err(error) = recorded {
            tracing::error!(%error, "Cannot remember when the grace period began: after a crash it would begin again");
        }
    }

    /// From here on the grace period runs. What the journal has counts from a moment before, which is no later: nobody waits
    /// for the disk once more.
    fn begins(&self, view: &PodView, observed: &RuntimePod) {
        let counts_from = self.period.begins().then(|| {
            self.record.set_grace(self.period.grace(), self.period.end());
            self.context.clock.now()
        });
        // With none that runs there is nothing that a kubelet would do again.
        let is_midway = observed.running().next().is_some() || !self.ends_anyway();
        self.context.journal.stops(&view.pod.uid, is_midway, counts_from);
    }

    /// However the runtime forgets them, and whoever removes them, the status can still be sent as it was. Not waited for:
    /// most often the API has the status at once.
    async fn remember_ends(&self, view: &PodView, observed: &RuntimePod, stopped: &RuntimePod) {
        let ended: Vec<_> = self.unremembered(view, observed, stopped).cloned().collect();
        if ended.is_empty() {
            return;
        }
        let read = move || ended.iter().map(remembered::end).collect::<Ends>();
        match self.context.reads.run_blocking(read).await {
            Ok(ends) => self.context.journal.ended(&view.pod.uid, ends),
            Err(error) => {
                tracing::error!(%error, "How containers ended cannot be remembered: if the runtime forgets them, their status is unknown");
            }
        }
    }

    /// Containers whose ends the journal should know, and does not.
    fn unremembered<'a>(
        &self,
        view: &PodView,
        observed: &'a RuntimePod,
        stopped: &'a RuntimePod,
    ) -> impl Iterator<Item = &'a Container> {
        let known = self.context.journal.ends(&view.pod.uid);
        remembered::worth_keeping(observed, stopped).filter(move |container| !known.contains_key(&container.id))
    }

    /// Whether how the containers ended, with their last words, would be known after a crash.
    async fn ends_are_durable(
        &self,
        view: &PodView,
        observed: &RuntimePod,
        stopped: &RuntimePod,
    ) -> Result<(), Failure> {
        const WHAT: &str = "how the containers ended";
        if let Some(container) = self.unremembered(view, observed, stopped).next() {
            return Err(unrecorded(WHAT, &format_args!("{} could not be read", container.name)));
        }
        self.on_disk("ends", WHAT).await
    }

    /// Waits until the disk has all that was recorded, `what` among it.
    async fn on_disk(&self, name: &str, what: &str) -> Result<(), Failure> {
        checkpoint::before(JOURNAL, &name);
        let recorded = self.context.journal.durable().await;
        checkpoint::after(JOURNAL, &name);
        recorded.map_err(|error| unrecorded(what, &error))
    }

    fn reached(&self, view: &PodView, stage: Stage) {
        self.record.set_stage(stage);
        self.context.journal.reached(&view.pod.uid, stage);
    }

    /// The status as it is goes out meanwhile.
    async fn stop(&self, update: &PodUpdate, observed: &RuntimePod) -> Result<(), Vec<Failure>> {
        let stop = Stop {
            context: &self.context,
            view: &update.view,
            observed,
            deadline: self.period.subscribe(),
            record: &self.record,
        };
        // With attached volumes the API keeps the statuses of when the containers ran, also on a later try.
        let has_ended = observed.running().next().is_none();
        if update.removed || observed.is_empty() || has_ended && self.may_hold_attached(&update.view).await? {
            return collected(stop.everything().await);
        }
        // Not waited for: what it says is older than what the next status will say, and the API server refuses it
        // once anything newer is there.
        let as_it_is = async {
            if let Err(failures) = self.as_it_is(&update.view, observed).await {
                tracing::debug!(failure = %first(&failures), "Status before the stop is not sent");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // Nothing that only tells comes before the stop.
            biased;
            failures = stop.everything() => collected(failures),
            () = as_it_is => unreachable!("pending never ends"),
        }
    }

    async fn may_hold_attached(&self, view: &Arc<PodView>) -> Result<bool, Vec<Failure>> {
        if view.attachable_volumes {
            return Ok(true);
        }
        self.on_node(view, Step::Status, |context, view| {
            let dir = places::dir(context, view)?;
            Ok(volumes::may_hold_attached(&dir, &context.storage.mounts))
        })
        .await
    }

    async fn final_delete(&self, view: &PodView, shown: &PodStatus) -> Result<(), Vec<Failure>> {
        let span = self.record.span(Step::Delete, "");
        let result = Box::pin(final_delete::send(&self.context, view, shown)).await;
        span.end(&result);
        let kept_by = result.map_err(|failure| vec![failure])?;
        // One that is kept is deleted again when its clean-up is tried again.
        if !self.record.has_finalizers() {
            self.context.events.count(Counted::PodDeleted);
        }
        self.record.set_finalizers(kept_by);
        Ok(())
    }

    fn report(&self, view: &PodView, failures: &[Failure]) {
        self.context.events.count(Counted::AttemptFailed(failures));
        for failure in failures {
            tracing::warn!(step = %failure.step, what = (!failure.what.is_empty()).then_some(failure.what.as_str()), cause = failure.cause, "Teardown step failed and will be repeated");
        }
        let of = |steps: &[Step]| {
            let failures = failures.iter().filter(|failure| steps.contains(&failure.step));
            failures.map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let kill = of(&[Step::Term, Step::Kill, Step::Sandbox, Step::Devices, Step::Cgroup]);
        self.tell(view, Reason::FailedKillPod, NOT_KILLED, &kill);
        if self.record.exceeds_grace_period() {
            let late = "the runtime has not killed the pod within its grace period";
            self.tell(view, Reason::ExceededGracePeriod, late, &kill);
        }
        self.tell(
            view,
            Reason::FailedUnMount,
            "error tearing down volumes",
            &of(&[Step::Volumes]),
        );
        if Instant::now() > self.period.deadline() + BLOCKED_AFTER {
            self.tell(
                view,
                Reason::TeardownBlocked,
                "the pod's end does not come",
                &of(&Step::ALL),
            );
        }
        self.record.set_blocked(failures.iter().map(Blocked::from).collect());
        let mismatch = failures
            .iter()
            .find_map(|failure| Some((failure.mismatch.clone()?, failure.to_string())));
        self.record.set_mismatch(mismatch);
    }

    fn tell(&self, view: &PodView, reason: Reason, what: &str, failures: &str) {
        let message = format!("{what}: {failures}");
        if !failures.is_empty() {
            self.context.events.event(view, None, reason, &message);
        }
    }
}

fn unrecorded(what: &str, why: &dyn Display) -> Failure {
    let why = format!("the node is not cleaned while {what} is on no disk yet: {why}");
    Failure::new(Step::Status, "", why)
}

/// A pod that is over by its phase and of which nothing runs is not stopped once more.
fn has_ended_by_itself(update: &PodUpdate, observed: &RuntimePod) -> bool {
    update.view.terminal_phase && update.view.deletion.is_none() && !update.removed && !observed.may_run()
}
