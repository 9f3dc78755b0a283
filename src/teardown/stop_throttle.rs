//! Stop throttle: limits how many stops the container runtime works on at the same time.
//!
//! A runtime that gets the stops of all pods of a node together works on all of them, and nearly all pods terminate late. With a
//! limit the first pods terminate early, and the last one at about the same time.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout},
};

/// Stops per processor of this node. Most of a stop's time is work of the runtime's processes.
const PER_PROCESSOR: usize = 2;
/// Most stops at the same time: locks of the kernel, such as those of networks and cgroups, admit one at a time.
const MAX_SLOTS: usize = 16;
/// No container waits longer for a slot: its grace period has begun.
const MAX_CONTAINER_WAIT: Duration = Duration::from_millis(900);
/// No sandbox waits longer for a slot: those before it may all hang.
pub(super) const MAX_SANDBOX_WAIT: Duration = Duration::from_secs(10);
/// A container that takes longer uses its grace period, and needs nothing from the runtime meanwhile.
const MAX_CONTAINER_HOLD: Duration = Duration::from_millis(200);
/// A sandbox that takes longer may hang, such as in a network plugin, and must not delay others.
const MAX_SANDBOX_HOLD: Duration = Duration::from_secs(2);

/// Slots for the stops of all pods of this node. First come, first served.
#[derive(Debug)]
pub struct StopThrottle {
    containers: Arc<Semaphore>,
    sandboxes: Arc<Semaphore>,
}

/// The slot of one stop.
#[derive(Debug)]
pub(super) struct StopSlot {
    /// `None` if the stop has begun without one.
    permit: Option<OwnedSemaphorePermit>,
    max_hold: Duration,
}

// === impl StopThrottle ===

impl StopThrottle {
    /// The throttle of a node with this number of processors.
    pub fn new(processors: usize) -> Self {
        let slots = processors.saturating_mul(PER_PROCESSOR).clamp(1, MAX_SLOTS);
        Self {
            containers: Arc::new(Semaphore::new(slots)),
            sandboxes: Arc::new(Semaphore::new(slots)),
        }
    }

    /// Waits for the slot of a container until one is free, this time has come or [`MAX_CONTAINER_WAIT`] has passed.
    pub(super) async fn acquire_for_container(&self, no_later_than: Instant) -> StopSlot {
        let latest = no_later_than.min(Instant::now() + MAX_CONTAINER_WAIT);
        StopSlot {
            permit: acquire(&self.containers, latest).await,
            max_hold: MAX_CONTAINER_HOLD,
        }
    }

    /// Waits for the slot of a sandbox until one is free or `max_wait` has passed.
    pub(super) async fn acquire_for_sandbox(&self, max_wait: Duration) -> StopSlot {
        StopSlot {
            permit: acquire(&self.sandboxes, Instant::now() + max_wait).await,
            max_hold: MAX_SANDBOX_HOLD,
        }
    }
}

async fn acquire(slots: &Arc<Semaphore>, latest: Instant) -> Option<OwnedSemaphorePermit> {
    tokio::select! {
        biased;
        permit = Arc::clone(slots).acquire_owned() => permit.ok(),
        () = sleep_until(latest) => None,
    }
}

// === impl StopSlot ===

impl StopSlot {
    /// Makes the call. The slot is free when the call is answered or takes long.
    pub(super) async fn run<T>(self, call: impl Future<Output = T>) -> T {
        let Self { permit, max_hold } = self;
        tokio::pin!(call);
        match timeout(max_hold, &mut call).await {
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
            let slot = throttle.acquire_for_container(start + LONG).await;
            let began = start.elapsed().as_millis();
            slot.run(sleep(takes)).await;
            began
        };
        join_all((0..count).map(|_| one())).await
    }

    #[tokio::test(start_paused = true)]
    async fn stops_begin_in_order_and_none_waits_longer_than_its_limit() {
        let throttle = StopThrottle::new(1);
        let begins = containers(&throttle, 100, Duration::from_millis(100)).await;
        assert_eq!(begins[..6], [0, 0, 100, 100, 200, 200]);
        assert!(
            begins[20..]
                .iter()
                .all(|begin| *begin == MAX_CONTAINER_WAIT.as_millis()),
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
        let _first = throttle.acquire_for_container(Instant::now()).await;
        let _second = throttle.acquire_for_container(Instant::now()).await;
        for (time, waits) in [(0, 0), (300, 300), (30_000, 900)] {
            let start = Instant::now();
            let slot = throttle
                .acquire_for_container(start + Duration::from_millis(time))
                .await;
            assert_eq!((start.elapsed().as_millis(), slot.permit.is_some()), (waits, false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sandboxes_are_stopped_in_their_order_and_those_that_hang_delay_others_only_briefly() {
        let second = Duration::from_secs(1);
        for (takes, expected) in [
            (&[LONG, second, second, second, second][..], &[0, 0, 1, 2, 2][..]),
            (&[LONG; 14], &[0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 10, 10]),
        ] {
            let throttle = StopThrottle::new(1);
            let start = Instant::now();
            let one = async |takes| {
                let slot = throttle.acquire_for_sandbox(MAX_SANDBOX_WAIT).await;
                let began = start.elapsed().as_secs();
                slot.run(sleep(takes)).await;
                began
            };
            let begins = join_all(takes.iter().map(|takes| one(*takes))).await;
            assert_eq!(begins, expected);
        }
    }

    #[test]
    fn slots_follow_the_processors_up_to_a_limit() {
        let slots = |processors| StopThrottle::new(processors).sandboxes.available_permits();
        assert_eq!([0, 1, 2, 8, 128].map(slots), [1, 2, 4, 16, 16]);
    }
}
