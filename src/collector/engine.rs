//! Sends the requests of the queue, as many at once as the API server can take, and applies their outcomes.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::{
    core::{Core, GetEffect, NextRequest},
    graph::WorkItem,
    limit::Limit,
    names::qualified_name,
    queue::{Feedback, SLOW},
    request::{Outcome, Request, send},
    shared::Shared,
};
use crate::api::{ApiError, MetadataClient};

/// Maximum time between two checks of the queue.
const IDLE: Duration = Duration::from_secs(60);
/// Backoff, first and maximum, of a request that got 429 or no answer. Other items are sent in between: the failure may
/// concern this one only.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Backoff, first and maximum, of a GET for an existing owner whose kind cannot be watched.
const RETRY_UNWATCHED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Backoff, first and maximum, after a conflict.
const RETRY_CONFLICT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// If two lanes get 429, the API server itself is overloaded. All requests pause for its Retry-After, but no longer
/// than this: webhooks of both kinds may be the cause.
const MAX_PAUSE_OF_ALL: Duration = Duration::from_secs(5);
/// Pause after a 429 without Retry-After.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause of one request, even with a longer Retry-After.
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// Takes ready items from the queue and runs them. [`Engine::run`] does not return.
pub struct Engine {
    /// Sends the requests.
    pub client: MetadataClient,
    /// The collector's state.
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
        let mut limit = Limit::default();
        let mut in_flight = FuturesUnordered::new();
        let mut number = 0;
        loop {
            let mut wake = pin!(self.shared.wake.notified());
            // From here on no notification is missed.
            wake.as_mut().enable();
            // Applies all outcomes that are ready together.
            while let Some(Some(finished)) = in_flight.next().now_or_never() {
                self.apply(finished, &mut limit, in_flight.len() + 1);
            }
            let now = Instant::now();
            // Slow requests do not count for the limit.
            let (slow, has_outage) = {
                let core = self.shared.lock();
                (core.queue.slow_in_flight(now), core.has_outage)
            };
            if !has_outage {
                // A watch has been answered.
                limit.end_outage();
            }
            let mut more = false;
            while limit.allows(in_flight.len().saturating_sub(slow), now) {
                let started = Instant::now();
                match self.shared.next_request(started) {
                    NextRequest::Send(request) => {
                        limit.record_start();
                        number += 1;
                        in_flight.push(send_timed(self.client.clone(), number, *request, started));
                    }
                    NextRequest::NoneReady => break,
                    NextRequest::Yield => {
                        more = true;
                        break;
                    }
                }
            }
            if more {
                // Lets other tasks update the state.
                tokio::task::yield_now().await;
                continue;
            }
            let due = self.shared.lock().queue.next_due(now);
            let until = [due, limit.pause()].into_iter().flatten().filter(|&at| at > now).min();
            tokio::select! {
                // An answer frees a slot.
                Some(finished) = in_flight.next() => {
                    let in_flight_count = in_flight.len() + 1;
                    self.apply(finished, &mut limit, in_flight_count);
                }
                () = wake => {}
                // A delayed item is due, or a pause is over.
                () = sleep_until(until.unwrap_or(now + IDLE)) => {}
            }
        }
    }

    fn apply(&self, finished: FinishedRequest, limit: &mut Limit, in_flight_count: usize) {
        let now = Instant::now();
        update_limit(&finished, limit, in_flight_count, now);
        self.shared.with(|core| {
            core.max_in_flight = Some(limit.max_in_flight());
            core.has_outage = limit.has_outage();
            let lane = finished.request.lane();
            core.queue.request_finished(
                lane,
                finished.started,
                feedback(&finished.outcome, finished.duration, now),
            );
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

/// Updates the limit by the state of the API server that the answer shows.
fn update_limit(finished: &FinishedRequest, limit: &mut Limit, in_flight_count: usize, now: Instant) {
    let is_unanswered = match &finished.outcome {
        Outcome::Failed(ApiError::UnverifiedServer { code, .. }) => *code != Some(429),
        Outcome::Failed(ApiError::Unreachable { .. } | ApiError::Blocked { .. }) => true,
        _ => false,
    };
    if is_unanswered {
        limit.record_no_answer(finished.started, now);
    } else {
        limit.end_outage();
    }
    match &finished.outcome {
        Outcome::Failed(error) => match error {
            ApiError::UnverifiedServer { code: Some(429), .. } => {
                limit.record_refusal(None, error.retry_after().unwrap_or(DEFAULT_PAUSE), now);
            }
            ApiError::Refused { .. } if let Some(pause) = requested_pause(error) => {
                limit.record_refusal(Some(finished.request.lane()), pause.min(MAX_PAUSE_OF_ALL), now);
            }
            // A slow answer waits for a webhook or for an aggregated API server.
            ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. }
                if finished.duration >= SLOW => {}
            ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. } => {
                limit.record_answer(in_flight_count);
            }
            ApiError::Unreachable { .. } | ApiError::UnverifiedServer { .. } | ApiError::Blocked { .. } => {}
        },
        _ if finished.duration >= SLOW => {}
        Outcome::Done
        | Outcome::Deleted
        | Outcome::Absent
        | Outcome::Exists(_)
        | Outcome::Changed(_)
        | Outcome::StrategicPatchUnsupported => limit.record_answer(in_flight_count),
    }
}

/// Feedback of the answer to its lane.
fn feedback(outcome: &Outcome, duration: Duration, now: Instant) -> Feedback {
    if let Some(pause) = pause_for(outcome) {
        return Feedback::Refused(now + pause);
    }
    let failed = matches!(
        outcome,
        Outcome::Failed(ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. })
    );
    if failed || duration >= SLOW {
        Feedback::SlowOrFailed
    } else {
        Feedback::Fast
    }
}

