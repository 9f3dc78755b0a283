//! Work that blocks, on threads of its own, a few at a time.
//!
//! More threads would wait for the same locks of the kernel, and each takes memory. Work that hangs, as an unmount may
//! for ever, keeps no quick_slot, and never takes the last threads: who looks for a kubelet needs one, and so does the journal.

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

/// Threads for work that blocks, in the whole agent.
pub const THREADS: usize = 64;
/// Of them, those that the work on pods may take, however it hangs.
const SLOTS: usize = THREADS - 16;
/// Pieces of work at a time, as long as they are short.
const AT_ONCE: usize = 8;
/// What takes longer gives its turn away.
const SHORT: Duration = Duration::from_millis(100);
/// Whoever gets no slot for so long is told so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who does work that blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Blocking {
    /// Threads of their own: nobody else waits for a disk that hangs.
    #[default]
    OnThreads,
    /// Whoever wants it done, in a simulation: nothing hangs there, and threads would make each run another one.
    Inline,
}

/// Where it is done; all clones are the same. By default for the work on pods.
#[derive(Clone)]
pub struct Threads {
    blocking: Blocking,
    slots: Arc<Semaphore>,
    quick_slots: Arc<Semaphore>,
}

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// All slots are taken.
    #[error("other pieces of work on this node hang, and this one has to wait for one of them to end")]
    NoFreeThread,
    /// It panicked, or the agent ends.
    #[error("it was cut short")]
    Aborted,
}

// === impl Blocking ===

impl Blocking {
    /// Does `work`. On a thread it goes on to its end also when nobody waits for it any more.
    ///
    /// # Errors
    /// [`NotDone::Aborted`].
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotDone> {
        match self {
            Self::OnThreads => spawn_blocking(work).await.map_err(|_| NotDone::Aborted),
            Self::Inline => {
                // As a thread does, it lets others go first.
                yield_now().await;
                catch_unwind(AssertUnwindSafe(work)).map_err(|_| NotDone::Aborted)
            }
        }
    }
}

// === impl Threads ===

impl Threads {
    /// For work of which so many pieces may hang.
    pub fn with_slots(slots: usize) -> Self {
        Self {
            blocking: Blocking::default(),
            slots: Arc::new(Semaphore::new(slots)),
            quick_slots: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// For the work on pods, done by these.
    pub fn by(blocking: Blocking) -> Self {
        Self::default().with_blocking(blocking)
    }

    /// The same, done by these.
    #[must_use]
    pub fn with_blocking(self, blocking: Blocking) -> Self {
        Self { blocking, ..self }
    }

    /// Where the threads are.
    pub fn blocking(&self) -> Blocking {
        self.blocking
    }

    /// Does `work` when it is its turn.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        // Never closed: only the time can run out. The slot comes first: who waits for one keeps no turn.
        let slot = timeout(PATIENCE, Arc::clone(&self.slots).acquire_owned()).await;
        let slot = slot.map_err(|_| NotDone::NoFreeThread)?;
        let quick_slot = self.quick_slots.acquire().await.ok();
        let done = self.blocking.run(move || {
            let result = work();
            drop(slot);
            result
        });
        tokio::pin!(done);
        match timeout(SHORT, &mut done).await {
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
        // Until each has its thread and has given its turn away.
        while threads.slots.available_permits() > SLOTS - pieces || threads.quick_slots.available_permits() < AT_ONCE {
            yield_now().await;
        }
        (release, started)
    }

    #[tokio::test]
    async fn work_that_hangs_holds_up_no_other_for_long() {
        let threads = Threads::default();
        let (release, hanging) = hanging(&threads, 3 * AT_ONCE).await;
        assert_eq!(threads.run_blocking(|| 1).await.unwrap(), 1);
        drop(release);
        for done in hanging {
            assert!(done.await.unwrap().unwrap());
        }
    }

    #[test]
    fn however_much_hangs_there_are_threads_left() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(THREADS)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let threads = Threads::default();
            let (release, hanging) = hanging(&threads, SLOTS).await;
            tokio::time::pause();
            // Time does not pass by itself while threads are at work.
            let waited = tokio::time::advance(PATIENCE + SHORT);
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
    async fn work_that_panics_gives_its_place_back() {
        for blocking in [Blocking::OnThreads, Blocking::Inline] {
            let threads = Threads::by(blocking);
            for _ in 0..=SLOTS {
                assert!(threads.run_blocking(|| panic!("as it should")).await.is_err());
            }
        }
    }
}
