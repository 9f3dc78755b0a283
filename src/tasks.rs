//! Long-running tasks of the agent. A task that panics is restarted.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Pause before a restart; it limits the log.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Starts a task that is aborted when its handle is dropped.
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Runs the future of `start` until it returns. After a panic it calls `start` again: the task loses its state.
pub async fn run_with_restarts<F: Future<Output = ()>>(task: &'static str, mut start: impl FnMut() -> F) {
    while AssertUnwindSafe(async { start().await }).catch_unwind().await.is_err() {
        tracing::error!(task, restarted_in = ?RESTART_PAUSE, "Task panicked; it is started again");
        sleep(RESTART_PAUSE).await;
    }
}

/// Waits for a task. After the limit it is aborted and dropped, so that it can count and log what it has not done.
pub async fn finish_or_abort(mut task: AbortOnDropHandle<()>, limit: Duration) {
    if timeout(limit, &mut task).await.is_err() {
        task.abort();
        (&mut task).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn task_is_restarted_after_a_panic_and_not_after_it_returns() {
        let mut starts = 0;
        let run = run_with_restarts("test", || {
            starts += 1;
            let panics = starts < 3;
            async move { assert!(!panics, "as it should") }
        });
        run.await;
        assert_eq!(starts, 3);
    }
}
