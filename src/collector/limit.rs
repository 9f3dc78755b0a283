//! How many writes may be under way at once: as many as the server takes without becoming slower by them.
//!
//! After each window of answers the limit follows the gradient between the latency of long and of now, and grows by a
//! little where they are alike; a refusal for being busy halves it.

use std::time::Duration;

use tokio::time::Instant;

use super::queue::Lane;

const LEAST: f64 = 4.0;
const MOST: f64 = 128.0;
const FIRST: f64 = 16.0;
/// Latency may be this much above that of long before the limit shrinks.
const TOLERANCE: f64 = 1.5;
/// By how much it grows after each window.
const GROWTH: f64 = 8.0;
/// What one window counts in the latency of long.
const WEIGHT: f64 = 0.05;
/// Answers of a window.
const WINDOW: u32 = 32;
/// After the first request that reached nobody, and at most.
const AWAY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// See the module's documentation.
#[derive(Debug)]
pub struct Limit {
    limit: f64,
    /// Latency of long, in seconds; nothing is known at first.
    long: Option<f64>,
    answers: u32,
    seconds: f64,
    /// Nothing is begun before.
    pause: Option<Instant>,
    /// Requests in a row that reached nobody.
    lost: u32,
    halved: Option<Instant>,
    /// Whose request was refused last, and until when they are to be left alone.
    refused: Option<(Lane, Instant)>,
}

/// How fast it goes, for people.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// So many writes may be under way at once, but for pauses.
    pub at_once: usize,
    /// Latency of long, in seconds.
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
    /// How many may be under way now.
    pub fn at_once(&self, now: Instant) -> usize {
        if self.pause.is_some_and(|pause| now < pause) {
            return 0;
        }
        self.pace().at_once
    }

    /// How fast it goes.
    pub fn pace(&self) -> Pace {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "4 to 128")]
        let at_once = self.limit as usize;
        Pace {
            at_once,
            latency: self.long,
        }
    }

    /// Until when nothing may be begun.
    pub fn pause(&self) -> Option<Instant> {
        self.pause
    }

    /// The server answered after so long, while so many were under way.
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
        // After a slow time the fast one is the new measure soon.
        let long = if long > 2.0 * short { long * 0.9 } else { long };
        self.long = Some(long);
        let gradient = (TOLERANCE * long / short).clamp(0.5, 1.0);
        #[allow(clippy::cast_precision_loss, reason = "some hundreds")]
        let is_used = busy as f64 >= self.limit / 2.0;
        if gradient < 1.0 || is_used {
            self.limit = (self.limit * gradient + GROWTH).clamp(LEAST, MOST);
        }
    }

    /// The server has too much to do with requests of this lane, and wants to be left alone with them for so long. That is
    /// their own affair unless others are refused, too; without a lane, all are.
    pub fn refused(&mut self, lane: Option<Lane>, pause: Duration, now: Instant) {
        self.lost = 0;
        let is_other = |(before, until): &(Lane, Instant)| now < *until && Some(*before) != lane;
        let are_all = lane.is_none() || self.refused.as_ref().is_some_and(is_other);
        self.refused = lane.map(|lane| (lane, now + pause));
        // All that were under way together are refused together.
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

    /// A request reached nobody, or nothing may be written.
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
