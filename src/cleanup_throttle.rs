//! Cleanup throttle: delays the cleanup of terminated pods while other pods are being stopped.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    time::{Instant, sleep_until, timeout},
};

/// Longest delay of a cleanup: a node on which pods terminate all day must be cleaned up, too.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Without progress for this long, the stopping pods only wait, such as for a grace period to expire.
const MAX_STALL: Duration = Duration::from_secs(1);
/// Pods cleaned up at the same time: a cleanup costs the runtime as much as a stop.
const MAX_CLEANUPS: usize = 4;

/// Counts the pods that are being stopped.
#[derive(Debug, Clone)]
pub struct CleanupThrottle {
    state: Arc<Mutex<StopCounts>>,
    /// Notifies waiting cleanups, in order, when no pod is being stopped.
    idle: Arc<Notify>,
    permits: Arc<Semaphore>,
}

#[derive(Debug, Clone, Copy)]
struct StopCounts {
    stopping: usize,
    progressed: Instant,
}

/// A pod is being stopped until this is dropped.
#[derive(Debug)]
pub struct StoppingPod(CleanupThrottle);

// === impl CleanupThrottle ===

impl Default for CleanupThrottle {
    fn default() -> Self {
        let state = StopCounts {
            stopping: 0,
            progressed: Instant::now(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(MAX_CLEANUPS)),
        }
    }
}

impl CleanupThrottle {
    /// A pod is being stopped from now on.
    pub fn stopping_pod(&self) -> StoppingPod {
        self.change(|state| state.stopping += 1);
        StoppingPod(self.clone())
    }

    /// The stop of a pod has made progress.
    pub fn progressed(&self) {
        self.change(|_| ());
    }

    /// Waits until no pod is being stopped, none makes progress, or [`MAX_WAIT`] has passed. Returns a permit for one cleanup.
    pub async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        timeout(MAX_WAIT, self.wait_for_stops()).await.ok();
        self.permits.acquire().await.ok()
    }

    async fn wait_for_stops(&self) {
        loop {
            // Before the check, so that no notification is missed.
            let idle = self.idle.notified();
            let StopCounts { stopping, progressed } = *self.state();
            if stopping == 0 || Instant::now() >= progressed + MAX_STALL {
                return;
            }
            // Progress notifies nothing: it is too frequent.
            tokio::select! {
                biased;
                () = idle => {}
                () = sleep_until(progressed + MAX_STALL) => {}
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut StopCounts)) {
        let mut state = self.state();
        change(&mut state);
        state.progressed = Instant::now();
        if state.stopping == 0 {
            self.idle.notify_waiters();
        }
    }

    fn state(&self) -> MutexGuard<'_, StopCounts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StoppingPod {
    fn drop(&mut self) {
        self.0.change(|state| state.stopping -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn cleanup_waits_while_other_pods_make_progress() {
        let cleanup_throttle = CleanupThrottle::default();
        let stopping = cleanup_throttle.stopping_pod();
        let start = Instant::now();
        let throttle = cleanup_throttle.clone();
        tokio::spawn(async move {
            for _ in 0..6 {
                tokio::time::sleep(MAX_STALL / 2).await;
                throttle.progressed();
            }
            drop(stopping);
        });
        let _permit = cleanup_throttle.permit().await;
        assert_eq!(start.elapsed(), 3 * MAX_STALL);
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_waits_for_its_grace_period_delays_no_cleanup() {
        let cleanup_throttle = CleanupThrottle::default();
        let _stopping = cleanup_throttle.stopping_pod();
        let start = Instant::now();
        let _permit = cleanup_throttle.permit().await;
        assert_eq!(start.elapsed(), MAX_STALL);
    }

    #[tokio::test(start_paused = true)]
    async fn cleanup_waits_at_most_the_maximum() {
        let cleanup_throttle = CleanupThrottle::default();
        let _stopping = cleanup_throttle.stopping_pod();
        let throttle = cleanup_throttle.clone();
        let start = Instant::now();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(MAX_STALL / 2).await;
                throttle.progressed();
            }
        });
        let _permit = cleanup_throttle.permit().await;
        assert_eq!(start.elapsed(), MAX_WAIT);
    }
}
