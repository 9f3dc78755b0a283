//! The gate in front of every change to the node and the API.

use std::{fmt, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::sync::Notify;

use super::{
    checkpoint,
    threads::{Blocking, NotDone, Threads},
    unmounts::{ForceUnmount, UnmountBackend, Unmounting},
};
use crate::model::failure::{BLOCKED, Reasoned};

/// Called before every effect. An error blocks the effect.
pub type EffectGate = Arc<dyn Fn() -> Result<(), EffectsBlocked> + Send + Sync>;

/// Why effects are blocked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("blocked: {reason}")]
pub struct EffectsBlocked {
    /// The reason, for the user.
    pub reason: String,
}

/// A change that is about to be made.
#[derive(Clone, Copy)]
pub struct Effect<'a> {
    /// The action, such as `unmount`.
    pub verb: &'static str,
    /// What it changes: a path, a process, an ID.
    pub target: &'a dyn fmt::Debug,
}

/// Result of an effect that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The change was made.
    Done,
    /// There was nothing to change.
    Nothing,
}

/// Decides whether effects happen: not while the gate is shut.
#[derive(Clone)]
pub struct Effects {
    gate: EffectGate,
    /// Notified when the gate may have shut during an effect.
    block_signal: Arc<Notify>,
    threads: Threads,
    unmounting: Unmounting,
}

// === impl Effect ===

impl<'a> Effect<'a> {
    /// The effect `verb` on `target`.
    pub fn new(verb: &'static str, target: &'a dyn fmt::Debug) -> Self {
        Self { verb, target }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Result of two effects: `Done` if either was.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Done, _) | (_, Self::Done) => Self::Done,
            (Self::Nothing, Self::Nothing) => Self::Nothing,
        }
    }
}

// === impl Effects ===

impl Effects {
    /// Effects behind `gate`.
    pub fn new(gate: EffectGate) -> Self {
        Self {
            gate,
            block_signal: Arc::default(),
            threads: Threads::default(),
            unmounting: Unmounting::default(),
        }
    }

    /// Sets the signal that is notified when the gate may have shut.
    #[must_use]
    pub fn with_block_signal(self, block_signal: Arc<Notify>) -> Self {
        Self { block_signal, ..self }
    }

    /// Sets the threads for blocking work.
    #[must_use]
    pub fn with_threads(self, threads: Threads) -> Self {
        Self { threads, ..self }
    }

    /// Sets how unmounts are executed.
    #[must_use]
    pub fn with_unmount_backend(mut self, unmounts: UnmountBackend) -> Self {
        self.unmounting.backend = unmounts;
        self
    }

    /// Sets when unmounts are forced.
    #[must_use]
    pub fn with_force_unmount(mut self, force: ForceUnmount) -> Self {
        self.unmounting.force = force;
        self
    }

    /// Sets how long an unmount may take before it counts as hanging.
    #[must_use]
    pub fn with_call_timeout(mut self, call_timeout: Duration) -> Self {
        self.unmounting.call_timeout = call_timeout;
        self
    }

    /// Settings of unmounts, and those that hang.
    pub fn unmounting(&self) -> &Unmounting {
        &self.unmounting
    }

    /// Effects that are always refused, on threads of their own: a read that hangs takes no thread from work on pods.
    #[must_use]
    pub fn refusing(&self, reason: &'static str, threads: Threads) -> Self {
        let refuse = move || {
            Err(EffectsBlocked {
                reason: reason.to_owned(),
            })
        };
        Self {
            gate: Arc::new(refuse),
            threads: threads.with_blocking(self.threads.blocking()),
            ..self.clone()
        }
    }

    /// No effects: for what only reads.
    pub fn none() -> Self {
        Self::new(Arc::new(|| {
            Err(EffectsBlocked {
                reason: "this command changes nothing".to_owned(),
            })
        }))
    }

    /// Effects that are always allowed, for tests and tools.
    pub fn ungated() -> Self {
        Self::new(Arc::new(|| Ok(())))
    }

    /// Allows `what` to be done now. The caller reports its completion to [`checkpoint::after`].
    pub fn allow(&self, what: &Effect<'_>) -> Result<(), EffectsBlocked> {
        self.check()?;
        checkpoint::before(what.verb, what.target);
        Ok(())
    }

    /// How blocking work is executed.
    pub fn blocking(&self) -> Blocking {
        self.threads.blocking()
    }

    /// Runs blocking work with these effects, when a thread is free.
    pub fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, NotDone>> {
        let effects = self.clone();
        self.threads.run_blocking(move || work(&effects))
    }

    /// Polls `work`, and asks the gate before each poll. Does not notice by itself that the gate blocks. What an
    /// interrupted `work` did is unknown.
    pub async fn run_checked<F: Future>(&self, work: F) -> Result<F::Output, EffectsBlocked> {
        tokio::pin!(work);
        poll_fn(|context| match self.check() {
            Ok(()) => work.as_mut().poll(context).map(Ok),
            Err(blocked) => Poll::Ready(Err(blocked)),
        })
        .await
    }

    /// Polls `work`, and drops it as soon as the gate blocks, since a kubelet may be about to do the same.
    pub async fn run_until_blocked<F: Future>(&self, work: F) -> Result<F::Output, EffectsBlocked> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            blocked = self.wait_until_blocked() => Err(blocked),
        }
    }

    /// Returns when the gate is shut, with the reason.
    pub async fn wait_until_blocked(&self) -> EffectsBlocked {
        loop {
            let block_signal = self.block_signal.notified();
            if let Err(blocked) = self.check() {
                return blocked;
            }
            block_signal.await;
        }
    }

    /// Whether an effect may begin or continue. Called between the parts of a long one.
    pub fn check(&self) -> Result<(), EffectsBlocked> {
        (self.gate)()
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects").finish_non_exhaustive()
    }
}

impl Reasoned for EffectsBlocked {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        BLOCKED.into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn shut_gate_blocks_the_next_effect() {
        let shut = Arc::new(AtomicBool::new(false));
        let blocked = EffectsBlocked {
            reason: "a kubelet is here".into(),
        };
        let (seen, answer) = (shut.clone(), blocked.clone());
        let effects = Effects::new(Arc::new(move || match seen.load(Ordering::Relaxed) {
            true => Err(answer.clone()),
            false => Ok(()),
        }));
        assert_eq!(effects.allow(&Effect::new("kill", &7)), Ok(()));
        shut.store(true, Ordering::Relaxed);
        assert_eq!(effects.allow(&Effect::new("kill", &7)), Err(blocked.clone()));
        assert_eq!(effects.check(), Err(blocked));
    }

    #[tokio::test]
    async fn effect_in_flight_is_dropped_when_the_gate_shuts() {
        let (shut, block_signal) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let is_shut = Arc::clone(&shut);
        let gate = move || {
            let reason = "a kubelet is here".to_owned();
            if is_shut.load(Ordering::Relaxed) {
                Err(EffectsBlocked { reason })
            } else {
                Ok(())
            }
        };
        let effects = Effects::new(Arc::new(gate)).with_block_signal(Arc::clone(&block_signal));
        assert_eq!(effects.run_until_blocked(async { 7 }).await, Ok(7));
        let tell = async {
            block_signal.notify_waiters();
            tokio::task::yield_now().await;
            shut.store(true, Ordering::Relaxed);
            block_signal.notify_waiters();
        };
        let (blocked, ()) = tokio::join!(effects.run_until_blocked(std::future::pending::<()>()), tell);
        assert!(blocked.is_err());
    }
}
