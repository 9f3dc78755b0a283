//! Pauses of all requests while the API server does not answer.

use std::time::Duration;

use tokio::time::Instant;

/// Pause after requests without an answer: first and maximum.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// An outage, if there is one. After each pause one request probes the server.
#[derive(Debug, Default)]
pub struct Outage(Option<Pause>);

#[derive(Debug)]
struct Pause {
    /// Number of earlier pauses.
    earlier: u32,
    start: Instant,
    end: Instant,
    /// A request has been sent since.
    is_probing: bool,
}

/// Exponential backoff, with its first and maximum value.
pub fn backoff((first, max): (Duration, Duration), attempts: u32) -> Duration {
    first.saturating_mul(1 << attempts.min(16)).min(max)
}

// === impl Outage ===

impl Outage {
    pub fn allows(&self, now: Instant) -> bool {
        self.0
            .as_ref()
            .is_none_or(|pause| now >= pause.end && !pause.is_probing)
    }

    pub fn pause_end(&self) -> Option<Instant> {
        let pause = self.0.as_ref().filter(|pause| !pause.is_probing);
        pause.map(|pause| pause.end)
    }

    pub fn is_present(&self) -> bool {
        self.0.is_some()
    }

    pub fn record_start(&mut self) {
        if let Some(pause) = &mut self.0 {
            pause.is_probing = true;
        }
    }

    /// Records a request without an answer, or one that was not allowed, and the pause that the server asks for. Requests that
    /// began before the last pause failed with the one that caused it: a broken connection ends all of its requests.
    pub fn record_no_answer(&mut self, started: Instant, retry_after: Option<Duration>, now: Instant) {
        if self.0.as_ref().is_some_and(|pause| started <= pause.start) {
            return;
        }
        let earlier = self.0.as_ref().map_or(0, |pause| pause.earlier + 1);
        self.0 = Some(Pause {
            earlier,
            start: now,
            end: now + backoff(PAUSE, earlier).max(retry_after.unwrap_or_default()),
            is_probing: false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_server_is_probed_by_one_request_after_each_pause() {
        let (mut outage, mut now) = (Outage::default(), Instant::now());
        let (mut pauses, mut started) = (Vec::new(), now);
        for _ in 0..9 {
            // All requests of a broken connection end together.
            for _ in 0..24 {
                outage.record_no_answer(started, None, now);
            }
            let end = outage.pause_end().unwrap();
            pauses.push((end - now).as_millis());
            assert!(!outage.allows(end - Duration::from_millis(1)));
            assert!(outage.allows(end), "no probe");
            outage.record_start();
            assert!(!outage.allows(end + Duration::from_secs(60)), "a second probe");
            (started, now) = (end, end + Duration::from_millis(1));
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
    }
}
