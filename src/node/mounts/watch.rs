//! Waiting for the mount table to change.

#![allow(
    unsafe_code,
    reason = "the runtime wants a promise for a descriptor that it is to watch"
)]

use std::{fs, future::pending, path::Path};

use tokio::io::{Interest, unix::AsyncFd};

use super::source::open_kernels;
use crate::node::fault::{Fault, errno};

/// Tells each change of the mount table that was made after this watch was.
///
/// Whoever waits for something makes a watch first, then looks, then waits: nothing is missed.
#[derive(Debug)]
pub struct MountWatch {
    kernel: Option<AsyncFd<fs::File>>,
}

// === impl MountWatch ===

impl MountWatch {
    pub(super) fn on(mountinfo: &Path) -> Result<Self, Fault> {
        let fault = |error: std::io::Error| Fault::new("watch", mountinfo, errno(&error));
        let kernel = open_kernels(mountinfo).map_err(fault)?;
        // SAFETY: the file owns its descriptor, always shows the same one, and is dropped only with the registration.
        let watched = kernel.map(|file| unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY) });
        Ok(Self {
            kernel: watched.transpose().map_err(|error| fault(error.into()))?,
        })
    }

    /// Waits until something has been mounted or unmounted since the last call. For ever where the table is an ordinary
    /// file: nobody tells what becomes of that.
    pub async fn changed(&mut self) {
        let Some(kernel) = &self.kernel else {
            return pending().await;
        };
        match kernel.ready(Interest::PRIORITY).await {
            Ok(mut told) => told.clear_ready(),
            // The runtime ends.
            Err(_) => pending().await,
        }
    }
}
