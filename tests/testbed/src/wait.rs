//! Waiting with a time limit.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time;

const POLL: Duration = Duration::from_millis(100);

/// Repeats `look` until it returns a value.
pub async fn eventually<T>(limit: Duration, what: &str, look: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let seen = async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            time::sleep(POLL).await;
        }
    };
    time::timeout(limit, seen)
        .await
        .with_context(|| format!("waited {limit:?} for {what}"))?
}
