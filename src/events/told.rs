//! What has been told of a pod already: the same failure, attempt after attempt, is no news.

use std::time::Duration;

use tokio::time::Instant;

use super::Reason;

/// The same once more after so long, so that it can still be seen when older events have gone.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Per reason, what was told last and when.
#[derive(Debug, Default)]
pub struct Told(Vec<(Reason, String, Instant)>);

// === impl Told ===

impl Told {
    /// Whether this is worth an event; it then counts as told.
    pub fn is_news(&mut self, reason: Reason, message: &str, now: Instant) -> bool {
        let known = |(of, text, at): &(Reason, String, Instant)| {
            *of == reason && text == message && now.saturating_duration_since(*at) < AGAIN_AFTER
        };
        if self.0.iter().any(known) {
            return false;
        }
        self.0.retain(|(of, ..)| *of != reason);
        self.0.push((reason, message.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_again_only_after_a_while_and_anything_else_at_once() {
        let (mut told, start) = (Told::default(), Instant::now());
        let mut news = |reason, message, seconds| told.is_news(reason, message, start + Duration::from_secs(seconds));
        assert!(news(Reason::FailedKillPod, "a", 0));
        assert!(!news(Reason::FailedKillPod, "a", 60));
        assert!(news(Reason::FailedUnMount, "a", 60));
        assert!(news(Reason::FailedKillPod, "b", 61));
        assert!(news(Reason::FailedKillPod, "a", 62));
        assert!(!news(Reason::FailedKillPod, "a", 661));
        assert!(news(Reason::FailedKillPod, "a", 662));
    }
}
