//! Timeout and decoding of answers.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::ApiError;

/// Limits a request to `timeout_after`.
pub async fn with_timeout<T>(
    timeout_after: Duration,
    verb: &'static str,
    path: &str,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    timeout(timeout_after, answer).await.unwrap_or_else(|_| {
        Err(ApiError::Timeout {
            verb,
            path: path.to_owned(),
            after: timeout_after,
        })
    })
}

/// Decodes a JSON body.
pub fn read<T: DeserializeOwned>(verb: &'static str, path: &str, body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::unreadable(verb, path, error))
}
