//! Searches of all processes, which have a time limit: fork bombs and searches take turns, and a late search is repeated.

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

/// Repeats a search until its result is complete. An emulated machine may need several until one reads all processes in time.
pub fn search_until<T>(search: impl Fn() -> T, is_complete: impl Fn(&T) -> bool) -> T {
    let complete = (0..20).map(|_| search()).find(is_complete);
    complete.expect("a search of all processes")
}
