//! Sends the requests of the queue, as many at once as the API server can take, and applies their outcomes.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::{
    core::{Core, Shown},
    decide::Policy,
    graph::Hint,
    limit::Limit,
    names::{clipped, dotted, place, visible},
    queue::{Answer, SLOW},
    shared::Shared,
    work::{Outcome, Work, perform},
};
use crate::api::{ApiError, MetadataClient};

/// Maximum time without a look at the queue.
const IDLE: Duration = Duration::from_secs(60);
/// Backoff, first and maximum, of a request that got 429 or no answer. Other items are sent in between: the failure may
/// concern this one only.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Backoff, first and maximum, of a GET for an existing owner whose kind cannot be watched.
const UNWATCHED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Backoff, first and maximum, after a conflict.
const CHANGED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// If two lanes get 429, the API server itself is overloaded. All requests pause for its Retry-After, but no longer
/// than this: webhooks of both kinds may be the cause.
const ALL: Duration = Duration::from_secs(5);
/// Pause after a 429 without Retry-After.
const BUSY: Duration = Duration::from_secs(1);

/// Maximum pause of one request, whatever Retry-After says.
const LONGEST: Duration = Duration::from_secs(3600);

/// Minimum number of requests in flight for a nap.
const MANY: usize = 24;

/// See the module's documentation.
pub struct Engine {
    /// Sends the requests.
    pub client: MetadataClient,
    /// The collector's state.
    pub shared: Arc<Shared>,
}

struct Done {
    work: Work,
    outcome: Outcome,
    begun: Instant,
    took: Duration,
}

// === impl Engine ===

impl Engine {
    /// Runs until it is dropped.
    pub async fn run(self) {
        let mut limit = Limit::default();
        let mut flight = FuturesUnordered::new();
        let mut number = 0;
        loop {
            let mut woken = pin!(self.shared.wake.notified());
            // From here on no notification is missed.
            woken.as_mut().enable();
            // Applies all outcomes that are ready together.
            while let Some(Some(done)) = flight.next().now_or_never() {
                self.settle(done, &mut limit, flight.len() + 1);
            }
            let now = Instant::now();
            let at_once = limit.at_once(now);
            // Slow requests do not count for the limit.
            let slow = self.shared.lock().queue.slow_under_way(now);
            let mut more = false;
            while flight.len() < at_once + slow {
                let begun = Instant::now();
                let (work, all) = self.shared.next(begun);
                more = !all;
                let Some(work) = work else { break };
                number += 1;
                flight.push(do_it(self.client.clone(), number, work, begun));
            }
            if more {
                // Lets other tasks update the state.
                tokio::task::yield_now().await;
                continue;
            }
            self.nap(flight.len(), at_once);
            let now = Instant::now();
            let due = self.shared.lock().queue.next_due(now);
            let until = [due, limit.pause()].into_iter().flatten().filter(|&at| at > now).min();
            tokio::select! {
                // An answer frees a slot.
                Some(done) = flight.next() => {
                    let busy = flight.len() + 1;
                    self.settle(done, &mut limit, busy);
                }
                () = woken => {}
                // A delayed item is due, or a pause is over.
                () = sleep_until(until.unwrap_or(now + IDLE)) => {}
            }
        }
    }

    /// Sleeps under full load, so that several answers are applied at one wakeup. It is what interrupt coalescing does
    /// in a network card.
    fn nap(&self, busy: usize, at_once: usize) {
        if let Some(nap) = self.shared.nap()
            && busy >= at_once.max(MANY)
        {
            #[allow(
                clippy::disallowed_methods,
                reason = "the thread sleeps on purpose; no test enables it"
            )]
            std::thread::sleep(nap);
        }
    }

    fn settle(&self, done: Done, limit: &mut Limit, busy: usize) {
        let now = Instant::now();
        pace(&done, limit, busy, now);
        self.shared.with(|core| {
            core.pace = Some(limit.pace());
            let lane = done.work.lane();
            core.queue.ended(lane, done.begun, fared(&done.outcome, done.took, now));
            settle(core, &done.work, done.outcome, now);
        });
    }
}

async fn do_it(client: MetadataClient, number: usize, work: Work, begun: Instant) -> Done {
    let outcome = perform(&client, number, &work).await;
    Done {
        work,
        outcome,
        begun,
        took: begun.elapsed(),
    }
}

/// Updates the limit by the state of the API server that the answer shows.
fn pace(done: &Done, limit: &mut Limit, busy: usize, now: Instant) {
    match &done.outcome {
        Outcome::Failed(error) => match error {
            ApiError::Unproven { code: Some(429), .. } => limit.refused(None, error.retry_after().unwrap_or(BUSY), now),
            ApiError::Refused { .. } if let Some(pause) = too_busy(error) => {
                limit.refused(Some(done.work.lane()), pause.min(ALL), now);
            }
            // A slow answer waits for a webhook or for an aggregated API server.
            ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. } if done.took >= SLOW => {}
            ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. } => {
                limit.answered(done.took, busy);
            }
            ApiError::Unreachable { .. } | ApiError::Unproven { .. } | ApiError::Held { .. } => limit.lost(now),
        },
        Outcome::Withheld => {}
        _ if done.took >= SLOW => {}
        Outcome::Done
        | Outcome::Deleted
        | Outcome::Absent
        | Outcome::Found(_)
        | Outcome::Changed(_)
        | Outcome::NotStrategic => limit.answered(done.took, busy),
    }
}

