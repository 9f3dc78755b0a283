//! Tasks that go on as long as the agent does. One that panics is started again.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use tokio::time::sleep;

/// A task that panics each time is not to fill the log.
const AGAIN: Duration = Duration::from_secs(5);

/// Runs what `start` makes to its end, again and again while it panics. What it knew is lost with the panic, so it has to
/// begin as at the start of the agent.
pub async fn restarted<F: Future<Output = ()>>(task: &'static str, mut start: impl FnMut() -> F) {
    while AssertUnwindSafe(async { start().await }).catch_unwind().await.is_err() {
        tracing::error!(task, restarted_in = ?AGAIN, "Task panicked; it is started again");
        sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_and_one_that_ends_is_not() {
        let mut starts = 0;
        let run = restarted("test", || {
            starts += 1;
            let panics = starts < 3;
            async move { assert!(!panics, "as it should") }
        });
        run.await;
        assert_eq!(starts, 3);
    }
}
