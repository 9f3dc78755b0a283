//! Sends the requests of the queue, as many at once as the API server can take, and applies their outcomes.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::{
    core::{Core, GetEffect, NextRequest},
    graph::WorkItem,
    outage::Outage,
    queue::{Feedback, Refusal, SLOW, backoff},
    request::{Outcome, Request, send},
    shared::Shared,
};
use crate::api::{ApiError, ErrorKind, MetadataClient};

/// Maximum time between two checks of the queue.
const IDLE: Duration = Duration::from_secs(60);
/// Backoff, first and maximum, of a request that got 429 or no answer. Other items are sent in between: the failure may
/// concern this one only.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Backoff, first and maximum, of a GET for an existing owner whose kind cannot be watched.
const RETRY_UNWATCHED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Pause after a 429 without Retry-After.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause of one request, even with a longer Retry-After.
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// Takes ready items from the queue and runs them. [`Engine::run`] does not return.
pub struct Engine {
    pub client: MetadataClient,
    pub shared: Arc<Shared>,
}

struct FinishedRequest {
    request: Request,
    outcome: Outcome,
    started: Instant,
    duration: Duration,
}

// === impl Engine ===

impl Engine {
    /// Runs until it is dropped.
    pub async fn run(self) {
        let mut in_flight = FuturesUnordered::new();
        let mut number = 0;
        loop {
            let mut wake = pin!(self.shared.wake.notified());
            // From here on no notification is missed.
            wake.as_mut().enable();
            // Applies all outcomes that are ready together.
            while let Some(Some(finished)) = in_flight.next().now_or_never() {
                self.apply(finished);
            }
            let now = Instant::now();
            let more = loop {
                let started = Instant::now();
                match self.shared.next_request(started) {
                    NextRequest::Send(request) => {
                        number += 1;
                        in_flight.push(send_timed(self.client.clone(), number, *request, started));
                    }
                    NextRequest::NoneReady => break false,
                    NextRequest::Yield => break true,
                }
            };
            if more {
                // Lets other tasks update the state.
                tokio::task::yield_now().await;
                continue;
            }
            let until = self.shared.lock().next_due(now);
            tokio::select! {
                // An answer frees a slot.
                Some(finished) = in_flight.next() => self.apply(finished),
                () = wake => {}
                // A delayed item is due, or a pause is over.
                () = sleep_until(until.unwrap_or(now + IDLE)) => {}
            }
        }
    }

    fn apply(&self, finished: FinishedRequest) {
        let now = Instant::now();
        self.shared.with(|core| {
            let feedback = record_answer(&finished, &mut core.outage, now);
            let lane = finished.request.lane();
            core.queue.ready.request_finished(lane, finished.started, feedback);
            apply_outcome(core, &finished.request, finished.outcome, now);
        });
    }
}

async fn send_timed(client: MetadataClient, number: usize, request: Request, started: Instant) -> FinishedRequest {
    let outcome = send(&client, number, &request).await;
    FinishedRequest {
        request,
        outcome,
        started,
        duration: started.elapsed(),
    }
}

/// Updates the outage by the state of the API server that the answer shows. Returns the feedback for its lane.
fn record_answer(finished: &FinishedRequest, outage: &mut Outage, now: Instant) -> Feedback {
    let error = match &finished.outcome {
        Outcome::Failed(error) => Some(error),
        _ => None,
    };
    if let Some(error) = error
        && let ErrorKind::UnverifiedServer(_) | ErrorKind::Unreachable { .. } | ErrorKind::Blocked(_) = error.kind
    {
        outage.record_no_answer(finished.started, error.retry_after(), now);
        return Feedback::Fast;
    }
    *outage = Outage::default();
    match error.map(requested_pause) {
        Some(Some(pause)) => Feedback::Refused(now + pause),
        Some(None) => Feedback::SlowOrFailed,
        // A slow answer waits for a webhook or for an aggregated API server.
        None if finished.duration >= SLOW => Feedback::SlowOrFailed,
        None => Feedback::Fast,
    }
}

