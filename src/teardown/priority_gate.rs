//! Priority gate: pods whose objects are deleted are stopped before others when the gate opens. Controllers assume that nothing of
//! them runs, and may attach their volumes elsewhere.

use std::time::Duration;

use tokio::{sync::watch, time::timeout};

/// Longest wait of a pod without priority: by then a container with the shortest grace period has exited.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Counts the pods with priority.
#[derive(Debug, Clone, Default)]
pub struct PriorityGate(watch::Sender<usize>);

/// A pod has priority until this is dropped.
#[derive(Debug)]
pub struct Priority(watch::Sender<usize>);

// === impl PriorityGate ===

impl PriorityGate {
    /// Gives a pod priority until the result is dropped.
    pub fn enter(&self) -> Priority {
        self.0.send_modify(|count| *count += 1);
        Priority(self.0.clone())
    }

    /// Returns when no pod has priority, at the latest after 5 s.
    pub async fn wait(&self) {
        timeout(MAX_WAIT, self.0.subscribe().wait_for(|count| *count == 0))
            .await
            .ok();
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pod_without_priority_waits_for_all_pods_with_priority() {
        let gate = PriorityGate::default();
        for seconds in [1, 3] {
            let priority = gate.enter();
            tokio::spawn(async move {
                sleep(Duration::from_secs(seconds)).await;
                drop(priority);
            });
        }
        let start = Instant::now();
        gate.wait().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        gate.wait().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn pod_with_priority_that_cannot_be_stopped_delays_others_for_a_limited_time() {
        let gate = PriorityGate::default();
        let _priority = gate.enter();
        let start = Instant::now();
        gate.wait().await;
        assert_eq!(start.elapsed(), MAX_WAIT);
    }
}
