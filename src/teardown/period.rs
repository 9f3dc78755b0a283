//! The running grace period of one pod. It begins with the first effect: a busy node or an unreachable runtime does not use it
//! up. Once begun it only gets shorter.

use std::time::Duration;

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
pub struct Period(watch::Sender<RunningPeriod>);

/// The state of a grace period.
#[derive(Debug)]
pub struct RunningPeriod {
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
        Self(watch::Sender::new(RunningPeriod {
            grace,
            began: Instant::now(),
            used_before: used_before.unwrap_or_default(),
            has_begun: used_before.is_some(),
        }))
    }

    /// Length.
    pub fn grace(&self) -> Duration {
        self.0.borrow().grace
    }

    /// See [`RunningPeriod::deadline`].
    pub fn deadline(&self) -> Instant {
        self.0.borrow().deadline()
    }

    /// The deadline, if it has begun.
    pub fn end(&self) -> Option<Instant> {
        let state = self.0.borrow();
        state.has_begun.then(|| state.deadline())
    }

    /// Notifies of changes of the deadline.
    pub fn subscribe(&self) -> watch::Receiver<RunningPeriod> {
        self.0.subscribe()
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.0.borrow().has_begun
    }

    /// Begins the period. `true` the first time.
    pub fn begin(&self) -> bool {
        self.0.send_if_modified(|state| {
            let first = !state.has_begun;
            if first {
                (state.has_begun, state.began) = (true, Instant::now());
            }
            first
        })
    }

    /// Shortens the period at once. `false` if it is not longer than `grace`.
    pub fn shorten(&self, grace: Duration) -> bool {
        self.0.send_if_modified(|state| {
            let shorter = grace < state.grace;
            state.grace = grace.min(state.grace);
            shorter
        })
    }
}

// === impl RunningPeriod ===

impl RunningPeriod {
    /// The deadline. Before the period begins: the deadline if it began now.
    pub fn deadline(&self) -> Instant {
        self.began + self.grace.saturating_sub(self.used_before)
    }
}

/// Returns when the deadline has passed, even if it changes meanwhile.
pub async fn wait_for_deadline(mut period: watch::Receiver<RunningPeriod>) {
    loop {
        let at = period.borrow_and_update().deadline();
        tokio::select! {
            // It only becomes earlier: a passed deadline stays passed.
            biased;
            () = sleep_until(at) => return,
            changed = period.changed() => if changed.is_err() {
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
