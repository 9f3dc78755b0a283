//! Takes what is to be done from the queue, as much at once as the server bears, and sees what comes of it.

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

/// Without anything to do, it is looked at the clock so often.
const IDLE: Duration = Duration::from_secs(60);
/// A request that was refused for the server's being busy, or that got no answer, is sent again: first, and at most. Others
/// have their turn before: it may be only this one that always fares so.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// An owner that is there, but of a kind that cannot be watched, is asked for again: first, and at most.
const UNWATCHED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// What had changed meanwhile is decided on again after: first, and at most.
const CHANGED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// Where two kinds are refused it is the server that is busy. It is left alone at most so long, whatever it asks for: it may
/// be the webhooks of both.
const ALL: Duration = Duration::from_secs(5);
/// Where a server is busy and does not say for how long.
const BUSY: Duration = Duration::from_secs(1);

/// What was refused is sent again after so long, whatever the server asks for.
const LONGEST: Duration = Duration::from_secs(3600);

/// So many requests under way are many.
const MANY: usize = 24;

/// See the module's documentation.
pub struct Engine {
    /// How requests are sent.
    pub client: MetadataClient,
    /// What is known and to be done.
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
    /// Works for ever.
    pub async fn run(self) {
        let mut limit = Limit::default();
        let mut flight = FuturesUnordered::new();
        let mut number = 0;
        loop {
            let mut woken = pin!(self.shared.wake.notified());
            // From here on nobody's call is missed.
            woken.as_mut().enable();
            // What has come meanwhile is taken in together.
            while let Some(Some(done)) = flight.next().now_or_never() {
                self.settle(done, &mut limit, flight.len() + 1);
            }
            let now = Instant::now();
            let at_once = limit.at_once(now);
            // Nobody waits for those that are slow.
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
                // Others may know something new by now.
                tokio::task::yield_now().await;
                continue;
            }
            self.nap(flight.len(), at_once);
            let now = Instant::now();
            let due = self.shared.lock().queue.next_due(now);
            let until = [due, limit.pause()].into_iter().flatten().filter(|&at| at > now).min();
            tokio::select! {
                // An answer makes room for another request.
                Some(done) = flight.next() => {
                    let busy = flight.len() + 1;
                    self.settle(done, &mut limit, busy);
                }
                () = woken => {}
                // What was put off is due, or the server was left alone long enough.
                () = sleep_until(until.unwrap_or(now + IDLE)) => {}
            }
        }
    }

    /// Lets answers come together, as a network card does with packets, where the server has more to do than it can: each
    /// that is taken in by itself costs as much time again for waking up.
    fn nap(&self, busy: usize, at_once: usize) {
        if let Some(nap) = self.shared.nap()
            && busy >= at_once.max(MANY)
        {
            #[allow(clippy::disallowed_methods, reason = "only the thread can stand still; no test naps")]
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

/// What the answer tells of the server.
fn pace(done: &Done, limit: &mut Limit, busy: usize, now: Instant) {
    match &done.outcome {
        Outcome::Failed(error) => match error {
            ApiError::Unproven { code: Some(429), .. } => limit.refused(None, error.retry_after().unwrap_or(BUSY), now),
            ApiError::Refused { .. } if let Some(pause) = too_busy(error) => {
                limit.refused(Some(done.work.lane()), pause.min(ALL), now);
            }
            // One that takes long waits for a webhook, or for another server.
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

/// What the answer tells of the kind.
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

/// How long a server that has too much to do wants to be left alone.
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

/// Takes in what came of some work.
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
                Shown::Overtaken => core.queue.retry(hint, "the watch has told more already", None, now),
                Shown::Unwatched => {
                    let pause = longer(UNWATCHED, core.queue.tries(hint));
                    core.queue
                        .retry(hint, "it is there, and its kind cannot be watched", Some(pause), now);
                }
            }
        }
        Outcome::Changed(object) => {
            core.conflicted(target, &object);
            core.answered(target, &object);
            let pause = longer(CHANGED, core.queue.tries(hint));
            core.queue.retry(hint, "it had changed meanwhile", Some(pause), now);
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
                tracing::warn!(%error, uid, "A request failed, and is repeated; further ones of this kind are counted, see gc status");
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
                    tracing::debug!(%error, uid = target.uid, "Not done; tried again later");
                    core.queue.retry(hint, &error.to_string(), None, now);
                }
            }
        }
    }
}

/// Twice as long with each try.
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

/// What a dry run would have done.
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
