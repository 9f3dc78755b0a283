//! Who forks without end, and who looks at all processes of the machine, take turns: such a look has its time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static CROWD: RwLock<()> = RwLock::new(());

/// Held as long as a bomb is there: a machine bears one.
pub fn forks() -> RwLockWriteGuard<'static, ()> {
    CROWD.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held as long as all processes are to be seen.
pub fn nobody_forks() -> RwLockReadGuard<'static, ()> {
    CROWD.read().unwrap_or_else(PoisonError::into_inner)
}
