//! Answers: waited for, and read.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::ApiError;

/// What comes of a request within `patience`.
pub async fn in_time<T>(
    patience: Duration,
    verb: &'static str,
    path: &str,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    timeout(patience, answer).await.unwrap_or_else(|_| {
        Err(ApiError::Timeout {
            verb,
            path: path.to_owned(),
            after: patience,
        })
    })
}

/// Reads a body that is JSON.
pub fn read<T: DeserializeOwned>(verb: &'static str, path: &str, body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::unreadable(verb, path, error))
}
