//! Pause: no new work begins until a user resumes the agent.

use std::time::Duration;

use tokio::time::sleep;

use super::Guard;
use crate::{
    clock::{BootClock, Mark},
    journal::JournalError,
    model::{
        blocked::Blocked,
        pause::{PauseRecord, Paused},
    },
};

/// Maximum time between two looks at a pause that ends by itself: the timers of tokio stand still while the node is suspended.
const MAX_SLEEP: Duration = Duration::from_secs(30);

impl Guard {
    /// Pauses the agent at once, for `limit` or until a user resumes it. Of a pause in force only the beginning stays.
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
        self.journal.change_node(|node| {
            let pause = &mut node.paused;
            let paused = Paused {
                since: pause.as_ref().map_or(now.wall, |before| before.paused.since),
                by: by.to_owned(),
                reason,
                until: None,
            };
            *pause = Some(PauseRecord::new(paused, limit, now));
        });
        self.changed.notify_waiters();
        self.journal.durable().await
    }

    /// Resumes the agent at once and returns the pause. The second value is an error if that cannot be recorded: the agent is paused
    /// again after a restart.
    pub async fn resume(&self) -> (Option<Paused>, Result<(), JournalError>) {
        let resumed = self.journal.change_node(|node| node.paused.take());
        self.changed.notify_waiters();
        (resumed.map(|record| record.paused), self.journal.durable().await)
    }

    /// Resumes the agent whenever the time of a pause is over, until the future is dropped.
    pub async fn end_expired_pauses(self, clock: BootClock) {
        let now = clock.now();
        self.journal
            .change_node(|node| node.paused = node.paused.take().map(|pause| pause.in_boot_of(&now)));
        loop {
            let changed = self.changed.notified();
            let remaining = |pause: &PauseRecord| pause.remaining(&clock.now());
            match self.journal.node(|node| node.paused.as_ref().and_then(remaining)) {
                None => changed.await,
                Some(Duration::ZERO) => self.end_pause(&clock.now()).await,
                Some(remaining) => {
                    tokio::select! {
                        () = sleep(remaining.min(MAX_SLEEP)) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    /// Resumes the agent if the pause is over: a user may have just extended it.
    async fn end_pause(&self, now: &Mark) {
        let is_over = |pause: &mut PauseRecord| pause.remaining(now).is_some_and(|remaining| remaining.is_zero());
        let Some(expired) = self.journal.change_node(|node| node.paused.take_if(is_over)) else {
            return;
        };
        self.changed.notify_waiters();
        let Paused { by, reason, .. } = expired.paused;
        let durable = self.journal.durable().await.is_ok();
        tracing::warn!(by, reason, durable, "Resumed: the pause has expired");
    }

    /// The pause, while the agent is paused.
    pub fn paused(&self) -> Option<Paused> {
        self.journal
            .node(|node| node.paused.as_ref().map(|record| record.paused.clone()))
    }

    /// Whether a kubelet may be fenced now.
    ///
    /// # Errors
    /// The reason, during a pause or a handover.
    pub fn check_may_fence(&self) -> Result<(), Blocked> {
        self.check_not_paused()?;
        if self.is_handing_over() {
            return Err(Blocked::Handover);
        }
        Ok(())
    }

    pub(super) fn check_not_paused(&self) -> Result<(), Blocked> {
        self.paused()
            .map_or(Ok(()), |paused| Err(Blocked::Paused(Box::new(paused))))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{handover::guard::kubelet::tests::machine, node::effects::Gate as _};

    /// A clock that runs with tokio's.
    fn clock() -> BootClock {
        let started = Instant::now();
        BootClock::of("boot", move || started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn pause_with_a_limit_ends_by_itself_and_a_later_pause_replaces_the_limit() {
        let (_proc, guard) = machine();
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
        let unblocked = guard.changed();
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
        // A pause that was extended at its end goes on.
        let limit = Some(seconds(60));
        guard.pause("root", None, limit, &clock.now()).await.unwrap();
        let end = Mark {
            since_boot: clock.now().since_boot + seconds(60),
            ..clock.now()
        };
        guard.pause("root", None, limit, &end).await.unwrap();
        guard.end_pause(&end).await;
        assert!(guard.paused().is_some());
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn unresponsive_kubelet_is_not_stopped_during_a_pause_or_a_handover() {
        let (_proc, guard) = machine();
        assert_eq!(guard.check_may_fence(), Ok(()));
        guard.pause("root", None, None, &clock().now()).await.unwrap();
        assert!(guard.check_may_fence().unwrap_err().to_string().contains("paused"));
        guard.resume().await.1.unwrap();
        assert_eq!(guard.check_may_fence(), Ok(()));
        guard.hand_over(Duration::from_secs(1), Duration::from_secs(45)).await;
        assert!(guard.check_may_fence().unwrap_err().to_string().contains("handed over"));
    }
}
