//! Adaptive limit of writes in flight: as many as the API server takes without getting slower.
//!
//! After each window of answers the limit follows the gradient between long-term and current latency, and grows by a
//! constant where both are equal. A refusal for overload halves it. Source: the Gradient2 limit of
//! Netflix/concurrency-limits.

use std::time::Duration;

use tokio::time::Instant;

use super::queue::Lane;

const MIN: f64 = 4.0;
const MAX: f64 = 128.0;
const INITIAL: f64 = 16.0;
/// Latency may exceed its long-term value by this factor before the limit shrinks.
const TOLERANCE: f64 = 1.5;
/// Growth after each window.
const GROWTH: f64 = 8.0;
/// Weight of a window in the long-term latency.
const WEIGHT: f64 = 0.05;
/// Answers per window.
const WINDOW: u32 = 32;
/// Pause after a request without an answer: first and maximum.
const NO_ANSWER_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The current limit, and the latencies and refusals that it follows from.
#[derive(Debug)]
pub struct Limit {
    limit: f64,
    /// Long-term latency in seconds; `None` before the first window.
    long_term: Option<f64>,
    answers: u32,
    seconds: f64,
    /// No request starts before this.
    pause: Option<Instant>,
    /// Requests without an answer in a row.
    unanswered: u32,
    halved_at: Option<Instant>,
    /// Lane of the last refused request, and the end of its pause.
    refused: Option<(Lane, Instant)>,
}

/// State of the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitState {
    /// Maximum number of writes in flight, pauses aside.
    pub max_in_flight: usize,
    /// Long-term latency in seconds.
    pub latency: Option<f64>,
}

// === impl Limit ===

impl Default for Limit {
    fn default() -> Self {
        Self {
            limit: INITIAL,
            long_term: None,
            answers: 0,
            seconds: 0.0,
            pause: None,
            unanswered: 0,
            halved_at: None,
            refused: None,
        }
    }
}

impl Limit {
    /// Maximum number of requests in flight at `now`.
    pub fn max_in_flight(&self, now: Instant) -> usize {
        if self.pause.is_some_and(|pause| now < pause) {
            return 0;
        }
        self.state().max_in_flight
    }

    /// The limit's state.
    pub fn state(&self) -> LimitState {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "4 to 128")]
        let max_in_flight = self.limit as usize;
        LimitState {
            max_in_flight,
            latency: self.long_term,
        }
    }

    /// End of the current pause.
    pub fn pause(&self) -> Option<Instant> {
        self.pause
    }

    /// Records an answer after this time, with `busy` requests in flight.
    pub fn record_answer(&mut self, after: Duration, busy: usize) {
        self.unanswered = 0;
        self.answers += 1;
        self.seconds += after.as_secs_f64();
        if self.answers < WINDOW {
            return;
        }
        let short = (self.seconds / f64::from(self.answers)).max(1e-6);
        (self.answers, self.seconds) = (0, 0.0);
        let long_term = self
            .long_term
            .map_or(short, |long_term| long_term + WEIGHT * (short - long_term));
        // After a slow period, the long-term latency adapts faster.
        let long_term = if long_term > 2.0 * short {
            long_term * 0.9
        } else {
            long_term
        };
        self.long_term = Some(long_term);
        let gradient = (TOLERANCE * long_term / short).clamp(0.5, 1.0);
        #[allow(clippy::cast_precision_loss, reason = "some hundreds")]
        let is_used = busy as f64 >= self.limit / 2.0;
        if gradient < 1.0 || is_used {
            self.limit = (self.limit * gradient + GROWTH).clamp(MIN, MAX);
        }
    }

    /// Records a refusal for overload, with the pause that the server asks for. The limit pauses if another lane was
    /// refused as well, or if no lane is given.
    pub fn record_refusal(&mut self, lane: Option<Lane>, pause: Duration, now: Instant) {
        self.unanswered = 0;
        let is_other = |(before, until): &(Lane, Instant)| now < *until && Some(*before) != lane;
        let is_global = lane.is_none() || self.refused.as_ref().is_some_and(is_other);
        self.refused = lane.map(|lane| (lane, now + pause));
        // Requests that were in flight together are refused together.
        if self
            .halved_at
            .is_none_or(|halved_at| now > halved_at + Duration::from_millis(100))
        {
            self.limit = (self.limit / 2.0).max(MIN);
            self.halved_at = Some(now);
        }
        if is_global {
            self.pause_until(now + pause);
        }
    }

    /// Records a request without an answer, or one that was not allowed.
    pub fn record_no_answer(&mut self, now: Instant) {
        let (first, max) = NO_ANSWER_PAUSE;
        self.unanswered += 1;
        self.limit = MIN;
        self.pause_until(now + first.saturating_mul(1 << (self.unanswered / 4).min(8)).min(max));
    }

    fn pause_until(&mut self, until: Instant) {
        self.pause = Some(self.pause.map_or(until, |pause| pause.max(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_answers(limit: &mut Limit, answers: u32, latency: impl Fn(usize) -> f64) -> usize {
        let now = Instant::now();
        for _ in 0..answers {
            let busy = limit.max_in_flight(now);
            limit.record_answer(Duration::from_secs_f64(latency(busy)), busy);
        }
        limit.max_in_flight(now)
    }

    #[test]
    fn the_limit_grows_to_its_maximum_while_latency_is_constant() {
        let mut limit = Limit::default();
        assert_eq!(run_answers(&mut limit, 2000, |_| 0.01), 128);
    }

    #[test]
    fn the_limit_shrinks_when_latency_rises_and_recovers() {
        let mut limit = Limit::default();
        run_answers(&mut limit, 2000, |_| 0.01);
        let slow = run_answers(&mut limit, 160, |_| 0.2);
        assert!(slow < 40, "{slow}");
        assert_eq!(run_answers(&mut limit, 4000, |_| 0.01), 128);
    }

    #[test]
    fn a_limit_that_is_not_used_does_not_grow() {
        let mut limit = Limit::default();
        for _ in 0..1000 {
            limit.record_answer(Duration::from_millis(5), 2);
        }
        assert_eq!(limit.max_in_flight(Instant::now()), 16);
    }

    #[test]
    fn retry_after_is_honored_and_simultaneous_refusals_count_once() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        for _ in 0..10 {
            limit.record_refusal(None, Duration::from_secs(3), now);
        }
        assert_eq!(limit.max_in_flight(now + Duration::from_secs(2)), 0);
        assert_eq!(limit.max_in_flight(now + Duration::from_secs(3)), 8);
    }

    #[test]
    fn an_unreachable_server_is_retried_with_backoff() {
        let (mut limit, mut now) = (Limit::default(), Instant::now());
        for _ in 0..100 {
            limit.record_no_answer(now);
            now = limit.pause().unwrap();
        }
        let before = now;
        limit.record_no_answer(now);
        assert_eq!(limit.pause().unwrap() - before, Duration::from_secs(30));
    }
}
