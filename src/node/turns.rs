//! Work that blocks, on threads of its own, a few at a time.
//!
//! More threads would wait for the same locks of the kernel, and each takes memory. Work that hangs, as an unmount may
//! for ever, keeps no turn, and never takes the last threads: who looks for a kubelet needs one, and so does the journal.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
    time::timeout,
};

/// Threads for work that blocks, in the whole agent.
pub const THREADS: usize = 64;
/// Of them, those that the work on pods may take, however it hangs.
const PLACES: usize = THREADS - 16;
/// Pieces of work at a time, as long as they are short.
const AT_ONCE: usize = 4;
/// What takes longer gives its turn away.
const SHORT: Duration = Duration::from_millis(100);

/// Whose turn it is; all clones are the same.
#[derive(Clone)]
pub struct Turns {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

// === impl Turns ===

impl Turns {
    /// Does `work` when it is its turn. An error means that it panicked, or that the agent ends: it is not done.
    pub async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
        // Never closed: errors cannot come.
        let turn = self.turns.acquire().await.ok();
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let mut done = spawn_blocking(move || {
            let result = work();
            drop(place);
            result
        });
        match timeout(SHORT, &mut done).await {
            Ok(done) => done,
            Err(_) => {
                drop(turn);
                done.await
            }
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(PLACES)),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    type Hanging = Vec<JoinHandle<Result<bool, JoinError>>>;

    /// Starts work that hangs until the sender is dropped.
    async fn hanging(turns: &Turns, pieces: usize) -> (mpsc::Sender<()>, Hanging) {
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let started = (0..pieces).map(|_| {
            let (turns, hang) = (turns.clone(), Arc::clone(&hang));
            tokio::spawn(async move { turns.work(move || hang.lock().unwrap().recv().is_err()).await })
        });
        let started = started.collect();
        while turns.places.available_permits() > PLACES.saturating_sub(pieces) {
            yield_now().await;
        }
        (release, started)
    }

    #[tokio::test]
    async fn work_that_hangs_holds_up_no_other_for_long() {
        let turns = Turns::default();
        let (release, hanging) = hanging(&turns, 3 * AT_ONCE).await;
        assert_eq!(turns.work(|| 1).await.unwrap(), 1);
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
            let turns = Turns::default();
            let (release, hanging) = hanging(&turns, 2 * THREADS).await;
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
        let turns = Turns::default();
        for _ in 0..=PLACES {
            assert!(turns.work(|| panic!("as it should")).await.is_err());
        }
    }
}
