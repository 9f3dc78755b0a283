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
/// Pause after requests without an answer: first and maximum.
const NO_ANSWER_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The current limit, and the latencies and refusals that it follows from.
#[derive(Debug)]
pub struct Limit {
    limit: f64,
    /// Long-term latency in seconds; `None` before the first window.
    long_term: Option<f64>,
    answers: u32,
    seconds: f64,
    /// The API server is overloaded: no request starts before this.
    pause: Option<Instant>,
    outage: Option<Outage>,
    halved_at: Option<Instant>,
    /// Lane of the last refused request, and the end of its pause.
    refused: Option<(Lane, Instant)>,
}

/// Requests get no answer. After each pause one request probes the server.
#[derive(Debug)]
struct Outage {
    /// Number of pauses.
    pauses: u32,
    /// Start and end of the last one.
    pause: (Instant, Instant),
    /// A request has been sent since.
    is_probing: bool,
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
            outage: None,
            halved_at: None,
            refused: None,
        }
    }
}

impl Limit {
    /// Whether another request may start, with so many in flight.
    pub fn allows(&self, in_flight: usize, now: Instant) -> bool {
        if self.pause.is_some_and(|pause| now < pause) {
            return false;
        }
        match &self.outage {
            Some(outage) => now >= outage.pause.1 && !outage.is_probing,
            None => in_flight < self.state().max_in_flight,
        }
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
        let probe = self.outage.as_ref().filter(|outage| !outage.is_probing);
        self.pause.max(probe.map(|outage| outage.pause.1))
    }

    /// Whether requests get no answer.
    pub fn has_outage(&self) -> bool {
        self.outage.is_some()
    }

    /// Records that a request was sent.
    pub fn record_start(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.is_probing = true;
        }
    }

    /// Records that the server has answered something.
    pub fn end_outage(&mut self) {
        self.outage = None;
    }

    /// Records an answer after this time, with `busy` requests in flight.
    pub fn record_answer(&mut self, after: Duration, busy: usize) {
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
            self.pause = self.pause.max(Some(now + pause));
        }
    }

    /// Records a request without an answer, or one that was not allowed. Requests that began before the last pause failed
    /// with the one that caused it: a broken connection ends all of its requests.
    pub fn record_no_answer(&mut self, started: Instant, now: Instant) {
        if self.outage.as_ref().is_some_and(|outage| started <= outage.pause.0) {
            return;
        }
        let (first, max) = NO_ANSWER_PAUSE;
        let pauses = self.outage.as_ref().map_or(0, |outage| outage.pauses);
        self.limit = MIN;
        self.outage = Some(Outage {
            pauses: pauses + 1,
            pause: (now, now + first.saturating_mul(1 << pauses.min(8)).min(max)),
            is_probing: false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_answers(limit: &mut Limit, answers: u32, latency: impl Fn(usize) -> f64) -> usize {
        let now = Instant::now();
        for _ in 0..answers {
            let busy = allowed(limit, now);
            limit.record_answer(Duration::from_secs_f64(latency(busy)), busy);
        }
        allowed(limit, now)
    }

    /// Number of requests in flight from which on no other starts.
    fn allowed(limit: &Limit, now: Instant) -> usize {
        (0..).find(|&in_flight| !limit.allows(in_flight, now)).unwrap()
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
        assert_eq!(allowed(&limit, Instant::now()), 16);
    }

    #[test]
    fn retry_after_is_honored_and_simultaneous_refusals_count_once() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        for _ in 0..10 {
            limit.record_refusal(None, Duration::from_secs(3), now);
        }
        assert_eq!(allowed(&limit, now + Duration::from_secs(2)), 0);
        assert_eq!(allowed(&limit, now + Duration::from_secs(3)), 8);
    }

    #[test]
    fn an_unreachable_server_is_probed_by_one_request_after_each_pause() {
        let (mut limit, mut now) = (Limit::default(), Instant::now());
        let (mut pauses, mut started) = (Vec::new(), now);
        for _ in 0..9 {
            // All requests of a broken connection end together.
            for _ in 0..24 {
                limit.record_no_answer(started, now);
            }
            let end = limit.pause().unwrap();
            pauses.push((end - now).as_millis());
            assert!(!limit.allows(0, end - Duration::from_millis(1)));
            assert!(limit.allows(23, end), "no probe");
            limit.record_start();
            assert!(!limit.allows(0, end + Duration::from_secs(60)), "a second probe");
            (started, now) = (end, end + Duration::from_millis(1));
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        limit.end_outage();
        assert_eq!((limit.pause(), allowed(&limit, now)), (None, 4));
    }
}