fn pause_for(outcome: &Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Failed(error) => requested_pause(error),
        _ => None,
    }
}

/// Pause that an overloaded server asks for.
fn requested_pause(error: &ApiError) -> Option<Duration> {
    let pause = match error {
        ApiError::Refused {
            code: 429, retry_after, ..
        } => Some(retry_after.unwrap_or(DEFAULT_PAUSE)),
        ApiError::Refused { retry_after, .. } => *retry_after,
        _ => None,
    };
    pause.map(|pause| pause.min(MAX_PAUSE))
}

/// Applies the outcome of a request.
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
    let requested = pause_for(&outcome);
    if let Outcome::Done | Outcome::Deleted | Outcome::Absent = outcome
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
        Outcome::Deleted => {
            count_write(core, request);
            core.record_deletion(target);
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
            let pause = backoff(RETRY_CONFLICT, core.queue.num_requeues(item));
            core.queue
                .add_rate_limited(item, "conflict: the object has changed", Some(pause), now);
        }
        Outcome::StrategicPatchUnsupported => {
            core.no_strategic_patch.insert(target.kind);
            core.queue.requeue(item);
        }
        Outcome::Failed(error) => {
            let resource = qualified_name(&target.plural, &target.group);
            core.refusals.record(request.name(), resource, &error, now);
            if core.counts.failed(request.name(), &error) {
                let uid = &target.uid;
                tracing::warn!(%error, uid, "Request failed; will retry (gc status counts further failures)");
            }
            match &error {
                // It was not sent.
                ApiError::UnverifiedServer { .. } | ApiError::Blocked { .. } => core.queue.requeue(item),
                ApiError::Unreachable { .. } | ApiError::Refused { code: 429, .. } => {
                    let pause = backoff(RETRY, core.queue.num_requeues(item));
                    let pause = pause.max(requested.unwrap_or_default());
                    core.queue.add_rate_limited(item, &error.to_string(), Some(pause), now);
                }
                ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. } => {
                    tracing::debug!(%error, uid = target.uid, "Request failed; will retry");
                    core.queue.add_rate_limited(item, &error.to_string(), None, now);
                }
            }
        }
    }
}

/// Exponential backoff.
fn backoff((first, max): (Duration, Duration), attempts: u32) -> Duration {
    first.saturating_mul(1 << attempts.min(8)).min(max)
}

fn count_write(core: &mut Core, request: &Request) {
    let counter = match request {
        Request::GetOwner(_) => &mut core.counts.owner_lookups,
        Request::DropReferences { .. } => &mut core.counts.references_dropped,
        Request::Delete { target, policy, .. } => {
            tracing::debug!(
                group = target.group,
                resource = target.plural,
                namespace = core.graph.namespace(target.namespace),
                name = target.name,
                uid = target.uid,
                policy = policy.name(),
                why = request.reason(),
                "Deleted"
            );
            &mut core.counts.deleted
        }
        Request::RemoveFinalizer { .. } => &mut core.counts.finalizers_removed,
    };
    *counter += 1;
}
