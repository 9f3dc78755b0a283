//! The gate in front of every change to the node and the API.

use std::{borrow::Cow, fmt, future::poll_fn, path::Path, sync::Arc, task::Poll, time::Duration};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::time::sleep;

use super::{
    checkpoint,
    fault::Fault,
    threads::{Blocking, NotDone, Threads},
    unmounts::Unmounting,
};
use crate::model::{
    blocked::Blocked,
    failure::{BLOCKED, Reasoned},
};

/// How often a gate that does not notify its callers is checked during an effect.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Answers whether the pods of this node may be touched. By default they may.
pub trait Gate: Send + Sync {
    /// Whether an effect may begin or continue. Called before each effect.
    ///
    /// # Errors
    /// Why not.
    fn check(&self) -> Result<(), Blocked> {
        Ok(())
    }

    /// Whether anything new may begin, such as a termination. What is in progress may continue to a safe point.
    ///
    /// # Errors
    /// Why not.
    fn check_new(&self) -> Result<(), Blocked> {
        self.check()
    }

    /// Whether a failed attempt may be repeated. A handover waits for one more of each pod that is in progress.
    ///
    /// # Errors
    /// Why not.
    fn check_retry(&self) -> Result<(), Blocked> {
        self.check()
    }

    /// Returns when an answer may have changed, but for one that changes with time alone.
    fn changed(&self) -> BoxFuture<'_, ()> {
        sleep(POLL_INTERVAL).boxed()
    }
}

/// A gate that is always open.
pub struct OpenGate;

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
    gate: Arc<dyn Gate>,
    threads: Threads,
    /// Settings of unmounts, and those that hang.
    pub unmounting: Unmounting,
}

impl Gate for OpenGate {}

impl<F: Fn() -> Result<(), Blocked> + Send + Sync> Gate for F {
    fn check(&self) -> Result<(), Blocked> {
        self()
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

    /// Result of many effects: `Done` if any was, and all faults.
    pub(super) fn collect(results: impl IntoIterator<Item = Result<Self, Fault>>) -> (Self, Vec<Fault>) {
        let (mut outcome, mut faults) = (Self::Nothing, Vec::new());
        for result in results {
            match result {
                Ok(done) => outcome = outcome.and(done),
                Err(fault) => faults.push(fault),
            }
        }
        (outcome, faults)
    }
}

// === impl Effects ===

impl Effects {
    /// Effects behind `gate`.
    pub fn new(gate: Arc<dyn Gate>) -> Self {
        Self {
            gate,
            threads: Threads::default(),
            unmounting: Unmounting::default(),
        }
    }

    /// Sets the threads for blocking work.
    #[must_use]
    pub fn with_threads(self, threads: Threads) -> Self {
        Self { threads, ..self }
    }

    /// Sets how unmounts are executed and forced.
    #[must_use]
    pub fn with_unmounting(self, unmounting: Unmounting) -> Self {
        Self { unmounting, ..self }
    }

    /// Effects that are always refused, on threads of their own: a read that hangs takes no thread from work on pods.
    #[must_use]
    pub fn refusing(&self, threads: Threads) -> Self {
        Self {
            gate: Self::none().gate,
            threads: threads.with_blocking(self.threads.blocking),
            ..self.clone()
        }
    }

    /// No effects: for what only reads.
    pub fn none() -> Self {
        Self::new(Arc::new(|| Err(Blocked::ReadOnly)))
    }

    /// Effects that are always allowed, for tests and tools.
    pub fn ungated() -> Self {
        Self::new(Arc::new(OpenGate))
    }

    /// Allows `verb` to be done to `target` now: a path, a process, an ID. The caller reports its completion to
    /// [`checkpoint::after`].
    pub fn allow(&self, verb: &str, target: &dyn fmt::Debug) -> Result<(), Blocked> {
        self.check()?;
        checkpoint::before(verb, target);
        Ok(())
    }

