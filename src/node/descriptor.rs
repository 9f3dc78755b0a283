//! Waits for a descriptor without a thread.

#![allow(
    unsafe_code,
    reason = "tokio requires that the descriptor stays open while it is registered"
)]

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// The descriptor, and whether it is ready for `interest`.
///
/// # Errors
/// When it cannot be waited for, as a regular file.
pub fn watch(descriptor: impl Into<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: it owns its descriptor, always shows the same one, and is dropped only with the registration.
    unsafe { AsyncFd::register_with_interest(descriptor.into(), interest) }.map_err(io::Error::from)
}

/// The same, for as long as the caller waits: later readiness does not wake the agent.
///
/// # Errors
/// When it cannot be waited for, as a regular file.
pub fn watch_meanwhile(descriptor: BorrowedFd<'_>, interest: Interest) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    // SAFETY: it is open for longer than the registration, and always shows the same descriptor.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}
