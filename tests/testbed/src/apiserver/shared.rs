//! What all connections share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, timeout};

use super::error::ApiError;
use super::faults::Faults;
use super::requests::Requests;
use super::store::Store;

/// How long a request waits for a version that is not there yet.
const PATIENCE: Duration = Duration::from_secs(3);

/// The store and everything around it.
#[derive(Debug)]
pub struct Shared {
    store: Mutex<Store>,
    /// Faults in force.
    pub faults: Faults,
    /// What was asked lately.
    pub requests: Requests,
    /// How often a watch sends a bookmark.
    pub bookmark_every: Duration,
    began: Instant,
    began_at: Timestamp,
}

// === impl Shared ===

impl Shared {
    /// Everything around `store`.
    #[must_use]
    pub fn new(store: Store, bookmark_every: Duration, began_at: Timestamp) -> Self {
        Shared {
            store: Mutex::new(store),
            faults: Faults::default(),
            requests: Requests::default(),
            bookmark_every,
            began: Instant::now(),
            began_at,
        }
    }

    /// The store, for as long as nothing is awaited.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of day, by a clock that a test may have paused.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.began_at.checked_add(self.began.elapsed()).unwrap_or(self.began_at)
    }

    /// Waits until `version` is reached, for a short while.
    ///
    /// # Errors
    /// It was not reached.
    pub async fn reach(&self, version: u64) -> Result<(), ApiError> {
        let mut reached = self.store().reached();
        match timeout(PATIENCE, reached.wait_for(|current| *current >= version)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(ApiError::version_too_large(version, self.store().version())),
        }
    }
}
