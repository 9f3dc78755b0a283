//! Pause: no new work begins until a user resumes the agent.

use std::time::Duration;

use tokio::time::sleep;

use super::Guard;
use crate::{
    clock::{BootClock, Mark},
    journal::{JournalError, paused::Paused},
};

/// Maximum time between two looks at a pause that ends by itself: the timers of tokio stand still while the node is suspended.
const MAX_SLEEP: Duration = Duration::from_secs(30);

impl Guard {
    /// Pauses the agent, for `limit` or until a user resumes it. Of a pause in force only the beginning stays.
    ///
    /// # Errors
    /// When the pause cannot be recorded: it is lost at a restart.
    pub async fn pause(
        &self,
        by: &str,
        reason: Option<String>,
        limit: Option<Duration>,
        now: &Mark,
    ) -> Result<(), JournalError> {
        let paused = Paused {
            since: now.wall,
            by: by.to_owned(),
            reason,
            until: None,
        };
        // The first poll applies the pause; then it waits for the disk.
        let recorded = self.journal.set_paused(paused, limit, now);
        let (recorded, ()) = tokio::join!(recorded, async { self.pause_changed.notify_one() });
        recorded
    }

    /// Resumes the agent and returns the pause. The second value is an error if that cannot be recorded: the agent is paused again
    /// after a restart.
    pub async fn resume(&self) -> (Option<Paused>, Result<(), JournalError>) {
        let resumed = self.journal.remove_pause().await;
        self.unblocked.notify_waiters();
        resumed
    }

    /// Resumes the agent whenever the time of a pause is over, until the future is dropped.
    pub async fn end_expired_pauses(self, clock: BootClock) {
        if let Err(error) = self.journal.restart_pause_timer(&clock.now()).await {
            tracing::warn!(%error, "Remaining time of the pause is not durable");
        }
        loop {
            match self.journal.pause_remaining(&clock.now()) {
                None => self.pause_changed.notified().await,
                Some(Duration::ZERO) => {
                    // A user may have extended the pause by now.
                    let Some((expired, durable)) = self.journal.remove_expired_pause(&clock.now()).await else {
                        continue;
                    };
                    self.unblocked.notify_waiters();
                    tracing::warn!(
                        by = expired.by,
                        reason = expired.reason,
                        durable = durable.is_ok(),
                        "Resumed: the pause has expired"
                    );
                }
                Some(remaining) => {
                    tokio::select! {
                        () = sleep(remaining.min(MAX_SLEEP)) => {}
                        () = self.pause_changed.notified() => {}
                    }
                }
            }
        }
    }

    /// The pause, while the agent is paused.
    pub fn paused(&self) -> Option<Paused> {
        self.journal.paused()
    }

    /// Whether a kubelet may be fenced now.
    ///
    /// # Errors
    /// The reason, during a pause or a handover.
    pub fn check_may_fence(&self) -> Result<(), String> {
        if let Some(paused) = self.paused() {
            return Err(paused.why());
        }
        if self.is_handing_over() {
            return Err("the node is being handed over to its kubelet".to_owned());
        }
        Ok(())
    }

    /// Work that has not reached a safe point, such as `default/web-0`.
    pub fn work_in_progress(&self) -> Vec<String> {
        self.lock().activity.work_names()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{journal::Journal, node::identity::Identity};

    /// A clock that runs with tokio's.
    fn clock() -> BootClock {
        let started = Instant::now();
        BootClock::of("boot", move || started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn pause_with_a_limit_ends_by_itself_and_a_later_pause_replaces_the_limit() {
        let guard = Guard::new(Identity::default(), Journal::in_memory(), "/proc".into());
        let clock = clock();
        let task = tokio::spawn(guard.clone().end_expired_pauses(clock.clone()));
        let seconds = Duration::from_secs;
        let reason = || Some("kernel update".to_owned());
        guard
            .pause("root", reason(), Some(seconds(100)), &clock.now())
            .await
            .unwrap();
        sleep(seconds(99)).await;
        assert_eq!(guard.paused().unwrap().reason, reason());
        let since = guard.paused().unwrap().since;
        guard
            .pause("root", None, Some(seconds(50)), &clock.now())
            .await
            .unwrap();
        assert_eq!(guard.paused().unwrap().since, since);
        let unblocked = guard.unblocked.notified();
        sleep(seconds(49)).await;
        assert!(guard.paused().is_some());
        sleep(seconds(2)).await;
        assert_eq!(guard.paused(), None);
        unblocked.await;
        guard
            .pause("root", None, Some(seconds(50)), &clock.now())
            .await
            .unwrap();
        guard.pause("root", None, None, &clock.now()).await.unwrap();
        sleep(seconds(100_000)).await;
        assert!(guard.paused().is_some(), "the limit was removed");
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn unresponsive_kubelet_is_not_stopped_during_a_pause_or_a_handover() {
        let guard = Guard::new(Identity::default(), Journal::in_memory(), "/proc".into());
        assert_eq!(guard.check_may_fence(), Ok(()));
        guard.pause("root", None, None, &clock().now()).await.unwrap();
        assert!(guard.check_may_fence().unwrap_err().contains("paused"));
        guard.resume().await.1.unwrap();
        assert_eq!(guard.check_may_fence(), Ok(()));
        guard.hand_over(Duration::from_secs(1), Duration::from_secs(45)).await;
        assert!(guard.check_may_fence().unwrap_err().contains("handed over"));
    }
}
