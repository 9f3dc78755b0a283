//! Begins a pod's termination, and resumes it after a restart.

use std::{sync::Arc, time::Duration};

use super::{
    context::Context,
    grace::{self, RequestedGrace},
    journal::PodJournalExt as _,
    period::Period,
};
use crate::{
    model::{
        pod::PodView,
        termination::{Cause, Eviction},
        trace::Stage,
    },
    trace_recorder::TraceRecorder,
};

/// The termination of one pod.
pub struct Termination {
    /// Its grace period.
    pub period: Arc<Period>,
    /// Its trace.
    pub recorder: Arc<TraceRecorder>,
    /// The eviction that a user requested, in this run or an earlier one.
    pub eviction: Option<Eviction>,
}

// === impl Termination ===

impl Termination {
    /// Begins the termination in the journal, or resumes it from there. `grace` is in seconds, and only shortens the period in
    /// force.
    pub fn begin(
        context: &Context,
        view: &PodView,
        cause: Cause,
        grace: Option<i64>,
        eviction: Option<Eviction>,
    ) -> Self {
        let pod = &view.pod;
        let now = context.node.clock.now();
        let entry = context.journal.pod(&pod.uid);
        let in_force = entry.as_ref().map(|entry| entry.grace);
        let grace = grace::effective(
            in_force,
            RequestedGrace::for_pod(view, grace.or(cause.required_grace())),
        );
        let begun = entry.as_ref().filter(|entry| entry.has_begun());
        let begun = begun.map(|entry| entry.begun.clone());
        let used_before = begun.as_ref().map(|begun| grace::used(begun, &now));
        let period = used_before.map_or_else(|| Period::new(grace), |used| Period::resumed(grace, used));
        let reached = entry.as_ref().map(|entry| entry.stage);
        let eviction = eviction.or_else(|| entry?.eviction);
        context
            .journal
            .record_termination(pod, now.clone(), grace, eviction.as_ref());
        // Only the journal has the reason of such a termination.
        if matches!(cause, Cause::Requested | Cause::Begun) {
            context.journal.record_request(&pod.uid);
        }
        if cause == Cause::PhaseTerminal && reached >= Some(Stage::Terminated) {
            // Most pods of a node may be like this, and nothing is done to them.
            tracing::debug!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "Terminal pod is checked once after the restart");
        } else {
            tracing::info!(
                pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name,
                ?cause, grace_seconds = grace.as_secs(), used_seconds = used_before.unwrap_or_default().as_secs(), reached = reached.map(tracing::field::debug),
                reason = eviction.as_ref().map(|eviction| eviction.reason.as_str()),
                "{}", match (reached, context.gate.why_blocked()) {
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
        Self {
            period: Arc::new(period),
            recorder: Arc::new(recorder),
            eviction,
        }
    }
}

/// Shortens the grace period. `false` if it was not longer, or the pod's containers are stopped.
pub fn shorten(period: &Period, recorder: &TraceRecorder, grace: Duration) -> bool {
    let shorter = recorder.stage() == Stage::Terminating && period.shorten(grace);
    if shorter {
        let pod = recorder.pod();
        tracing::info!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, grace_seconds = grace.as_secs(), "Grace period shortened");
        recorder.set_grace(grace, period.end());
    }
    shorter
}
