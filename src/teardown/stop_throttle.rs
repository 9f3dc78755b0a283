//! Stop throttle: limits how many stops the container runtime works on at the same time.
//!
//! A runtime that gets the stops of a whole node at once works on all of them, and nearly all pods end together at the end. In
//! turns, the first pods end at once, and the last one no later.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout},
};

/// Stops per processor of this node. Most of a stop's time is work of the runtime's processes.
const PER_PROCESSOR: usize = 2;
/// Stops on a node with many processors: locks of the kernel, such as those of networks and cgroups, are taken by one at a time.
const MAX_TURNS: usize = 16;
/// No container waits longer for its turn: its grace period has begun.
const MAX_WAIT: Duration = Duration::from_millis(900);
/// A container that takes longer uses its grace period, and needs nothing from the runtime meanwhile.
const MAX_CONTAINER_TURN: Duration = Duration::from_millis(200);
/// A sandbox that takes longer hangs, such as in a network plugin. Others do not wait for it.
const MAX_SANDBOX_TURN: Duration = Duration::from_secs(2);

/// The turns of all pods of this node. Each is for who has waited longest.
#[derive(Debug)]
pub struct StopThrottle {
    containers: Arc<Semaphore>,
    sandboxes: Arc<Semaphore>,
}

/// The turn of one stop.
#[derive(Debug)]
pub(super) struct Turn {
    /// `None` if there was no time to wait for it.
    permit: Option<OwnedSemaphorePermit>,
    at_most: Duration,
}

// === impl StopThrottle ===

impl StopThrottle {
    /// The throttle of a node with this number of processors.
    pub fn new(processors: usize) -> Self {
        let turns = processors.saturating_mul(PER_PROCESSOR).clamp(1, MAX_TURNS);
        Self {
            containers: Arc::new(Semaphore::new(turns)),
            sandboxes: Arc::new(Semaphore::new(turns)),
        }
    }

    /// Waits for the turn of a container, for [`MAX_WAIT`] at most, and no later than at this time.
    pub(super) async fn container(&self, no_later_than: Instant) -> Turn {
        let latest = no_later_than.min(Instant::now() + MAX_WAIT);
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&self.containers).acquire_owned() => permit.ok(),
            () = sleep_until(latest) => None,
        };
        Turn {
            permit,
            at_most: MAX_CONTAINER_TURN,
        }
    }

    /// Waits for the turn of a sandbox, whose containers have exited.
    pub(super) async fn sandbox(&self) -> Turn {
        Turn {
            permit: Arc::clone(&self.sandboxes).acquire_owned().await.ok(),
            at_most: MAX_SANDBOX_TURN,
        }
    }
}

// === impl Turn ===

impl Turn {
    /// Makes the call, and lets the next one have its turn when it is answered or takes long.
    pub(super) async fn call<T>(self, call: impl Future<Output = T>) -> T {
        let Self { permit, at_most } = self;
        tokio::pin!(call);
        match timeout(at_most, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                drop(permit);
                call.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// Milliseconds after which the stop of each of so many containers begins, which need this time until their exit.
    async fn containers(throttle: &StopThrottle, count: usize, takes: Duration) -> Vec<u128> {
        let start = Instant::now();
        let one = async || {
            let turn = throttle.container(start + LONG).await;
            let began = start.elapsed().as_millis();
            turn.call(sleep(takes)).await;
            began
        };
        join_all((0..count).map(|_| one())).await
    }

    #[tokio::test(start_paused = true)]
    async fn stops_begin_in_turns_and_none_waits_longer_than_its_limit() {
        let throttle = StopThrottle::new(1);
        let begins = containers(&throttle, 100, Duration::from_millis(100)).await;
        assert_eq!(begins[..6], [0, 0, 100, 100, 200, 200]);
        assert!(
            begins[20..].iter().all(|begin| *begin == MAX_WAIT.as_millis()),
            "{begins:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn container_that_uses_its_grace_period_delays_others_only_briefly() {
        let throttle = StopThrottle::new(1);
        assert_eq!(containers(&throttle, 4, LONG).await, [0, 0, 200, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn container_without_time_does_not_wait() {
        let throttle = StopThrottle::new(1);
        let _first = throttle.container(Instant::now()).await;
        let _second = throttle.container(Instant::now()).await;
        for (time, waits) in [(0, 0), (300, 300), (30_000, 900)] {
            let start = Instant::now();
            let turn = throttle.container(start + Duration::from_millis(time)).await;
            assert_eq!((start.elapsed().as_millis(), turn.permit.is_some()), (waits, false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sandboxes_are_stopped_in_their_order_and_one_that_hangs_delays_others_only_briefly() {
        let throttle = StopThrottle::new(1);
        let start = Instant::now();
        let one = async |takes| {
            let turn = throttle.sandbox().await;
            let began = start.elapsed().as_secs();
            turn.call(sleep(takes)).await;
            began
        };
        let second = Duration::from_secs(1);
        let begins = join_all([LONG, second, second, second, second].map(one)).await;
        assert_eq!(begins, [0, 0, 1, 2, 2]);
    }

    #[test]
    fn turns_follow_the_processors_up_to_a_limit() {
        let turns = |processors| StopThrottle::new(processors).sandboxes.available_permits();
        assert_eq!([0, 1, 2, 8, 128].map(turns), [1, 2, 4, 16, 16]);
    }
}
