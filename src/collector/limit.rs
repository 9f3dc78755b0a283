//! Adaptive limit of writes in flight: as many as the API server takes without getting slower.
//!
//! After each window of answers the limit follows the gradient between long-term and current latency, and grows by a
//! constant where both are equal. A refusal for overload halves it. Source: the Gradient2 limit of
//! Netflix/concurrency-limits.

use std::time::Duration;

use tokio::time::Instant;

use super::queue::Lane;

const LEAST: f64 = 4.0;
const MOST: f64 = 128.0;
const FIRST: f64 = 16.0;
/// Latency may exceed its long-term value by this factor before the limit shrinks.
const TOLERANCE: f64 = 1.5;
/// Growth after each window.
const GROWTH: f64 = 8.0;
/// Weight of a window in the long-term latency.
const WEIGHT: f64 = 0.05;
/// Answers per window.
const WINDOW: u32 = 32;
/// Pause after a request without an answer: first and maximum.
const AWAY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// See the module's documentation.
#[derive(Debug)]
pub struct Limit {
    limit: f64,
    /// Long-term latency in seconds; `None` before the first window.
    long: Option<f64>,
    answers: u32,
    seconds: f64,
    /// No request starts before this.
    pause: Option<Instant>,
    /// Requests without an answer in a row.
    lost: u32,
    halved: Option<Instant>,
    /// Lane of the last refused request, and the end of its pause.
    refused: Option<(Lane, Instant)>,
}

/// State of the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Maximum number of writes in flight, pauses aside.
    pub at_once: usize,
    /// Long-term latency in seconds.
    pub latency: Option<f64>,
}

// === impl Limit ===

impl Default for Limit {
    fn default() -> Self {
        Self {
            limit: FIRST,
            long: None,
            answers: 0,
            seconds: 0.0,
            pause: None,
            lost: 0,
            halved: None,
            refused: None,
        }
    }
}

impl Limit {
    /// Maximum number of requests in flight at `now`.
    pub fn at_once(&self, now: Instant) -> usize {
        if self.pause.is_some_and(|pause| now < pause) {
            return 0;
        }
        self.pace().at_once
    }

    /// The limit's state.
    pub fn pace(&self) -> Pace {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "4 to 128")]
        let at_once = self.limit as usize;
        Pace {
            at_once,
            latency: self.long,
        }
    }

    /// End of the current pause.
    pub fn pause(&self) -> Option<Instant> {
        self.pause
    }

    /// Records an answer after this time, with `busy` requests in flight.
    pub fn answered(&mut self, after: Duration, busy: usize) {
        self.lost = 0;
        self.answers += 1;
        self.seconds += after.as_secs_f64();
        if self.answers < WINDOW {
            return;
        }
        let short = (self.seconds / f64::from(self.answers)).max(1e-6);
        (self.answers, self.seconds) = (0, 0.0);
        let long = self.long.map_or(short, |long| long + WEIGHT * (short - long));
        // After a slow period, the long-term latency adapts faster.
        let long = if long > 2.0 * short { long * 0.9 } else { long };
        self.long = Some(long);
        let gradient = (TOLERANCE * long / short).clamp(0.5, 1.0);
        #[allow(clippy::cast_precision_loss, reason = "some hundreds")]
        let is_used = busy as f64 >= self.limit / 2.0;
        if gradient < 1.0 || is_used {
            self.limit = (self.limit * gradient + GROWTH).clamp(LEAST, MOST);
        }
    }

    /// Records a refusal for overload, with the pause that the server asks for. The limit pauses if another lane was
    /// refused as well, or if no lane is given.
    pub fn refused(&mut self, lane: Option<Lane>, pause: Duration, now: Instant) {
        self.lost = 0;
        let is_other = |(before, until): &(Lane, Instant)| now < *until && Some(*before) != lane;
        let are_all = lane.is_none() || self.refused.as_ref().is_some_and(is_other);
        self.refused = lane.map(|lane| (lane, now + pause));
        // Requests that were in flight together are refused together.
        if self
            .halved
            .is_none_or(|halved| now > halved + Duration::from_millis(100))
        {
            self.limit = (self.limit / 2.0).max(LEAST);
            self.halved = Some(now);
        }
        if are_all {
            self.pause_until(now + pause);
        }
    }

    /// Records a request without an answer, or one that was not allowed.
    pub fn lost(&mut self, now: Instant) {
        let (first, most) = AWAY;
        self.lost += 1;
        self.limit = LEAST;
        self.pause_until(now + first.saturating_mul(1 << (self.lost / 4).min(8)).min(most));
    }

    fn pause_until(&mut self, until: Instant) {
        self.pause = Some(self.pause.map_or(until, |pause| pause.max(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(limit: &mut Limit, answers: u32, latency: impl Fn(usize) -> f64) -> usize {
        let now = Instant::now();
        for _ in 0..answers {
            let busy = limit.at_once(now);
            limit.answered(Duration::from_secs_f64(latency(busy)), busy);
        }
        limit.at_once(now)
    }

    #[test]
    fn where_the_server_keeps_up_it_grows_to_the_most() {
        let mut limit = Limit::default();
        assert_eq!(settle(&mut limit, 2000, |_| 0.01), 128);
    }

    #[test]
    fn where_the_server_suddenly_slows_down_it_shrinks_and_comes_back() {
        let mut limit = Limit::default();
        settle(&mut limit, 2000, |_| 0.01);
        let slow = settle(&mut limit, 160, |_| 0.2);
        assert!(slow < 40, "{slow}");
        assert_eq!(settle(&mut limit, 4000, |_| 0.01), 128);
    }

    #[test]
    fn a_limit_that_is_not_used_does_not_grow() {
        let mut limit = Limit::default();
        for _ in 0..1000 {
            limit.answered(Duration::from_millis(5), 2);
        }
        assert_eq!(limit.at_once(Instant::now()), 16);
    }

    #[test]
    fn a_busy_server_is_left_alone_as_long_as_it_asks_and_refusals_at_once_count_as_one() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        for _ in 0..10 {
            limit.refused(None, Duration::from_secs(3), now);
        }
        assert_eq!(limit.at_once(now + Duration::from_secs(2)), 0);
        assert_eq!(limit.at_once(now + Duration::from_secs(3)), 8);
    }

    #[test]
    fn a_server_that_is_away_is_tried_less_and_less_often() {
        let (mut limit, mut now) = (Limit::default(), Instant::now());
        for _ in 0..100 {
            limit.lost(now);
            now = limit.pause().unwrap();
        }
        let before = now;
        limit.lost(now);
        assert_eq!(limit.pause().unwrap() - before, Duration::from_secs(30));
    }
}