/// What the answer shows about the lane.
fn fared(outcome: &Outcome, took: Duration, now: Instant) -> Answer {
    if let Some(pause) = busy(outcome) {
        return Answer::Refused(now + pause);
    }
    let failed = matches!(
        outcome,
        Outcome::Failed(ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. })
    );
    if failed || took >= SLOW {
        Answer::LateOrFailed
    } else {
        Answer::Soon
    }
}

fn busy(outcome: &Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Failed(error) => too_busy(error),
        _ => None,
    }
}

/// Pause that an overloaded server asks for.
fn too_busy(error: &ApiError) -> Option<Duration> {
    let pause = match error {
        ApiError::Refused {
            code: 429, retry_after, ..
        } => Some(retry_after.unwrap_or(BUSY)),
        ApiError::Refused { retry_after, .. } => *retry_after,
        _ => None,
    };
    pause.map(|pause| pause.min(LONGEST))
}

/// Applies the outcome of a request.
fn settle(core: &mut Core, work: &Work, outcome: Outcome, now: Instant) {
    let target = work.target();
    let hint = match work {
        Work::Ask(_) => Hint::Ask(target.id),
        Work::Release { .. } | Work::Delete { .. } | Work::Finish { .. } => Hint::Decide(target.id),
    };
    if let Work::Delete { because, .. } = work {
        core.leans_no_more(because, now);
    }
    let busy = busy(&outcome);
    if let Outcome::Done | Outcome::Deleted | Outcome::Absent = outcome
        && !matches!(work, Work::Ask(_))
    {
        core.written(target);
    }
    match outcome {
        Outcome::Done => {
            count(core, work);
            if let Work::Finish { finalizer, .. } = work {
                core.finished(target, finalizer, now);
            }
            core.queue.done(hint, now);
        }
        Outcome::Deleted => {
            count(core, work);
            core.deleted(target);
            core.queue.done(hint, now);
        }
        Outcome::Absent => {
            core.counts.asked += u64::from(matches!(work, Work::Ask(_)));
            core.absent(target);
            core.queue.done(hint, now);
        }
        Outcome::Found(object) => {
            core.counts.asked += 1;
            let shown = core.answered(target, &object);
            match shown {
                Shown::Settled => core.queue.done(hint, now),
                Shown::Overtaken => core.queue.retry(hint, "the watch has shown a later state", None, now),
                Shown::Unwatched => {
                    let pause = longer(UNWATCHED, core.queue.tries(hint));
                    core.queue
                        .retry(hint, "it exists, and its kind cannot be watched", Some(pause), now);
                }
            }
        }
        Outcome::Changed(object) => {
            core.conflicted(target, &object);
            core.answered(target, &object);
            let pause = longer(CHANGED, core.queue.tries(hint));
            core.queue
                .retry(hint, "conflict: the object has changed", Some(pause), now);
        }
        Outcome::NotStrategic => {
            core.plain.insert(target.kind);
            core.queue.put_back(hint);
        }
        Outcome::Withheld => {
            withheld(work);
            core.queue.done(hint, now);
        }
        Outcome::Failed(error) => {
            let resource = dotted(&target.plural, &target.group);
            core.refusals.note(work.name(), resource, &error, now);
            if core.counts.failed(work.name(), &error) {
                let uid = &target.uid;
                tracing::warn!(%error, uid, "Request failed; will retry (gc status counts further failures)");
            }
            match &error {
                // It was not sent.
                ApiError::Unproven { .. } | ApiError::Held { .. } => core.queue.put_back(hint),
                ApiError::Unreachable { .. } | ApiError::Refused { code: 429, .. } => {
                    let pause = longer(AGAIN, core.queue.tries(hint));
                    let pause = pause.max(busy.unwrap_or_default());
                    core.queue.retry(hint, &error.to_string(), Some(pause), now);
                }
                ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Timeout { .. } => {
                    tracing::debug!(%error, uid = target.uid, "Request failed; will retry");
                    core.queue.retry(hint, &error.to_string(), None, now);
                }
            }
        }
    }
}

/// Exponential backoff.
fn longer((first, most): (Duration, Duration), tries: u32) -> Duration {
    first.saturating_mul(1 << tries.min(8)).min(most)
}

fn count(core: &mut Core, work: &Work) {
    let counter = match work {
        Work::Ask(_) => &mut core.counts.asked,
        Work::Release { .. } => &mut core.counts.released,
        Work::Delete { target, policy, .. } => {
            tracing::debug!(
                group = target.group,
                resource = target.plural,
                namespace = core.graph.namespace(target.namespace),
                name = target.name,
                uid = target.uid,
                policy = policy.name(),
                why = work.why(),
                "Deleted"
            );
            &mut core.counts.deleted
        }
        Work::Finish { .. } => &mut core.counts.finished,
    };
    *counter += 1;
}

/// Logs what would have been sent.
fn withheld(work: &Work) {
    let target = work.target();
    let (resource, object) = (
        dotted(&target.plural, &target.group),
        place(&target.space, &target.name),
    );
    tracing::info!(
        step = work.name(),
        resource,
        object = visible(&clipped(&object)),
        uid = visible(&clipped(&target.uid)),
        policy = work.policy().map(Policy::name),
        why = work.why(),
        "Dry run: not done"
    );
}
