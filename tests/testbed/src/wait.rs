//! Waiting with a time limit.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{self, Instant};

const POLL: Duration = Duration::from_millis(100);

/// Repeats `check` until it succeeds. After `limit`, its last error is returned.
pub async fn until_ok<T>(limit: Duration, check: impl AsyncFn() -> Result<T>) -> Result<T> {
    let late = Instant::now() + limit;
    loop {
        match check().await {
            Err(error) if Instant::now() > late => return Err(error.context(format!("waited {limit:?}"))),
            Err(_) => time::sleep(POLL).await,
            done => return done,
        }
    }
}

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
