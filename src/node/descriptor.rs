//! Waits for a descriptor without a thread.

#![allow(
    unsafe_code,
    reason = "tokio requires that the descriptor stays open while it is registered"
)]

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// The descriptor, and whether it is ready for `interest`.
///
/// # Errors
/// When it cannot be waited for, as a regular file.
pub fn watch(descriptor: impl Into<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: it owns its descriptor, always shows the same one, and is dropped only with the registration.
    unsafe { AsyncFd::register_with_interest(descriptor.into(), interest) }.map_err(io::Error::from)
}
