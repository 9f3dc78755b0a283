//! Limit of requests in flight: it grows by a constant while the API server answers, and halves when it refuses (AIMD).

use std::time::Duration;

use tokio::time::Instant;

use super::queue::Lane;

const MIN: usize = 4;
const MAX: usize = 128;
const INITIAL: usize = 16;
/// Growth after [`WINDOW`] answers.
const GROWTH: usize = 8;
const WINDOW: u32 = 32;
/// Pause after requests without an answer: first and maximum.
const NO_ANSWER_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The current limit, and the answers and refusals that it follows from.
#[derive(Debug)]
pub struct Limit {
    /// Counts while nothing pauses.
    max_in_flight: usize,
    /// Since it has grown.
    answers: u32,
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

// === impl Limit ===

impl Default for Limit {
    fn default() -> Self {
        Self {
            max_in_flight: INITIAL,
            answers: 0,
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
            None => in_flight < self.max_in_flight,
        }
    }

    /// Maximum number of requests in flight while nothing pauses.
    pub fn max_in_flight(&self) -> usize {
        self.max_in_flight
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

    /// Records an answer, with `busy` requests in flight. A limit that is not used does not grow.
    pub fn record_answer(&mut self, busy: usize) {
        if busy < self.max_in_flight / 2 {
            return;
        }
        self.answers += 1;
        if self.answers == WINDOW {
            self.answers = 0;
            self.max_in_flight = (self.max_in_flight + GROWTH).min(MAX);
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
            self.max_in_flight = (self.max_in_flight / 2).max(MIN);
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
        self.max_in_flight = MIN;
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

    /// Number of requests in flight from which on no other starts.
    fn allowed(limit: &Limit, now: Instant) -> usize {
        (0..).find(|&in_flight| !limit.allows(in_flight, now)).unwrap()
    }

    #[test]
    fn the_limit_grows_to_its_maximum_while_it_is_used_and_halves_at_a_refusal() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        for _ in 0..1000 {
            limit.record_answer(2);
        }
        assert_eq!(allowed(&limit, now), 16, "it is not used");
        for _ in 0..2000 {
            limit.record_answer(allowed(&limit, now));
        }
        assert_eq!(allowed(&limit, now), 128);
        limit.record_refusal(None, Duration::ZERO, now);
        assert_eq!(allowed(&limit, now), 64);
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
