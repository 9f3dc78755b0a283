//! Lets work that nobody waits for step back while pods are waiting to be gone.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    time::{Instant, sleep_until, timeout},
};

/// Clean-up waits at most so long: a node on which pods end all day must be cleaned, too.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// When nothing has gone forward for so long, those who are waited for wait themselves: for the end of a grace period.
const LULL: Duration = Duration::from_secs(1);
/// Pods cleaned up at one time: each costs the runtime as much as a stop.
const AT_ONCE: usize = 4;

/// Counts those who are waited for.
#[derive(Debug, Clone)]
pub struct Quiet {
    busy: Arc<Mutex<Busy>>,
    /// Wakes those who wait, in the order in which they came, once nobody is waited for.
    idle: Arc<Notify>,
    places: Arc<Semaphore>,
}

#[derive(Debug, Clone, Copy)]
struct Busy {
    urgent: usize,
    moved: Instant,
}

/// Held while a pod is waited for.
#[derive(Debug)]
pub struct Urgent(Quiet);

// === impl Quiet ===

impl Default for Quiet {
    fn default() -> Self {
        let busy = Busy {
            urgent: 0,
            moved: Instant::now(),
        };
        Self {
            busy: Arc::new(Mutex::new(busy)),
            idle: Arc::default(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl Quiet {
    /// Somebody waits from now on until the guard is dropped.
    pub fn urgent(&self) -> Urgent {
        self.change(|busy| busy.urgent += 1);
        Urgent(self.clone())
    }

    /// Something that is waited for went a step forward.
    pub fn moved(&self) {
        self.change(|_| ());
    }

    /// Returns when nobody has to wait, or all of them wait for something else, or after a while all the same. The place
    /// is held until it is dropped.
    pub async fn place(&self) -> Option<SemaphorePermit<'_>> {
        // What has to be done has to be done, also when the wait was too long.
        timeout(MAX_WAIT, self.lull()).await.ok();
        self.places.acquire().await.ok()
    }

    async fn lull(&self) {
        loop {
            // Before the look, so that nothing is missed in between.
            let idle = self.idle.notified();
            let Busy { urgent, moved } = *self.busy();
            if urgent == 0 || Instant::now() >= moved + LULL {
                return;
            }
            // Whoever moves wakes nobody: they would be as many as those who wait.
            tokio::select! {
                biased;
                () = idle => {}
                () = sleep_until(moved + LULL) => {}
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Busy)) {
        let mut busy = self.busy();
        change(&mut busy);
        busy.moved = Instant::now();
        if busy.urgent == 0 {
            self.idle.notify_waiters();
        }
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.change(|busy| busy.urgent -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clean_up_waits_while_others_go_forward_and_until_nobody_is_waited_for() {
        let quiet = Quiet::default();
        let urgent = quiet.urgent();
        let start = Instant::now();
        let others = quiet.clone();
        tokio::spawn(async move {
            for _ in 0..6 {
                tokio::time::sleep(LULL / 2).await;
                others.moved();
            }
            drop(urgent);
        });
        let _place = quiet.place().await;
        assert_eq!(start.elapsed(), 3 * LULL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_waits_out_its_grace_holds_up_no_clean_up() {
        let quiet = Quiet::default();
        let _urgent = quiet.urgent();
        let start = Instant::now();
        let _place = quiet.place().await;
        assert_eq!(start.elapsed(), LULL);
    }

    #[tokio::test(start_paused = true)]
    async fn clean_up_does_not_wait_for_ever() {
        let quiet = Quiet::default();
        let _urgent = quiet.urgent();
        let others = quiet.clone();
        let start = Instant::now();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LULL / 2).await;
                others.moved();
            }
        });
        let _place = quiet.place().await;
        assert_eq!(start.elapsed(), MAX_WAIT);
    }
}
