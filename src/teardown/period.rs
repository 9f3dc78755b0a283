//! The grace period of one pod while it runs. It begins with the first thing that is done to the pod: a node that is busy
//! or a runtime that is away takes nothing of it. Once begun it only gets shorter.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

/// See the module's documentation.
#[derive(Debug)]
pub struct Period {
    state: Mutex<State>,
    deadline: watch::Sender<Instant>,
}

#[derive(Debug)]
struct State {
    grace: Duration,
    began: Instant,
    /// Before this run of the agent.
    used_before: Duration,
    has_begun: bool,
}

// === impl Period ===

impl Period {
    /// One that has yet to begin.
    pub fn new(grace: Duration) -> Self {
        Self::of(grace, Duration::ZERO, false)
    }

    /// One of which an earlier run of this agent has used so much.
    pub fn resumed(grace: Duration, used_before: Duration) -> Self {
        Self::of(grace, used_before, true)
    }

    fn of(grace: Duration, used_before: Duration, has_begun: bool) -> Self {
        let state = State {
            grace,
            began: Instant::now(),
            used_before,
            has_begun,
        };
        Self {
            deadline: watch::Sender::new(state.deadline()),
            state: Mutex::new(state),
        }
    }

    /// How long it is.
    pub fn grace(&self) -> Duration {
        self.lock().grace
    }

    /// When it is over; as long as it has not begun, as if it did now.
    pub fn deadline(&self) -> Instant {
        *self.deadline.borrow()
    }

    /// When it is over, if it has begun.
    pub fn end(&self) -> Option<Instant> {
        let state = self.lock();
        state.has_begun.then(|| state.deadline())
    }

    /// The deadline, wherever it moves.
    pub fn subscribe(&self) -> watch::Receiver<Instant> {
        self.deadline.subscribe()
    }

    /// Whether anything was done to the pod yet.
    pub fn has_begun(&self) -> bool {
        self.lock().has_begun
    }

    /// Something is about to be done to the pod. `true` the first time.
    pub fn begins(&self) -> bool {
        let mut state = self.lock();
        let first = !state.has_begun;
        if first {
            (state.has_begun, state.began) = (true, Instant::now());
            self.deadline.send_replace(state.deadline());
        }
        first
    }

    /// A shorter period takes effect at once, and a longer one not at all: then `false`.
    pub fn shorten(&self, grace: Duration) -> bool {
        let mut state = self.lock();
        let shorter = grace < state.grace;
        if shorter {
            state.grace = grace;
            self.deadline.send_replace(state.deadline());
        }
        shorter
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn deadline(&self) -> Instant {
        self.began + self.grace.saturating_sub(self.used_before)
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
    async fn it_begins_with_the_first_thing_that_is_done_and_only_once() {
        let period = Period::new(secs(30));
        advance(secs(100)).await;
        assert!(period.begins());
        let deadline = period.deadline();
        assert_eq!(deadline, Instant::now() + secs(30));
        advance(secs(10)).await;
        assert!(!period.begins());
        assert_eq!(period.deadline(), deadline);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_used_before_counts_and_it_does_not_begin_again() {
        let period = Period::resumed(secs(30), secs(20));
        advance(secs(4)).await;
        assert!(!period.begins());
        assert_eq!(period.deadline(), Instant::now() + secs(6));
        let late = Period::resumed(secs(30), secs(60));
        assert_eq!(late.deadline(), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn it_only_gets_shorter() {
        let period = Period::new(secs(30));
        assert!(period.begins() && !period.shorten(secs(40)) && !period.shorten(secs(30)));
        advance(secs(5)).await;
        assert!(period.shorten(secs(12)));
        assert_eq!(
            (period.grace(), period.deadline()),
            (secs(12), Instant::now() + secs(7))
        );
    }
}
