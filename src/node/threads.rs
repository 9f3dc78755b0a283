//! Work that blocks, on threads of its own, a few at a time.
//!
//! More threads would wait for the same locks of the kernel, and each takes memory. Work that hangs, as an unmount may
//! for ever, keeps no turn, and never takes the last threads: who looks for a kubelet needs one, and so does the journal.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// Threads for work that blocks, in the whole agent.
pub const THREADS: usize = 64;
/// Of them, those that the work on pods may take, however it hangs.
const PLACES: usize = THREADS - 16;
/// Pieces of work at a time, as long as they are short.
const AT_ONCE: usize = 4;
/// What takes longer gives its turn away.
const SHORT: Duration = Duration::from_millis(100);
/// Whoever gets no place for so long is told so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where it is done; all clones are the same. By default for the work on pods.
#[derive(Clone)]
pub struct Threads {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// All places are taken.
    #[error("other pieces of work on this node hang, and this one has to wait for one of them to end")]
    OthersHang,
    /// It panicked, or the agent ends.
    #[error("it was cut short")]
    CutShort,
}

// === impl Threads ===

impl Threads {
    /// For work of which so many pieces may hang.
    pub fn of(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Does `work` when it is its turn.
    pub async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotDone> {
        // Never closed: only the time can run out. The place comes first: who waits for one keeps no turn.
        let place = timeout(PATIENCE, Arc::clone(&self.places).acquire_owned()).await;
        let place = place.map_err(|_| NotDone::OthersHang)?;
        let turn = self.turns.acquire().await.ok();
        let mut done = spawn_blocking(move || {
            let result = work();
            drop(place);
            result
        });
        let done = match timeout(SHORT, &mut done).await {
            Ok(done) => done,
            Err(_) => {
                drop(turn);
                done.await
            }
        };
        done.map_err(|_| NotDone::CutShort)
    }
}

impl Default for Threads {
    fn default() -> Self {
        Self::of(PLACES)
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
            tokio::spawn(async move { threads.work(move || hang.lock().unwrap().recv().is_err()).await })
        });
        let started = started.collect();
        // Until each has its thread and has given its turn away.
        while threads.places.available_permits() > PLACES - pieces || threads.turns.available_permits() < AT_ONCE {
            yield_now().await;
        }
        (release, started)
    }

    #[tokio::test]
    async fn work_that_hangs_holds_up_no_other_for_long() {
        let threads = Threads::default();
        let (release, hanging) = hanging(&threads, 3 * AT_ONCE).await;
        assert_eq!(threads.work(|| 1).await.unwrap(), 1);
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
            let (release, hanging) = hanging(&threads, PLACES).await;
            tokio::time::pause();
            // Time does not pass by itself while threads are at work.
            let waited = tokio::time::advance(PATIENCE + SHORT);
            let (answer, ()) = tokio::join!(threads.work(|| 1), waited);
            assert_eq!(answer, Err(NotDone::OthersHang));
            tokio::time::resume();
            let others = (0..THREADS - PLACES).map(|n| spawn_blocking(move || n));
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
        let threads = Threads::default();
        for _ in 0..=PLACES {
            assert!(threads.work(|| panic!("as it should")).await.is_err());
        }
    }
}
