//! The running grace period of one pod. It begins with the first effect: a busy node or an unreachable runtime does not use it
//! up. Once begun it only gets shorter.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Shortest timeout of a stop: with less a container could not react to its signal.
pub(super) const MIN_STOP: Duration = Duration::from_secs(2);
/// Time until a container that is stopped with the shortest timeout gets its SIGKILL.
pub const AFTER_KILL: Duration = MIN_STOP.saturating_add(Duration::from_secs(1));

/// A pod's grace period.
#[derive(Debug)]
pub struct Period {
    state: Mutex<RunningPeriod>,
    deadline: watch::Sender<Instant>,
}

#[derive(Debug)]
struct RunningPeriod {
    grace: Duration,
    began: Instant,
    /// Time used before this run of the agent.
    used_before: Duration,
    has_begun: bool,
}

// === impl Period ===

impl Period {
    /// `used_before`: what has passed of it, if it began in an earlier run of the agent.
    pub fn new(grace: Duration, used_before: Option<Duration>) -> Self {
        let state = RunningPeriod {
            grace,
            began: Instant::now(),
            used_before: used_before.unwrap_or_default(),
            has_begun: used_before.is_some(),
        };
        Self {
            deadline: watch::Sender::new(state.deadline()),
            state: Mutex::new(state),
        }
    }

    /// Length.
    pub fn grace(&self) -> Duration {
        self.lock().grace
    }

    /// The deadline. Before the period begins: the deadline if it began now.
    pub fn deadline(&self) -> Instant {
        *self.deadline.borrow()
    }

    /// The deadline, if it has begun.
    pub fn end(&self) -> Option<Instant> {
        let state = self.lock();
        state.has_begun.then(|| state.deadline())
    }

    /// Notifies of changes of the deadline.
    pub fn subscribe(&self) -> watch::Receiver<Instant> {
        self.deadline.subscribe()
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.lock().has_begun
    }

    /// Begins the period. `true` the first time.
    pub fn begin(&self) -> bool {
        let mut state = self.lock();
        let first = !state.has_begun;
        if first {
            (state.has_begun, state.began) = (true, Instant::now());
            self.deadline.send_replace(state.deadline());
        }
        first
    }

    /// Shortens the period at once. `false` if it is not longer than `grace`.
    pub fn shorten(&self, grace: Duration) -> bool {
        let mut state = self.lock();
        let shorter = grace < state.grace;
        if shorter {
            state.grace = grace;
            self.deadline.send_replace(state.deadline());
        }
        shorter
    }

    fn lock(&self) -> MutexGuard<'_, RunningPeriod> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl RunningPeriod ===

impl RunningPeriod {
    fn deadline(&self) -> Instant {
        self.began + self.grace.saturating_sub(self.used_before)
    }
}

/// Returns when the deadline has passed, even if it changes meanwhile.
pub async fn wait_for_deadline(mut deadline: watch::Receiver<Instant>) {
    loop {
        let at = *deadline.borrow_and_update();
        tokio::select! {
            // It only becomes earlier: a passed deadline stays passed.
            biased;
            () = sleep_until(at) => return,
            changed = deadline.changed() => if changed.is_err() {
                sleep_until(at).await;
                return;
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn grace_period_begins_once_with_the_first_effect() {
        let period = Period::new(secs(30), None);
        advance(secs(100)).await;
        assert!(period.begin());
        let deadline = period.deadline();
        assert_eq!(deadline, Instant::now() + secs(30));
        advance(secs(10)).await;
        assert!(!period.begin());
        assert_eq!(period.deadline(), deadline);
    }

    #[tokio::test(start_paused = true)]
    async fn resumed_grace_period_does_not_begin_again() {
        let period = Period::new(secs(30), Some(secs(20)));
        advance(secs(4)).await;
        assert!(!period.begin());
        assert_eq!(period.deadline(), Instant::now() + secs(6));
        let late = Period::new(secs(30), Some(secs(60)));
        assert_eq!(late.deadline(), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn grace_period_only_gets_shorter() {
        let period = Period::new(secs(30), None);
        assert!(period.begin() && !period.shorten(secs(40)) && !period.shorten(secs(30)));
        advance(secs(5)).await;
        assert!(period.shorten(secs(12)));
        assert_eq!(
            (period.grace(), period.deadline()),
            (secs(12), Instant::now() + secs(7))
        );
    }
}
