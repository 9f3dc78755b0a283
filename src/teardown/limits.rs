//! Which pods are stopped first, and on how many calls the container runtime works at the same time.
//!
//! A runtime that gets the stops of all pods of a node together works on all of them, and nearly all pods terminate late. With a
//! limit the first pods terminate early, and the last one at about the same time.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// Stops per processor of this node. Most of a stop's time is work of the runtime's processes.
const PER_PROCESSOR: usize = 2;
/// Most stops at the same time: locks of the kernel, such as those of networks and cgroups, admit one at a time.
const MAX_STOPS: usize = 16;
/// Pods cleaned up at the same time: a cleanup costs the runtime as much as a stop.
const MAX_CLEANUPS: usize = 4;
/// Longest wait for pods whose objects are gone: by then a container with the shortest grace period has exited.
const MAX_WAIT_FOR_GONE: Duration = Duration::from_secs(5);

/// The limits of all pods of this node.
#[derive(Debug)]
pub struct Limits {
    /// When the gate opens, pods whose objects are gone are stopped before all others: controllers assume that nothing of them
    /// runs, and may attach their volumes elsewhere.
    pub(super) gone_first: TaskTracker,
    /// Stops of containers. None waits long: its grace period has begun. One that takes longer uses its grace period, and needs
    /// nothing from the runtime meanwhile.
    pub(super) containers: Limit,
    /// Stops of sandboxes. None waits long: those before it may all hang, such as in a network plugin.
    pub(super) sandboxes: Limit,
    /// Removals of containers, sandboxes and logs. They wait: the stops of other pods are more urgent.
    pub(super) cleanups: Limit,
}

/// Others wait for this pod until this is dropped.
pub(super) type StoppedFirst = TaskTrackerToken;

/// A limit for one kind of work. First come, first served.
#[derive(Debug)]
pub(super) struct Limit {
    slots: Arc<Semaphore>,
    max_wait: Duration,
    max_hold: Duration,
}

/// The slot of one call.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None` if the call has begun without one.
    permit: Option<OwnedSemaphorePermit>,
    max_hold: Duration,
}

// === impl Limits ===

impl Limits {
    /// The limits of a node with this number of processors.
    pub fn new(processors: usize) -> Self {
        let stops = processors.saturating_mul(PER_PROCESSOR).clamp(1, MAX_STOPS);
        let gone_first = TaskTracker::new();
        // Only a closed one can be waited for.
        gone_first.close();
        Self {
            gone_first,
            containers: Limit::new(stops, Duration::from_millis(900), Duration::from_millis(200)),
            sandboxes: Limit::new(stops, Duration::from_secs(10), Duration::from_secs(2)),
            cleanups: Limit::new(MAX_CLEANUPS, Duration::from_secs(24 * 3600), Duration::from_secs(5)),
        }
    }

    /// Waits until all pods whose objects are gone are stopped, at most 5 s. Waiters wake in the order in which they came.
    pub(super) async fn wait_for_gone(&self) {
        timeout(MAX_WAIT_FOR_GONE, self.gone_first.wait()).await.ok();
    }
}

// === impl Limit ===

impl Limit {
    fn new(slots: usize, max_wait: Duration, max_hold: Duration) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots)),
            max_wait,
            max_hold,
        }
    }

    /// Waits for a slot until one is free or the kind's longest wait has passed.
    pub(super) async fn acquire(&self) -> Slot {
        self.acquire_by(Instant::now() + self.max_wait).await
    }

    /// As [`Self::acquire`], but no longer than until this time.
    pub(super) async fn acquire_by(&self, no_later_than: Instant) -> Slot {
        let latest = no_later_than.min(Instant::now() + self.max_wait);
        let permit = timeout_at(latest, Arc::clone(&self.slots).acquire_owned()).await;
        Slot {
            permit: permit.ok().and_then(Result::ok),
            max_hold: self.max_hold,
        }
    }
}

// === impl Slot ===

impl Slot {
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

    /// Milliseconds after which each of these calls begins, which take so long.
    async fn begins(limit: &Limit, calls: &[Duration]) -> Vec<u128> {
        let start = Instant::now();
        let one = async |takes| {
            let slot = limit.acquire_by(start + LONG).await;
            let began = start.elapsed().as_millis();
            slot.run(sleep(takes)).await;
            began
        };
        join_all(calls.iter().map(|takes| one(*takes))).await
    }

    #[tokio::test(start_paused = true)]
    async fn calls_begin_in_order_and_those_that_hang_delay_others_only_briefly() {
        let second = Duration::from_secs(1);
        let Limits {
            containers, sandboxes, ..
        } = Limits::new(1);
        for (limit, calls, expected) in [
            (
                &containers,
                &[Duration::from_millis(100); 6][..],
                &[0, 0, 100, 100, 200, 200][..],
            ),
            (&containers, &[LONG; 4], &[0, 0, 200, 200]),
            (
                &containers,
                &[LONG; 12],
                &[0, 0, 200, 200, 400, 400, 600, 600, 800, 800, 900, 900],
            ),
            (
                &sandboxes,
                &[LONG, second, second, second, second],
                &[0, 0, 1000, 2000, 2000],
            ),
        ] {
            assert_eq!(begins(limit, calls).await, expected, "{calls:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn call_without_time_does_not_wait() {
        let limit = Limits::new(1).containers;
        let _first = limit.acquire().await;
        let _second = limit.acquire().await;
        for (time, waits) in [(0, 0), (300, 300), (30_000, 900)] {
            let start = Instant::now();
            let slot = limit.acquire_by(start + Duration::from_millis(time)).await;
            assert_eq!((start.elapsed().as_millis(), slot.permit.is_some()), (waits, false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn others_wait_until_pods_whose_objects_are_gone_are_stopped_but_no_longer_than_5_s() {
        let limits = Limits::new(1);
        for (stopped_after, waits) in [(&[][..], 0), (&[1, 3], 3), (&[30], 5)] {
            for seconds in stopped_after {
                let pod = limits.gone_first.token();
                tokio::spawn(async move {
                    sleep(Duration::from_secs(*seconds)).await;
                    drop(pod);
                });
            }
            let start = Instant::now();
            limits.wait_for_gone().await;
            assert_eq!(start.elapsed(), Duration::from_secs(waits), "{stopped_after:?}");
        }
    }

    #[test]
    fn slots_follow_the_processors_up_to_a_limit() {
        let slots = |processors| Limits::new(processors).sandboxes.slots.available_permits();
        assert_eq!([0, 1, 2, 8, 128].map(slots), [1, 2, 4, 16, 16]);
    }
}
