//! Durations of requests by verb and result.

use std::{fmt, time::Duration};

use http::StatusCode;
use tokio::time::Instant;

use super::{ApiError, answer::with_timeout};
use crate::{
    histogram::{Histogram, REQUEST_BOUNDS, Snapshot},
    model::failure::BLOCKED,
};

/// The API server ends mutating requests after 34 s and others after 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);

/// Verb and result of a request.
pub type RequestLabels = (&'static str, RequestCode);

/// Result of a request, as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestCode {
    /// A successful answer.
    Success,
    /// The HTTP status of a refusal.
    Http(u16),
    /// No answer that can be used: one word.
    Failed(&'static str),
}

/// Durations of the requests of one client. A watch counts until its answer begins.
#[derive(Debug)]
pub(super) struct RequestDurations(Histogram<RequestLabels>);

// === impl RequestDurations ===

impl RequestDurations {
    pub fn snapshot(&self) -> Snapshot<RequestLabels> {
        self.0.snapshot()
    }

    /// Waits for an answer, at most [`REQUEST_TIMEOUT`], and observes how long it took.
    pub async fn observe_request<T>(
        &self,
        verb: &'static str,
        path: &str,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let started = Instant::now();
        let result = with_timeout(REQUEST_TIMEOUT, verb, path, answer).await;
        let code = result.as_ref().err().map_or(RequestCode::Success, RequestCode::from);
        self.0.observe((verb, code), started.elapsed());
        result
    }
}

impl Default for RequestDurations {
    fn default() -> Self {
        Self(Histogram::new(REQUEST_BOUNDS))
    }
}

// === impl RequestCode ===

impl From<&ApiError> for RequestCode {
    fn from(error: &ApiError) -> Self {
        match error {
            // A server may invent codes.
            ApiError::Refused { code, .. } => match StatusCode::from_u16(*code).ok().filter(is_known) {
                Some(_) => Self::Http(*code),
                None => Self::Failed("unknown_status"),
            },
            ApiError::Unreachable { .. } => Self::Failed("unreachable"),
            ApiError::UnverifiedServer { .. } => Self::Failed("unproven"),
            ApiError::Timeout { .. } => Self::Failed("timeout"),
            ApiError::Unreadable { .. } => Self::Failed("unreadable"),
            ApiError::Blocked { .. } => Self::Failed(BLOCKED),
        }
    }
}

/// Whether the status is registered.
fn is_known(status: &StatusCode) -> bool {
    status.canonical_reason().is_some()
}

impl fmt::Display for RequestCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("2xx"),
            Self::Http(code) => write!(f, "{code}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn server_cannot_create_a_series_for_each_answer() {
        let durations = RequestDurations::default();
        for code in 0..=2000 {
            let refused = async { Err::<(), _>(ApiError::refused("GET", "/x", code, None, b"")) };
            durations.observe_request("GET", "/x", refused).await.unwrap_err();
        }
        let answered = async { Ok(()) };
        durations.observe_request("GET", "/x", answered).await.unwrap();
        let series = durations.snapshot();
        assert!(series.len() < 80, "{}", series.len());
        assert!(series.contains_key(&("GET", RequestCode::Success)));
        assert_eq!(series[&("GET", RequestCode::Http(409))].count(), 1);
        assert!(series[&("GET", RequestCode::Failed("unknown_status"))].count() > 1900);
    }
}
