//! Blocking work on a few threads.
//!
//! More threads would only wait for the same kernel locks and take memory. Work that hangs, such as an unmount, gives up
//! its quick slot, and never takes the last threads: the search for a kubelet and the journal need them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::model::failure::{HANGS, OTHER, Reasoned};
use tokio::{
    sync::Semaphore,
    task::{spawn_blocking, yield_now},
    time::timeout,
};

/// Number of threads for blocking work in the whole agent.
pub const THREADS: usize = 64;
/// Number of those that work on pods may use, even if it hangs.
const SLOTS: usize = THREADS - 16;
/// Number of short pieces of work at a time.
const QUICK_SLOTS: usize = 8;
/// Work that takes longer gives up its quick slot.
const QUICK_TIME: Duration = Duration::from_millis(100);
/// How long work waits for a slot.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where blocking work runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Blocking {
    /// On separate threads, so that a hanging disk blocks nothing else.
    #[default]
    OnThreads,
    /// On the caller's thread, in a simulation: nothing hangs there, and threads would make runs differ.
    Inline,
}

/// Threads for blocking work. Clones share their slots. The default is for work on pods.
#[derive(Clone)]
pub struct Threads {
    /// Where the work runs.
    pub blocking: Blocking,
    slots: Arc<Semaphore>,
    quick_slots: Arc<Semaphore>,
}

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// All slots are taken.
    #[error("too many other calls on this node hang; this one runs after one of them returns")]
    NoFreeThread,
    /// It panicked, or the agent is stopping.
    #[error("it was aborted")]
    Aborted,
}

// === impl Blocking ===

impl Blocking {
    /// Runs `work`. On a thread it completes even if the caller is dropped.
    ///
    /// # Errors
    /// [`NotDone::Aborted`].
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotDone> {
        match self {
            Self::OnThreads => spawn_blocking(work).await.map_err(|_| NotDone::Aborted),
            Self::Inline => {
                // Yield, as a thread would let other tasks run first.
                yield_now().await;
                catch_unwind(AssertUnwindSafe(work)).map_err(|_| NotDone::Aborted)
            }
        }
    }
}

// === impl Threads ===

impl Threads {
    /// Threads with this many slots for work that may hang.
    pub fn with_slots(slots: usize) -> Self {
        Self {
            blocking: Blocking::default(),
            slots: Arc::new(Semaphore::new(slots)),
            quick_slots: Arc::new(Semaphore::new(QUICK_SLOTS)),
        }
    }

    /// Sets where the work runs.
    #[must_use]
    pub fn with_blocking(self, blocking: Blocking) -> Self {
        Self { blocking, ..self }
    }

    /// Runs `work` when a slot is free.
    ///
    /// `work` is boxed: otherwise the future of every caller would contain it, and this code would be compiled for each closure.
    pub fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, NotDone>> {
        self.run_boxed(Box::new(work))
    }

    async fn run_boxed<T: Send + 'static>(&self, work: Box<dyn FnOnce() -> T + Send>) -> Result<T, NotDone> {
        // The semaphore is never closed, so only the timeout can fail. The slot comes first: work that waits for one must
        // not take a quick slot.
        let slot = timeout(SLOT_TIMEOUT, Arc::clone(&self.slots).acquire_owned()).await;
        let slot = slot.map_err(|_| NotDone::NoFreeThread)?;
        let quick_slot = self.quick_slots.acquire().await.ok();
        let done = self.blocking.run(move || {
            let result = work();
            drop(slot);
            result
        });
        tokio::pin!(done);
        match timeout(QUICK_TIME, &mut done).await {
            Ok(done) => done,
            Err(_) => {
                drop(quick_slot);
                done.await
            }
        }
    }
}

impl Default for Threads {
    fn default() -> Self {
        Self::with_slots(SLOTS)
    }
}

impl Reasoned for NotDone {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::NoFreeThread => HANGS,
            Self::Aborted => OTHER,
        }
        .into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    type Hanging = Vec<JoinHandle<Result<bool, NotDone>>>;

    /// Starts work that hangs until the sender is dropped.
    async fn hanging(threads: &Threads, pieces: usize) -> (mpsc::Sender<()>, Hanging) {
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let started = (0..pieces).map(|_| {
            let (threads, hang) = (threads.clone(), Arc::clone(&hang));
            tokio::spawn(async move { threads.run_blocking(move || hang.lock().unwrap().recv().is_err()).await })
        });
        let started = started.collect();
        // Wait until each has its thread and has given up its quick slot.
        while threads.slots.available_permits() > SLOTS - pieces
            || threads.quick_slots.available_permits() < QUICK_SLOTS
        {
            yield_now().await;
        }
        (release, started)
    }

    #[tokio::test]
    async fn hanging_work_does_not_block_other_work_for_long() {
        let threads = Threads::default();
        let (release, hanging) = hanging(&threads, 3 * QUICK_SLOTS).await;
        assert_eq!(threads.run_blocking(|| 1).await.unwrap(), 1);
        drop(release);
        for done in hanging {
            assert!(done.await.unwrap().unwrap());
        }
    }

    #[test]
    fn some_threads_stay_free_whatever_hangs() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(THREADS)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let threads = Threads::default();
            let (release, hanging) = hanging(&threads, SLOTS).await;
            tokio::time::pause();
            // Time does not advance by itself while threads work.
            let waited = tokio::time::advance(SLOT_TIMEOUT + QUICK_TIME);
            let (answer, ()) = tokio::join!(threads.run_blocking(|| 1), waited);
            assert_eq!(answer, Err(NotDone::NoFreeThread));
            tokio::time::resume();
            let others = (0..THREADS - SLOTS).map(|n| spawn_blocking(move || n));
            for other in others.collect::<Vec<_>>() {
                other.await.unwrap();
            }
            drop(release);
            for done in hanging {
                assert!(done.await.unwrap().unwrap());
            }
        });
    }

    #[tokio::test]
    async fn panicking_work_returns_its_slot() {
        for blocking in [Blocking::OnThreads, Blocking::Inline] {
            let threads = Threads::default().with_blocking(blocking);
            for _ in 0..=SLOTS {
                assert!(threads.run_blocking(|| panic!("on purpose")).await.is_err());
            }
        }
    }
}
