//! Fork bombs and searches of all processes take turns, since a search has a time limit.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static CROWD: RwLock<()> = RwLock::new(());

/// Held while a bomb runs: a machine bears one.
pub fn forks() -> RwLockWriteGuard<'static, ()> {
    CROWD.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held while all processes are searched.
pub fn no_forks() -> RwLockReadGuard<'static, ()> {
    CROWD.read().unwrap_or_else(PoisonError::into_inner)
}
