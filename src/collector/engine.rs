//! Sends the requests of the queue, as many at once as the API server can take, and has their outcomes applied.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::{
    core::{NextRequest, requested_pause},
    outage::Outage,
    queue::{Feedback, SLOW},
    request::{Outcome, Request, send},
    shared::Shared,
};
use crate::api::{ErrorKind, MetadataClient};

/// Maximum time between two checks of the queue.
const IDLE: Duration = Duration::from_secs(60);

/// Takes ready items from the queue and runs them. Does not return.
pub async fn run(client: MetadataClient, shared: Arc<Shared>) {
    let mut in_flight = FuturesUnordered::new();
    let mut number = 0;
    loop {
        let mut wake = pin!(shared.wake.notified());
        // From here on no notification is missed.
        wake.as_mut().enable();
        // Applies all outcomes that are ready together.
        while let Some(Some(finished)) = in_flight.next().now_or_never() {
            apply(&shared, finished);
        }
        let now = Instant::now();
        let more = loop {
            let started = Instant::now();
            match shared.next_request(started) {
                NextRequest::Send(request) => {
                    number += 1;
                    let client = client.clone();
                    in_flight.push(async move {
                        let outcome = send(&client, number, &request).await;
                        (request, outcome, started)
                    });
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
        let until = shared.lock().queue.next_due(now);
        tokio::select! {
            // An answer frees a slot.
            Some(finished) = in_flight.next() => apply(&shared, finished),
            () = wake => {}
            // A delayed item is due, or a pause is over.
            () = sleep_until(until.unwrap_or(now + IDLE)) => {}
        }
    }
}

fn apply(shared: &Shared, (request, outcome, started): (Box<Request>, Outcome, Instant)) {
    let now = Instant::now();
    shared.with(|core| {
        let feedback = record_answer(&outcome, started, &mut core.queue.outage, now);
        core.queue.ready.request_finished(request.lane(), started, feedback);
        core.apply(&request, outcome, now);
    });
}

/// Updates the outage by the state of the API server that the answer shows. Returns the feedback for its lane.
fn record_answer(outcome: &Outcome, started: Instant, outage: &mut Outage, now: Instant) -> Feedback {
    let error = match outcome {
        Outcome::Failed(error) => Some(error),
        _ => None,
    };
    if let Some(error) = error
        && let ErrorKind::UnverifiedServer(_) | ErrorKind::Unreachable { .. } | ErrorKind::Blocked(_) = error.kind
    {
        outage.record_no_answer(started, error.retry_after(), now);
        return Feedback::Fast;
    }
    *outage = Outage::default();
    match error.map(requested_pause) {
        Some(Some(pause)) => Feedback::Refused(now + pause),
        Some(None) => Feedback::SlowOrFailed,
        // A slow answer waits for a webhook or for an aggregated API server.
        None if now.saturating_duration_since(started) >= SLOW => Feedback::SlowOrFailed,
        None => Feedback::Fast,
    }
}
