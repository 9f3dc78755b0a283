//! A pod's termination: begun or resumed here, and run by a worker.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{sync::watch, time::sleep};
use tracing::Instrument as _;

use super::{
    WorkerResult,
    attempt::{PodUpdate, Worker},
    boundary::Counted,
    context::Context,
    grace,
    period::Period,
    runtime_state::RuntimeState,
    worker,
};
use crate::{
    model::{
        termination::{Cause, Eviction},
        trace::Stage,
    },
    trace_recorder::TraceRecorder,
};

/// Delay before a worker that panicked is restarted.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// The termination of one pod.
#[derive(Clone)]
pub struct Termination {
    /// Clients and journal.
    pub context: Arc<Context>,
    /// Its grace period.
    pub period: Arc<Period>,
    /// Its trace.
    pub recorder: Arc<TraceRecorder>,
    /// Updates of the pod for its worker.
    pub updates: watch::Sender<PodUpdate>,
}

// === impl Termination ===

impl Termination {
    /// Begins the termination in the journal, or resumes it from there. `grace` is in seconds, and only shortens the period in
    /// force.
    pub fn begin(context: Arc<Context>, mut update: PodUpdate, cause: Cause, grace: Option<i64>) -> Self {
        let (view, pod, journal) = (&update.view, &update.view.pod, &context.journal);
        let now = context.node.clock.now();
        let entry = journal.pod(&pod.uid);
        let in_force = entry.as_ref().map(|entry| entry.grace);
        let grace = grace::of_pod(in_force, view, grace.or(cause.required_grace()));
        let begun = entry.as_ref().filter(|entry| entry.has_begun());
        let begun = begun.map(|entry| entry.begun.clone());
        let used_before = begun.as_ref().map(|begun| grace::used(begun, &now));
        let period = Period::new(grace, used_before);
        let reached = entry.as_ref().map(|entry| entry.stage);
        let eviction = update.eviction.clone().or_else(|| entry?.eviction.map(Arc::new));
        journal.record_termination(pod, now.clone(), grace, eviction.as_deref());
        // Only the journal has the reason of such a termination.
        if matches!(cause, Cause::Requested | Cause::Begun) {
            journal.record_request(&pod.uid);
        }
        if cause == Cause::PhaseTerminal && reached >= Some(Stage::Terminated) {
            // Most pods of a node may be like this, and nothing is done to them.
            tracing::debug!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "Terminal pod is checked once after the restart");
        } else {
            tracing::info!(
                pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name,
                ?cause, grace_seconds = grace.as_secs(), used_seconds = used_before.unwrap_or_default().as_secs(), reached = reached.map(tracing::field::debug),
                reason = eviction.as_ref().map(|eviction| eviction.reason.as_str()),
                "{}", match (reached, context.node.effects.check().err()) {
                    (Some(_), _) => "Teardown resumed after a restart",
                    (None, None) => "Teardown started",
                    (None, Some(_)) => "Pod has to terminate; this agent may not act now",
                }
            );
        }
        let recorder = TraceRecorder::new(pod.clone(), cause, grace, period.end());
        let recorder = match &begun {
            Some(begun) => recorder.resumed(begun, &now),
            None => recorder,
        };
        update.eviction = eviction;
        Self {
            context,
            period: Arc::new(period),
            recorder: Arc::new(recorder),
            updates: watch::Sender::new(update),
        }
    }

    /// Runs a worker for the pod until it has a result, such as that the agent stops. A worker that panics is restarted.
    pub fn run(&self) -> impl Future<Output = WorkerResult> + Send + use<> {
        let pod = self.recorder.pod();
        let span =
            tracing::error_span!("pod", pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name);
        let termination = self.clone();
        let run = async move {
            loop {
                let worker = async { worker::run(termination.worker()).await };
                match AssertUnwindSafe(worker).catch_unwind().await {
                    Ok(result) => return result,
                    Err(_) => termination.context.events.count(Counted::WorkerPanicked),
                }
                tracing::error!("Worker panicked; it is restarted");
                sleep(AFTER_PANIC).await;
            }
        };
        run.instrument(span)
    }

    fn worker(&self) -> Worker {
        Worker {
            context: Arc::clone(&self.context),
            updates: self.updates.subscribe(),
            period: Arc::clone(&self.period),
            recorder: Arc::clone(&self.recorder),
            failed_reads: AtomicU32::new(0),
            runtime_state: RuntimeState::default(),
        }
    }

    /// Shortens the grace period. `false` if it was not longer, or the pod's containers are stopped.
    pub fn shorten(&self, grace: Duration) -> bool {
        let shorter = self.recorder.stage() == Stage::Terminating && self.period.shorten(grace);
        if shorter {
            let pod = self.recorder.pod();
            tracing::info!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, grace_seconds = grace.as_secs(), "Grace period shortened");
            self.recorder.set_grace(grace, self.period.end());
        }
        shorter
    }

    /// Shortens the grace period once the disk has the shorter one: it must not grow after a crash.
    pub async fn shorten_durably(&self, grace: Duration) {
        self.context.journal.durable().await.ok();
        self.shorten(grace);
    }

    /// Shortens the grace period in the journal. A later start has the shorter one.
    pub fn record_grace(&self, grace: Duration, eviction: Option<&Eviction>) {
        let Context { journal, node, .. } = &*self.context;
        journal.record_termination(self.recorder.pod(), node.clock.now(), grace, eviction);
    }
}
