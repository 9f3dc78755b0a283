//! Lets work that nobody waits for step back while pods are waiting to be gone.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::timeout,
};

/// Clean-up waits at most so long: a node on which pods end all day must be cleaned, too.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Pods cleaned up at one time: each costs the runtime as much as a stop.
const AT_ONCE: usize = 4;

/// Counts those who are waited for.
#[derive(Debug, Clone)]
pub struct Quiet {
    urgent: Arc<watch::Sender<usize>>,
    places: Arc<Semaphore>,
}

/// Held while a pod is waited for.
#[derive(Debug)]
pub struct Urgent(Arc<watch::Sender<usize>>);

// === impl Quiet ===

impl Default for Quiet {
    fn default() -> Self {
        Self {
            urgent: Arc::new(watch::Sender::new(0)),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl Quiet {
    /// Somebody waits from now on until the guard is dropped.
    pub fn urgent(&self) -> Urgent {
        self.urgent.send_modify(|count| *count += 1);
        Urgent(Arc::clone(&self.urgent))
    }

    /// Returns when nobody has to wait, or after a while all the same. The place is held until it is dropped.
    pub async fn place(&self) -> Option<SemaphorePermit<'_>> {
        let mut urgent = self.urgent.subscribe();
        // Neither the time-out nor a closed channel changes what has to be done.
        timeout(MAX_WAIT, urgent.wait_for(|count| *count == 0)).await.ok();
        self.places.acquire().await.ok()
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clean_up_waits_until_nobody_is_waited_for() {
        let quiet = Quiet::default();
        let urgent = quiet.urgent();
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(urgent);
        });
        let _place = quiet.place().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn clean_up_does_not_wait_for_ever() {
        let quiet = Quiet::default();
        let _urgent = quiet.urgent();
        let start = Instant::now();
        let _place = quiet.place().await;
        assert_eq!(start.elapsed(), MAX_WAIT);
    }
}
