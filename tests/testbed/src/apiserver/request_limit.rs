//! A limit of a user's requests per second, as priority and fairness imposes one in a busy cluster.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug, Default)]
pub struct RequestLimit(Mutex<Option<Limit>>);

#[derive(Debug)]
struct Limit {
    user: String,
    per_second: u32,
    second: Instant,
    /// Requests in this second.
    requests: u32,
}

impl RequestLimit {
    /// Limits the requests of `user` from now on.
    pub fn set(&self, user: &str, per_second: u32) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Limit {
            user: user.to_owned(),
            per_second,
            second: Instant::now(),
            requests: 0,
        });
    }

    /// Whether a request of `user` exceeds the limit. Otherwise it is counted.
    pub(super) fn refuses(&self, user: &str) -> bool {
        let mut limit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(limit) = limit.as_mut().filter(|limit| limit.user == user) else {
            return false;
        };
        let now = Instant::now();
        if now >= limit.second + Duration::from_secs(1) {
            (limit.second, limit.requests) = (now, 0);
        }
        let refused = limit.requests >= limit.per_second;
        limit.requests += u32::from(!refused);
        refused
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_requests_of_one_user_are_limited_in_each_second() {
        let limit = RequestLimit::default();
        assert!(!limit.refuses("slow"));
        limit.set("slow", 2);
        for _ in 0..3 {
            assert_eq!([(); 3].map(|()| limit.refuses("slow")), [false, false, true]);
            assert!(!limit.refuses("other"));
            advance(Duration::from_secs(1)).await;
        }
    }
}
