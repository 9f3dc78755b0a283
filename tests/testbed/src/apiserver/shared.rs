//! What all connections share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::time::Instant;

use super::faults::Faults;
use super::request_limit::RequestLimit;
use super::requests::Requests;
use super::store::Store;

/// The store and everything around it.
#[derive(Debug)]
pub struct Shared {
    store: Mutex<Store>,
    /// Faults in force.
    pub faults: Faults,
    pub request_limit: RequestLimit,
    /// What was asked lately.
    pub requests: Requests,
    began: Instant,
    began_at: Timestamp,
}

impl Shared {
    /// Everything around `store`.
    pub fn new(store: Store, began_at: Timestamp) -> Self {
        Shared {
            store: Mutex::new(store),
            faults: Faults::default(),
            request_limit: RequestLimit::default(),
            requests: Requests::default(),
            began: Instant::now(),
            began_at,
        }
    }

    /// The store, for as long as nothing is awaited.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of day, by a clock that a test may have paused.
    pub fn now(&self) -> Timestamp {
        self.began_at.checked_add(self.began.elapsed()).unwrap_or(self.began_at)
    }
}