    /// Does `work`, which is `verb` on `path`, if the gate is open.
    pub fn perform<T>(&self, verb: &'static str, path: &Path, work: impl FnOnce() -> T) -> Result<T, Fault> {
        let allowed = self.allow(verb, &path);
        allowed.map_err(|blocked| Fault::new(verb, path, blocked))?;
        let done = work();
        checkpoint::after(verb, &path);
        Ok(done)
    }

    /// How blocking work is executed.
    pub fn blocking(&self) -> Blocking {
        self.threads.blocking
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
    pub async fn run_checked<F: Future>(&self, work: F) -> Result<F::Output, Blocked> {
        tokio::pin!(work);
        poll_fn(|context| match self.check() {
            Ok(()) => work.as_mut().poll(context).map(Ok),
            Err(blocked) => Poll::Ready(Err(blocked)),
        })
        .await
    }

    /// Polls `work`, and drops it as soon as the gate blocks, since a kubelet may be about to do the same.
    pub async fn run_until_blocked<F: Future>(&self, work: F) -> Result<F::Output, Blocked> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            blocked = self.wait_until_blocked() => Err(blocked),
        }
    }

    /// Returns when the gate is shut, with the reason.
    pub async fn wait_until_blocked(&self) -> Blocked {
        loop {
            let changed = self.gate.changed();
            if let Err(blocked) = self.check() {
                return blocked;
            }
            changed.await;
        }
    }

    /// Returns when something new may begin, but for a gate that opens with time alone: its caller asks again.
    pub async fn wait_until_open(&self) {
        loop {
            let changed = self.gate.changed();
            if self.check_new().is_ok() {
                return;
            }
            changed.await;
        }
    }

    /// Whether an effect may begin or continue. Called between the parts of a long one.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Blocked> {
        self.gate.check()
    }

    /// Whether anything new may begin, such as a termination.
    ///
    /// # Errors
    /// Why not.
    pub fn check_new(&self) -> Result<(), Blocked> {
        self.gate.check_new()
    }

    /// Whether a failed attempt may be repeated.
    ///
    /// # Errors
    /// Why not.
    pub fn check_retry(&self) -> Result<(), Blocked> {
        self.gate.check_retry()
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects").finish_non_exhaustive()
    }
}

impl Reasoned for Blocked {
    fn reason(&self) -> Cow<'static, str> {
        BLOCKED.into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::Notify;

    use super::*;

    /// A gate that a test shuts.
    #[derive(Default)]
    struct Door {
        is_shut: AtomicBool,
        changed: Notify,
    }

    impl Gate for Door {
        fn check(&self) -> Result<(), Blocked> {
            if self.is_shut.load(Ordering::Relaxed) {
                return Err(Blocked::Other("a kubelet is here".to_owned()));
            }
            Ok(())
        }

        fn changed(&self) -> BoxFuture<'_, ()> {
            self.changed.notified().boxed()
        }
    }

    #[test]
    fn shut_gate_blocks_the_next_effect() {
        let door = Arc::new(Door::default());
        let effects = Effects::new(Arc::clone(&door) as Arc<dyn Gate>);
        assert_eq!(effects.allow("kill", &7), Ok(()));
        door.is_shut.store(true, Ordering::Relaxed);
        let blocked = Err(Blocked::Other("a kubelet is here".to_owned()));
        assert_eq!(effects.allow("kill", &7), blocked);
        assert_eq!(effects.check(), blocked);
    }

    #[tokio::test]
    async fn effect_in_flight_is_dropped_when_the_gate_shuts() {
        let door = Arc::new(Door::default());
        let effects = Effects::new(Arc::clone(&door) as Arc<dyn Gate>);
        assert_eq!(effects.run_until_blocked(async { 7 }).await, Ok(7));
        let tell = async {
            door.changed.notify_waiters();
            tokio::task::yield_now().await;
            door.is_shut.store(true, Ordering::Relaxed);
            door.changed.notify_waiters();
        };
        let (blocked, ()) = tokio::join!(effects.run_until_blocked(std::future::pending::<()>()), tell);
        assert!(blocked.is_err());
    }
}
