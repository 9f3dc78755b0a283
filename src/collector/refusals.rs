//! Requests that the API server keeps refusing.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::api::ApiError;

/// A refusal expires after this time. A refused request is retried every five minutes at least, unless it waits in its
/// lane.
const EXPIRES_AFTER: Duration = Duration::from_secs(700);

/// Refusals by step, resource and HTTP status. One that does not recur expires.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<Key, Refusal>);

/// Identity of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// `get_owner`, `drop_reference`, `delete` or `remove_finalizer`.
    pub step: &'static str,
    /// The resource, such as `deployments.apps`.
    pub resource: String,
    /// HTTP status.
    pub code: u16,
}

/// Details of a refusal.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Time of the first one.
    pub since: Instant,
    /// Time of the last one.
    pub last: Instant,
    /// Number of refusals.
    pub times: u64,
    /// The last error.
    pub error: String,
}

// === impl Refusals ===

impl Refusals {
    /// Records a failed request. Only answers of the API server count as refusals.
    pub fn record(&mut self, step: &'static str, resource: String, error: &ApiError, now: Instant) {
        let &ApiError::Refused { code, .. } = error else { return };
        self.0.retain(|_, refusal| refusal.is_current(now));
        let key = Key { step, resource, code };
        let refusal = self.0.entry(key).or_insert_with(|| Refusal {
            since: now,
            last: now,
            times: 0,
            error: String::new(),
        });
        refusal.last = now;
        refusal.times += 1;
        refusal.error = error.to_string();
    }

    /// Refusals that are not expired.
    pub fn current(&self, now: Instant) -> impl Iterator<Item = (&Key, &Refusal)> {
        self.0.iter().filter(move |(_, refusal)| refusal.is_current(now))
    }
}

// === impl Refusal ===

impl Refusal {
    fn is_current(&self, now: Instant) -> bool {
        now < self.last + EXPIRES_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_reported_until_it_is_not_repeated() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let refused = |code| ApiError::refused("DELETE", "/x", code, None, b"no");
        let mut refusals = Refusals::default();
        let mut record = |code, seconds| refusals.record("delete", "pods".to_owned(), &refused(code), at(seconds));
        record(403, 0);
        record(403, 300);
        record(429, 301);
        let current = |now: Instant| -> Vec<_> {
            let all = refusals.current(now);
            all.map(|(key, it)| (key.code, it.since, it.last, it.times)).collect()
        };
        assert_eq!(current(at(302)), [(403, start, at(300), 2), (429, at(301), at(301), 1)]);
        assert_eq!(current(at(1000)), [(429, at(301), at(301), 1)]);
        assert_eq!(current(at(1001)), []);
    }
}