/// Pause that an overloaded server asks for.
fn requested_pause(error: &ApiError) -> Option<Duration> {
    let is_overloaded = error.code() == Some(429);
    let pause = error.retry_after().or(is_overloaded.then_some(DEFAULT_PAUSE));
    pause.map(|pause| pause.min(MAX_PAUSE))
}

fn apply_outcome(core: &mut Core, request: &Request, outcome: Outcome, now: Instant) {
    let target = request.target();
    let item = match request {
        Request::GetOwner(_) => WorkItem::GetOwner(target.id),
        Request::DropReferences { .. } | Request::Delete { .. } | Request::RemoveFinalizer { .. } => {
            WorkItem::Decide(target.id)
        }
    };
    if let Request::Delete { waiting_owners, .. } = request {
        core.record_delete_answer(waiting_owners, now);
    }
    if let Outcome::Done | Outcome::Absent = outcome
        && !matches!(request, Request::GetOwner(_))
    {
        core.record_write(target);
    }
    match outcome {
        Outcome::Done => {
            count_write(core, request);
            if let Request::RemoveFinalizer {
                finalizer, unsynced, ..
            } = request
            {
                core.record_finalizer_removal(target, finalizer, unsynced.as_deref());
            }
            core.queue.done(item, now);
        }
        Outcome::Absent => {
            core.counts.owner_lookups += u64::from(matches!(request, Request::GetOwner(_)));
            core.set_absent(target);
            core.queue.done(item, now);
        }
        Outcome::Exists(object) => {
            core.counts.owner_lookups += 1;
            let effect = core.apply_get(target, &object);
            match effect {
                GetEffect::Applied => core.queue.done(item, now),
                GetEffect::Stale => core
                    .queue
                    .add_rate_limited(item, "the watch has shown a later state", None, now),
                GetEffect::Unwatched => {
                    let pause = backoff(RETRY_UNWATCHED, core.queue.num_requeues(item));
                    core.queue
                        .add_rate_limited(item, "it exists, and its kind cannot be watched", Some(pause), now);
                }
            }
        }
        Outcome::Changed(object) => {
            core.record_conflict(target, &object);
            core.apply_get(target, &object);
            core.queue
                .add_rate_limited(item, "conflict: the object has changed", None, now);
        }
        Outcome::Failed(error) => retry(core, request, item, &error, now),
    }
}

/// Reports a failed request, and delays its item.
fn retry(core: &mut Core, request: &Request, item: WorkItem, error: &ApiError, now: Instant) {
    let target = request.target();
    if core.counts.failed(request.name(), error) {
        let uid = &target.uid;
        tracing::warn!(%error, uid, "Request failed; will retry (gc status counts further failures)");
    } else {
        tracing::debug!(%error, uid = target.uid, "Request failed; will retry");
    }
    let pause = match error.kind {
        // It was not sent.
        ErrorKind::UnverifiedServer(_) | ErrorKind::Blocked(_) => return core.queue.requeue(item),
        ErrorKind::Unreachable { .. } | ErrorKind::Refused { code: 429, .. } => {
            let pause = backoff(RETRY, core.queue.num_requeues(item));
            Some(pause.max(requested_pause(error).unwrap_or_default()))
        }
        ErrorKind::Refused { .. } | ErrorKind::Unreadable(_) | ErrorKind::Timeout(_) => None,
    };
    let since = core.queue.refusal(item).map_or(now, |refusal| refusal.since);
    core.queue.add_rate_limited(item, &error.to_string(), pause, now);
    if let Some(code) = error.code() {
        let step = request.name();
        core.queue.record_refusal(item, Refusal { step, code, since });
    }
}

fn count_write(core: &mut Core, request: &Request) {
    let counter = match request {
        Request::GetOwner(_) => &mut core.counts.owner_lookups,
        Request::DropReferences { .. } => &mut core.counts.references_dropped,
        Request::Delete { target, policy, .. } => {
            tracing::debug!(
                group = target.group,
                resource = target.plural,
                namespace = &*target.namespace,
                name = target.name,
                uid = target.uid,
                policy = policy.name(),
                "Deleted"
            );
            &mut core.counts.deleted
        }
        Request::RemoveFinalizer { .. } => &mut core.counts.finalizers_removed,
    };
    *counter += 1;
}
