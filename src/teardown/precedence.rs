//! Who comes first when many pods were held back: those whose objects are gone. Everybody believes that nothing of them runs,
//! and what they write to may be attached elsewhere at any moment.

use std::time::Duration;

use tokio::{sync::watch, time::timeout};

/// The others wait at most so long: a container that has the shortest of all stops is gone by then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Counts those who come first.
#[derive(Debug, Clone, Default)]
pub struct Precedence(watch::Sender<usize>);

/// Held by one who comes first, until nothing of it runs.
#[derive(Debug)]
pub struct First(watch::Sender<usize>);

// === impl Precedence ===

impl Precedence {
    /// One more comes first, until what is returned is dropped.
    pub fn first(&self) -> First {
        self.0.send_modify(|first| *first += 1);
        First(self.0.clone())
    }

    /// Returns when nobody comes first any more, or after a while all the same.
    pub async fn others(&self) {
        timeout(PATIENCE, self.0.subscribe().wait_for(|first| *first == 0))
            .await
            .ok();
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.0.send_modify(|first| *first -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_others_wait_for_the_last_of_the_first() {
        let precedence = Precedence::default();
        for seconds in [1, 3] {
            let first = precedence.first();
            tokio::spawn(async move {
                sleep(Duration::from_secs(seconds)).await;
                drop(first);
            });
        }
        let start = Instant::now();
        precedence.others().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        precedence.others().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_cannot_be_stopped_does_not_hold_up_the_others_for_ever() {
        let precedence = Precedence::default();
        let _first = precedence.first();
        let start = Instant::now();
        precedence.others().await;
        assert_eq!(start.elapsed(), PATIENCE);
    }
}
