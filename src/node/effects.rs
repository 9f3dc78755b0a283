//! The one gate that every change to the world passes.

use std::{fmt, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::sync::Notify;

use super::{
    checkpoint,
    threads::{Blocking, NotDone, Threads},
    unmounts::{ForceUnmount, UnmountBackend, Unmounting},
};
use crate::model::failure::{HELD, Reasoned};

/// Asked before every effect; an error holds the effect back.
pub type EffectGate = Arc<dyn Fn() -> Result<(), EffectsBlocked> + Send + Sync>;

/// Why nothing may be changed at the moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("blocked: {reason}")]
pub struct EffectsBlocked {
    /// What stands in the way, for the operator.
    pub reason: String,
}

/// A change to the world that is about to be made.
#[derive(Clone, Copy)]
pub struct Effect<'a> {
    /// What is done, such as `unmount`.
    pub verb: &'static str,
    /// What it is done to: a path, a process, an id.
    pub target: &'a dyn fmt::Debug,
}

/// What became of an effect that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an effect that was withheld did not happen"]
pub enum Outcome {
    /// It was done.
    Done,
    /// There was nothing to do it to.
    Nothing,
    /// A dry run decided it and kept it back.
    Withheld,
}

/// Decides whether effects happen: not while the gate is shut, and never in a dry run.
#[derive(Clone)]
pub struct Effects {
    dry_run: bool,
    gate: EffectGate,
    /// Told when the gate may have shut on what is under way.
    shuts: Arc<Notify>,
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
    /// What became of two effects: what of any was done was done.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Done, _) | (_, Self::Done) => Self::Done,
            (Self::Withheld, _) | (_, Self::Withheld) => Self::Withheld,
            (Self::Nothing, Self::Nothing) => Self::Nothing,
        }
    }
}

// === impl Effects ===

impl Effects {
    /// Effects behind `gate`; in a dry run they are logged instead.
    pub fn new(dry_run: bool, gate: EffectGate) -> Self {
        Self {
            dry_run,
            gate,
            shuts: Arc::default(),
            threads: Threads::default(),
            unmounting: Unmounting::default(),
        }
    }

    /// The same, where somebody tells when the gate may have shut on what is under way.
    #[must_use]
    pub fn with_block_signal(self, shuts: Arc<Notify>) -> Self {
        Self { shuts, ..self }
    }

    /// The same, with work that blocks done there.
    #[must_use]
    pub fn with_threads(self, threads: Threads) -> Self {
        Self { threads, ..self }
    }

    /// The same, with unmounts done so.
    #[must_use]
    pub fn with_unmount_backend(mut self, unmounts: UnmountBackend) -> Self {
        self.unmounting.backend = unmounts;
        self
    }

    /// The same, with unmounts done by force then.
    #[must_use]
    pub fn with_force_unmount(mut self, force: ForceUnmount) -> Self {
        self.unmounting.force = force;
        self
    }

    /// The same, with unmounts waited for so long before they are said to hang.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.unmounting.patience = patience;
        self
    }

    /// How unmounts are done, and those that hang.
    pub fn unmounting(&self) -> &Unmounting {
        &self.unmounting
    }

    /// Effects that always happen: for tests and tools that answer for themselves.
    pub fn ungated() -> Self {
        Self::new(false, Arc::new(|| Ok(())))
    }

    /// Whether every effect is only logged.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Whether `what` is to be done now; `false` in a dry run, which logs it. Whoever does it then says so to
    /// [`checkpoint::after`].
    pub fn allow(&self, what: &Effect<'_>) -> Result<bool, EffectsBlocked> {
        let allowed = self.allow_unlogged()?;
        if allowed {
            checkpoint::before(what.verb, what.target);
        } else {
            tracing::info!(effect = what.verb, target_of_effect = ?what.target, "Dry run: not done");
        }
        Ok(allowed)
    }

    /// The same where whoever asks can tell more of it.
    pub fn allow_unlogged(&self) -> Result<bool, EffectsBlocked> {
        (self.gate)()?;
        Ok(!self.dry_run)
    }

    /// Where work that blocks is done.
    pub fn blocking(&self) -> Blocking {
        self.threads.blocking()
    }

    /// Does work with these effects that may block, when it is its turn.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let effects = self.clone();
        self.threads.run_blocking(move || work(&effects)).await
    }

    /// Goes on with what was allowed, and asks again before each step of it: whoever waits for a connection finds the gate
    /// shut when there is one. What was done by then is not known.
    pub async fn run_checked<F: Future>(&self, work: F) -> Result<F::Output, EffectsBlocked> {
        tokio::pin!(work);
        poll_fn(|context| match self.check() {
            Ok(()) => work.as_mut().poll(context).map(Ok),
            Err(held) => Poll::Ready(Err(held)),
        })
        .await
    }

    /// Goes on with what was allowed, and lets go of it as soon as the gate is shut: somebody else is about to do the same.
    pub async fn run_until_blocked<F: Future>(&self, work: F) -> Result<F::Output, EffectsBlocked> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            held = self.wait_until_blocked() => Err(held),
        }
    }

    /// Returns when the gate is shut, with the reason.
    pub async fn wait_until_blocked(&self) -> EffectsBlocked {
        loop {
            let shuts = self.shuts.notified();
            if let Err(held) = self.check() {
                return held;
            }
            shuts.await;
        }
    }

    /// Whether an effect that was allowed may go on; asked between the parts of a long one.
    pub fn check(&self) -> Result<(), EffectsBlocked> {
        (self.gate)()
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects")
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}

impl Reasoned for EffectsBlocked {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        HELD.into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_dry_run_allows_nothing() {
        let effects = Effects::new(true, Arc::new(|| Ok(())));
        assert_eq!(effects.allow(&Effect::new("unmount", &"/x")), Ok(false));
    }

    #[test]
    fn a_gate_that_shuts_holds_back_the_next_effect_also_in_a_dry_run() {
        let shut = Arc::new(AtomicBool::new(false));
        let held = EffectsBlocked {
            reason: "a kubelet is here".into(),
        };
        for dry_run in [false, true] {
            shut.store(false, Ordering::Relaxed);
            let (seen, answer) = (shut.clone(), held.clone());
            let effects = Effects::new(
                dry_run,
                Arc::new(move || {
                    if seen.load(Ordering::Relaxed) {
                        Err(answer.clone())
                    } else {
                        Ok(())
                    }
                }),
            );
            assert_eq!(effects.allow(&Effect::new("kill", &7)), Ok(!dry_run));
            shut.store(true, Ordering::Relaxed);
            assert_eq!(effects.allow(&Effect::new("kill", &7)), Err(held.clone()));
            assert_eq!(effects.check(), Err(held.clone()));
        }
    }

    #[tokio::test]
    async fn what_is_under_way_is_let_go_when_the_gate_shuts_and_somebody_tells() {
        let (shut, shuts) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let is_shut = Arc::clone(&shut);
        let gate = move || {
            let reason = "a kubelet is here".to_owned();
            if is_shut.load(Ordering::Relaxed) {
                Err(EffectsBlocked { reason })
            } else {
                Ok(())
            }
        };
        let effects = Effects::new(false, Arc::new(gate)).with_block_signal(Arc::clone(&shuts));
        assert_eq!(effects.run_until_blocked(async { 7 }).await, Ok(7));
        let tell = async {
            shuts.notify_waiters();
            tokio::task::yield_now().await;
            shut.store(true, Ordering::Relaxed);
            shuts.notify_waiters();
        };
        let (held, ()) = tokio::join!(effects.run_until_blocked(std::future::pending::<()>()), tell);
        assert!(held.is_err());
    }
}
